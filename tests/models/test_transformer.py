"""The transformer equals other forms of itself, and NumPy."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_config, small_model

from jaxrl_reason.models import blocks, spec, transformer
from jaxrl_reason.models.parts import attention, layers

N, T = 3, 7


def rows(seed=0):
  tokens = jax.random.randint(jax.random.key(seed), (N, T), 0, 16)
  return tokens, jnp.ones((N, T), bool)


def logits(model, params, tokens, valid):
  return model.unembed(params, model.hidden(params, tokens, valid))


def numpy_forward(c, params, tokens):
  """Computes one row in float64 with loops over heads, by the papers (RMSNorm,
  RoPE, GQA, SwiGLU).
  """
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

  def norm(x, w):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w

  t, half = len(tokens), c.head_dim // 2
  freq = c.rope_theta ** (-np.arange(half) / half)

  def rope(x):
    z = x[:, :half] + 1j * x[:, half:]
    z = z * np.exp(1j * np.arange(t)[:, None] * freq)
    return np.concatenate([z.real, z.imag], 1)

  x = p['embed'][tokens]
  for i in range(c.layers):
    layer = jax.tree.map(lambda a: a[i], p['layers'])  # noqa: B023
    a, h = layer['attn'], norm(x, layer['attn_norm'])
    out = np.zeros_like(x)
    for q in range(c.heads):
      k = q // (c.heads // c.kv_heads)
      qs = rope(norm(h @ a['q'][:, q] + a['q_bias'][q], a['q_norm']))
      ks = rope(norm(h @ a['k'][:, k] + a['k_bias'][k], a['k_norm']))
      vs = h @ a['v'][:, k] + a['v_bias'][k]
      s = qs @ ks.T / np.sqrt(c.head_dim)
      s = np.where(np.tri(t, dtype=bool), s, -np.inf)
      w = np.exp(s - s.max(1, keepdims=True))
      out += (w / w.sum(1, keepdims=True)) @ vs @ a['o'][q]
    x = x + out
    h, m = norm(x, layer['mlp_norm']), layer['mlp']
    g = h @ m['gate']
    x = x + (g / (1 + np.exp(-g)) * (h @ m['up'])) @ m['down']
  return norm(x, p['final_norm']) @ p['embed'].T


def test_equals_an_independent_float64_forward(tiny):
  c, model, params = tiny
  tokens, valid = rows()
  got = logits(model, params, tokens, valid)
  for i in range(N):
    want = numpy_forward(c, params, np.asarray(tokens[i]))
    np.testing.assert_allclose(got[i], want, rtol=2e-4, atol=2e-5)


def test_theta_is_used(tiny):
  c, _, params = tiny
  other = transformer.build(dataclasses.replace(c, rope_theta=100.0))
  a = logits(tiny[1], params, *rows())
  assert not np.allclose(a, logits(other, params, *rows()), atol=1e-3)


@pytest.mark.parametrize(
  'change', [{'train_layers': 'scan'}, {'remat': 'full'}, {'remat': 'dots'}]
)
def test_unrolling_and_remat_change_no_value_and_no_gradient(tiny, change):
  c, model, params = tiny
  other = transformer.build(dataclasses.replace(c, **change))

  def loss(m):
    return lambda p: jnp.sum(jnp.sin(logits(m, p, *rows())))

  a, da = jax.value_and_grad(loss(model))(params)
  b, db = jax.value_and_grad(loss(other))(params)
  np.testing.assert_allclose(a, b, rtol=1e-5)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), da, db
  )


@pytest.mark.parametrize('layers, loops', [(4, 0), (5, 1)])
def test_a_cpu_unrolls_up_to_four_layers(layers, loops):
  _, model, params = small_model(layers=layers)
  text = jax.jit(model.hidden).lower(params, *rows()).as_text()
  assert text.count('stablehlo.while') == loops


def test_causal_by_gradient(tiny):
  """d logits[t] / d input[s] is zero exactly where s > t."""
  c, model, params = tiny
  tokens, valid = jnp.arange(T)[None], jnp.ones((1, T), bool)

  def at(t):
    def f(embed):
      h = model.hidden(params | {'embed': embed}, tokens, valid)
      return jnp.sum(jnp.sin(h[0, t]))

    return jax.grad(f)(params['embed'])[:T]

  for t in range(T):
    reach = np.abs(np.asarray(at(t))).max(1) > 0
    np.testing.assert_array_equal(reach, np.arange(T) <= t)


@pytest.mark.parametrize('side', ['left', 'right'])
def test_padding_and_nan_in_padding_change_nothing(tiny, side):
  c, model, params = tiny
  pad = (3, 0) if side == 'left' else (0, 3)
  tokens, valid = rows()
  want = logits(model, params, tokens, valid)
  bad = 15  # its embedding becomes NaN, so rows must not use it
  tokens = tokens % 15
  want = logits(model, params, tokens, valid)
  tokens = jnp.pad(tokens, ((0, 0), pad), constant_values=bad)
  valid = jnp.pad(valid, ((0, 0), pad))
  broken = params | {'embed': params['embed'].at[bad].set(jnp.nan)}
  got = model.hidden(broken, tokens, valid)
  got = model.unembed(params, got)[:, pad[0] : pad[0] + T]
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('kv_heads', [1, 2, 4])
def test_cached_decode_equals_full_forward(kv_heads):
  """Left-padded prompts have different lengths, and G = 2 samples each."""
  c, model, params = small_model(kv_heads=kv_heads)
  p, new, g = 5, 4, 2
  lengths = jnp.array([5, 3, 1])
  prompts = jax.random.randint(jax.random.key(1), (N, p), 0, 16)
  valid = jnp.arange(p) >= p - lengths[:, None]
  tail = jax.random.randint(jax.random.key(2), (N * g, new), 0, 16)
  whole = jnp.concatenate([jnp.repeat(prompts, g, 0), tail], 1)
  mask = jnp.concatenate(
    [jnp.repeat(valid, g, 0), jnp.ones_like(tail, bool)], 1
  )
  want = model.hidden(params, whole, mask)[:, p - 1 :]

  weights = model.decode_params(params)
  h, cache = model.prefill(params, prompts, valid, g, new)
  got = [jnp.repeat(h, g, 0)]
  for t in range(new):
    h, cache = model.decode(weights, tail[:, t], cache, t)
    got.append(h)
  np.testing.assert_allclose(jnp.stack(got, 1), want, rtol=1e-4, atol=2e-5)


def test_bf16_computes_in_bf16_and_stays_close(tiny):
  c, model, params = tiny
  half = transformer.build(dataclasses.replace(c, dtype='bfloat16'))
  h = half.hidden(params, *rows())
  assert h.dtype == jnp.bfloat16
  out = half.unembed(params, h)
  assert out.dtype == jnp.float32
  want = logits(model, params, *rows())
  assert float(jnp.abs(out - want).max()) < 0.1 * float(jnp.abs(want).max())


def test_gradients_of_logits_are_multiplied_in_the_compute_dtype():
  """They are close to those in float32, although no product of the compiled
  step has float32 operands.
  """
  keys = jax.random.split(jax.random.key(0), 3)
  x = jax.random.normal(keys[0], (3, 5, 16))
  w = jax.random.normal(keys[1], (16, 40)) / 4
  pull = jax.random.normal(keys[2], (3, 5, 40))

  def loss(dtype):
    return lambda x, w: jnp.sum(
      pull * jax.nn.log_softmax(layers.wide(x.astype(dtype), w.astype(dtype)))
    )

  exact = jax.grad(loss('float32'), (0, 1))(x, w)
  half = jax.grad(loss('bfloat16'), (0, 1))(x, w)
  for a, b in zip(exact, half):
    assert np.linalg.norm(a - b) < 0.02 * np.linalg.norm(a)
  jaxpr = str(jax.make_jaxpr(jax.grad(loss('bfloat16'), (0, 1)))(x, w))
  products = re.findall(r'(\w+)\[[\d,]*\] = dot_general\[', jaxpr)
  assert sorted(products) == ['bf16', 'bf16', 'f32']


def test_flops_formula_counts_every_matrix(tiny):
  c, model, params = tiny
  weights = sum(
    x.size
    for path, x in jax.tree_util.tree_leaves_with_path(params)
    if x.ndim >= 2 and 'norm' not in str(path) and 'bias' not in str(path)
  )
  assert model.flops_per_token(0) == 2 * weights
  assert model.flops_per_token(10) - 2 * weights == 4 * 3 * 16 * 10


def test_init_does_not_depend_on_other_parameters():
  a = spec.init(transformer.specs(small_config()), jax.random.key(0))
  b = spec.init(transformer.specs(small_config(bias=False)), jax.random.key(0))
  np.testing.assert_array_equal(
    a['layers']['attn']['q'], b['layers']['attn']['q']
  )
  assert not np.array_equal(a['layers']['attn']['k'], a['layers']['attn']['v'])


def test_softmax_of_masked_rows_is_finite():
  out = layers.softmax(jnp.ones((2, 3)), jnp.zeros((2, 3), bool))
  np.testing.assert_allclose(out, 1 / 3, rtol=1e-6)


@pytest.mark.parametrize(
  'change, word',
  [
    ({'kv_heads': 3}, 'kv_heads'),
    ({'head_dim': 3}, 'head_dim'),
    ({'remat': 'some'}, 'remat'),
    ({'dtype': 'int8'}, 'dtype'),
    ({'cache_dtype': 'int4'}, 'cache_dtype'),
  ],
)
def test_impossible_configs_are_refused(change, word):
  with pytest.raises(ValueError, match=word):
    small_config(**change)


def test_embeddings_can_be_arguments(tiny):
  """Embeddings may be soft prompts. The embedding of a token has the result of
  the token, and another vector changes only later tokens.
  """
  c, model, params = tiny
  tokens, valid = rows()
  whom = attention.describe(valid)

  def attention_of(windows):
    kernel = attention.make(whom, c, windows)
    return lambda q, k, v, which, memory: (kernel(q, k, v, which), None)

  @jax.jit
  def hidden(x):
    return blocks.through(params, c, x, whom, T, attention_of)[0]

  x = blocks.embed(params, c, tokens)
  want = hidden(x)
  np.testing.assert_allclose(
    want, model.hidden(params, tokens, valid), atol=1e-5
  )
  moved = jnp.abs(hidden(x.at[:, 2].add(0.5)) - want).max(axis=(0, 2))
  assert np.all(moved[:2] == 0) and np.all(moved[2:] > 1e-4)


@pytest.mark.parametrize('rounded', [False, True])
def test_only_the_scale_of_gemma_is_rounded(rounded):
  """3.3 is 3.296875 in bfloat16, which changes many products."""
  how = dict(embed_scale=3.3, embed_rounded=rounded, dtype='bfloat16')
  c, _, params = small_model(**how)
  tokens = jnp.arange(c.vocab)
  table = np.asarray(params['embed'].astype(jnp.bfloat16), np.float64)
  want = table * (3.296875 if rounded else 3.3)
  got = blocks.embed(params, c, tokens)
  np.testing.assert_array_equal(got, want.astype(jnp.bfloat16))
  other = (table * (3.3 if rounded else 3.296875)).astype(jnp.bfloat16)
  assert (np.asarray(got) != other).mean() > 0.1
