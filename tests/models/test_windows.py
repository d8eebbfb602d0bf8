"""Layers with windows cache only their window, without other changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import sharding
from jaxrl_reason.base import Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.models import families, logprobs, spec, transformer
from jaxrl_reason.rollouts import sampler

B, G, P, C = 8, 4, 12, 24
LENGTHS = np.array([12, 1, 7, 9, 3, 12, 5, 2])
VALID = np.arange(P) >= P - LENGTHS[:, None]
STOP = jnp.array([1, 2])
# Windows as in Gemma 3 and in Mistral, and edge cases: the token itself, and
# windows as long as a prompt, a completion, a row, and longer than a row. Below
# 0: chunks, as in Llama 4.
WINDOWS = [
  (5, 5, 0),
  (7, 7, 7),
  (1, 0, 2),
  (12, 13, 0),
  (24, 25, 23),
  (36, 0, 999),
  (-5, 0, -7),
  (-1, 6, -24),
  (-36, -999, -12),
]


def generate(model, params, temperature=1.0, **static):
  tokens = jax.random.randint(jax.random.key(0), (B, P), 3, 16)

  @jax.jit
  def f(params):
    return sampler.generate(
      model,
      params,
      tokens,
      jnp.asarray(VALID),
      jax.random.key(3),
      Sampling.make(temperature),
      STOP,
      n_samples=G,
      max_new=C,
      **static,
    )

  return tokens, f(params)


def whole_cache(monkeypatch):
  """Keeps every column in every layer, and masks columns by distance."""

  def context(cache, t, step):
    valid, t = cache.prompt_mask[:, 0], jnp.asarray(t)
    s, r = cache.own[0][0].values.shape[::2]
    n = jnp.repeat(valid.sum(1), s // len(valid))
    ts = jnp.broadcast_to(t, s)
    at = jnp.cumsum(valid, 1) - 1
    far = (n + ts).reshape(len(valid), -1, 1) - at[:, None]
    age = (step - jnp.arange(r)) % r
    own = age <= ts[:, None]

    def near(w):
      in_chunk = (n + ts) % abs(w or 1) + 1
      return in_chunk if w < 0 else jnp.full_like(n, w or 10**6)

    return n + ts, {
      w: (
        valid[:, None] & (far < near(w).reshape(len(valid), -1, 1)),
        (own & (age < near(w)[:, None]))[:, None],
      )
      for w in cache.windows
    }

  monkeypatch.setattr(cache_lib, 'within', lambda columns, window: columns)
  monkeypatch.setattr(cache_lib, 'seen_of_prompt', lambda x, window: x)
  monkeypatch.setattr(cache_lib, 'context', context)


def assert_same(got, want):
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)


@pytest.mark.parametrize('windows', WINDOWS)
def test_sampler_equals_trainer(windows):
  _, model, params = small_model(windows=windows)
  tokens, out = generate(model, params)
  assert out.length.max() > 20 > out.length.min()
  whole = jnp.concatenate([jnp.repeat(tokens, G, 0), out.tokens], 1)
  past = np.arange(C) < np.asarray(out.length)[:, None]
  mask = jnp.concatenate([np.repeat(VALID, G, 0), past], 1)
  rows = Rows(whole, mask, out.temperature)
  logp, *_ = jax.jit(
    lambda p: logprobs.score(model, p, rows, Sampling.make(), start=P)
  )(params)
  gap = np.abs(logp[:, P:] - out.logp)[past]
  assert gap.max() < 1e-5


@pytest.mark.parametrize(
  ('windows', 'shape', 'static'),
  [
    ((5, 5, 0), {}, dict(slots=3, segments=3)),
    ((7, 7, 7), {}, dict(slots=1, segments=4)),
    ((1, 0, 2), {}, dict(slots=2)),
    ((5, 5, 0), dict(cache_dtype='int8'), dict(slots=2)),
    ((7, 7, 7), dict(cache_dtype='bfloat16'), dict(segments=3)),
    ((5, 5, 0), dict(prefill='chunks:5'), dict(slots=2, segments=2)),
    ((7, 7, 7), dict(prefill='buckets:3', dtype='bfloat16'), {}),
    ((-5, 0, -9), {}, dict(slots=3, segments=3)),
    ((-5, 5, -5), dict(prefill='chunks:5'), dict(slots=1, segments=2)),
    ((-7, 0, -7), dict(prefill='buckets:3', cache_dtype='int8'), {}),
  ],
)
def test_equals_the_whole_cache(monkeypatch, windows, shape, static):
  monkeypatch.setattr(cache_lib, 'TILE', 2)
  _, model, params = small_model(windows=windows, **shape)
  _, got = generate(model, params, **static)
  whole_cache(monkeypatch)
  _, want = generate(model, params, **static)
  assert_same(got, want)


@pytest.mark.parametrize('widths', [(5, 7, 0), (-5, 7, 0)])
def test_tokens_of_a_cache_with_gaps_equal_whole_rows(widths):
  """Rows of prompts of several lengths get pieces of tokens with gaps between
  them. Some pieces cross the border of a chunk.
  """
  _, model, params = small_model(windows=widths)
  prompts = jax.random.randint(jax.random.key(0), (B, P), 3, 16)
  tokens = jax.random.randint(jax.random.key(1), (B, C), 3, 16)
  sizes = np.array([[3, 1, 0, 5, 2, 4, 0, 1], [4, 0, 6, 1, 3, 3, 9, 2]])

  @jax.jit
  def pieces(params):
    weights, column, out = model.decode_params(params), 0, []
    cache = model.gapped(model.prefill(params, prompts, VALID, 1, C)[1], C)
    before = np.zeros(B, int)
    for n in sizes:
      at = before[:, None] + np.arange(n.max())
      t = np.where(np.arange(n.max()) < n[:, None], at, -1)
      piece = np.asarray(tokens)[np.arange(B)[:, None], np.maximum(t, 0)]
      h, _, cache = model.extend(weights, piece, cache, jnp.asarray(t), column)
      column, before = column + n.max(), before + n
      out.append(h)
    return out

  whole = jnp.concatenate([prompts, tokens], 1)
  valid = np.concatenate([VALID, np.ones((B, C), bool)], 1)
  hidden = jax.jit(model.hidden)(params, whole, valid)
  for h, n, end in zip(pieces(params), sizes, sizes.cumsum(0)):
    want = hidden[np.arange(B), P + end - 1]
    np.testing.assert_allclose(h[n > 0], want[n > 0], atol=2e-5)


@pytest.mark.parametrize(
  'shape, widths',
  [
    ((2, 2, 2), (5, 7, 0)),
    ((1, 2, 2, 2), (5, 7, 0)),
    ((1, 2, 2, 2), (-5, 7, 0)),
  ],
)
def test_on_eight_devices_as_on_one(shape, widths):
  _, model, params = small_model(windows=widths)
  _, want = generate(model, params, slots=2, segments=2)
  mesh = sharding.make_mesh(shape)
  with jax.set_mesh(mesh):
    where = sharding.shardings(model.specs, mesh, sharding.TRAIN_RULES)
    placed = jax.tree.map(jax.device_put, params, where)
    _, got = generate(model, placed, slots=2, segments=2)
  assert_same(got, want)


def bytes_of(c, rows: int, prompts: int, length: int, new: int) -> int:
  """Counts the bytes of keys and values by hand."""
  total = 0
  for i in range(c.layers):
    w = abs(c.layer_windows[i]) or length + new
    columns = prompts * min(length, w - 1) + rows * min(new, w)
    number = {'model': 4, 'bfloat16': 2, 'int8': 1}[c.cache_dtype]
    scales = 4 * (c.cache_dtype == 'int8')  # a head's, of every column
    total += 2 * c.kv_heads * columns * (c.head_dim * number + scales)
  return total


@pytest.mark.parametrize('dtype', ['model', 'bfloat16', 'int8'])
@pytest.mark.parametrize('windows', [(5, 7, 0), (6, -6, 6), ()])
def test_bytes_of_the_compiled_program(windows, dtype):
  c, model, params = small_model(windows=windows, cache_dtype=dtype)
  tokens, valid = jnp.zeros((B, P), int), jnp.asarray(VALID)
  f = jax.jit(lambda *args: model.prefill(*args, G, C))
  memory = f.lower(params, tokens, valid).compile().memory_analysis()
  beside = B * c.width * 4 + B * P  # the last hidden state, and the mask
  pointers = 8 * (2 + 2 * c.layers * 2 * (1 + (dtype == 'int8')))
  want = bytes_of(c, B * G, B, P, C) + beside
  assert 0 <= memory.output_size_in_bytes - want <= pointers


@pytest.mark.parametrize('shape', [{}, {'prefill': 'chunks:16'}])
def test_generation_needs_fewer_bytes(shape):
  peak, kept = [], []
  for windows in ((), (8, 8, 8)):
    c, model, params = small_model(windows=windows, **shape)

    def f(params, tokens, model=model):
      return sampler.generate(
        model, params, tokens, tokens > 0, jax.random.key(0), Sampling.make(),
        STOP, n_samples=4, max_new=512,
      )  # fmt: skip

    program = jax.jit(f).lower(params, jnp.ones((2, 64), int)).compile()
    peak.append(program.memory_analysis().temp_size_in_bytes)
    kept.append(bytes_of(c, 8, 2, 64, 512))
  assert peak[0] - peak[1] >= 0.9 * (kept[0] - kept[1]) > 0, (peak, kept)


def test_published_models_have_caches_of_their_windows():
  """Gemma 3: 5 of 6 layers; Mistral: all."""
  shared = dict(
    vocab_size=16,
    hidden_size=16,
    intermediate_size=16,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    num_hidden_layers=6,
  )
  for name, columns in (
    ('gemma3_text', [4, 4, 4, 4, 4, 30]),
    ('mistral', [4] * 6),
  ):
    h = shared | {'model_type': name, 'sliding_window': 4}
    model = transformer.build(families.from_hf(h))
    prompts = jnp.ones((1, 20), int), jnp.ones((1, 20), bool)
    _, cache = jax.eval_shape(
      lambda *args, model=model: model.prefill(*args, 2, 30),
      spec.abstract(model.specs),
      *prompts,
    )
    assert [k.values.shape[2] for k, _ in cache.own] == columns
    found = [k.values.shape[2] for k, _ in cache.prompt]
    assert found == [3 if n == 4 else 20 for n in columns]
