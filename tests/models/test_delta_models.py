"""Models with layers of the delta rule and layers of attention."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_config, small_model

from jaxrl_reason import trees
from jaxrl_reason.base import Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import adapters, families, logprobs, remat, transformer
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.rollouts import sampler

B, G, P, C = 4, 4, 10, 24
LENGTHS = np.array([10, 1, 7, 4])
VALID = np.arange(P) >= P - LENGTHS[:, None]
DELTA = dict(
  delta_heads=2,
  delta_groups=2,
  delta_key_dim=3,
  delta_value_dim=4,
  delta_taps=3,
  norm_eps=0.1,  # as in hf_models: outputs of heads may be almost 0
)
CONVOLUTION = dict(
  delta_heads=2, delta_groups=1, delta_value_dim=5, delta_taps=4
)
# Two periods of three layers, and the first layer of a third one.
SEVEN = DELTA | dict(layers=7, delta_layers=(0, 1, 3, 4, 6))


def generate(model, params, **static):
  tokens = jax.random.randint(jax.random.key(0), (B, P), 3, 16)

  @jax.jit
  def f(params):
    return sampler.generate(
      model, params, tokens, jnp.asarray(VALID), jax.random.key(3),
      Sampling.make(1.0), jnp.array([1]), n_samples=G, max_new=C, **static,
    )  # fmt: skip

  out = f(params)
  whole = jnp.concatenate([jnp.repeat(tokens, G, 0), out.tokens], 1)
  past = np.arange(C) < np.asarray(out.length)[:, None]
  mask = jnp.concatenate([np.repeat(VALID, G, 0), past], 1)
  return out, Rows(whole, mask, out.temperature, out.routes), past


@pytest.mark.slow
@pytest.mark.parametrize(
  'shape, static',
  [
    (dict(prefill='buckets:2'), dict(slots=2, segments=2)),
    (
      dict(cache_dtype='int8', prefill='chunks:4', train_layers='unroll'),
      dict(slots=3),
    ),
  ],
)
def test_a_slot_begins_its_next_row_with_the_state_of_the_prompt(
  monkeypatch, shape, static
):
  monkeypatch.setattr(cache_lib, 'TILE', 2)
  _, model, params = small_model(
    **SEVEN, **shape, experts=4, experts_per_token=2
  )
  # With larger weights, the last bit of an embedding changes a log-probability
  # by 2e-5.
  params = jax.tree.map(lambda x: 0.5 * x, params)
  out, rows, past = generate(model, params, routes=True, **static)
  assert out.length.max() > 20 > out.length.min()
  score = jax.jit(
    lambda p: logprobs.score(model, p, rows, Sampling.make(), start=P)[0]
  )
  gap = np.abs(score(params)[:, P:] - out.logp)[past]
  assert gap.max() < (1e-5 if 'cache_dtype' not in shape else 0.3)
  if 'cache_dtype' not in shape:
    own = jax.jit(model.hidden_routed)(params, rows.tokens, rows.valid)[1]
    real = np.asarray(rows.valid)
    real = real[:, :-1] & real[:, 1:]
    a, b = (np.sort(x[:, :-1])[real] for x in (own['routes'], rows.routes))
    assert (a == b).all(axis=(-1, -2)).mean() > 0.99


@pytest.mark.parametrize(
  'kind', [DELTA, pytest.param(CONVOLUTION, marks=pytest.mark.slow)]
)
def test_turns_continue_from_the_state(kind):
  """Some rows wait, and observations have several lengths. The hidden states
  are those of whole rows.
  """
  _, model, params = small_model(**kind, layers=3, delta_layers=(0, 1))
  tokens = jax.random.randint(jax.random.key(1), (2, P + 8), 3, 16)
  valid = np.arange(P) >= P - np.array([[10], [6]])
  whole = np.concatenate([valid, np.ones((2, 8), bool)], 1)
  want = jax.jit(model.hidden)(params, tokens, whole)[:, P:]
  weights = model.decode_params(params)
  _, cache = model.prefill(params, tokens[:, :P], valid, 1, 8, 1)
  cache, answers = model.gapped(cache, 12), tokens[:, P:]
  # Decode a token of both rows, one of the second row, then two and four at
  # once.
  decode, extend = jax.jit(model.decode), jax.jit(model.extend)
  h, cache = decode(weights, answers[:, 0], cache, jnp.array([0, 0]), 0)
  np.testing.assert_allclose(h, want[:, 0], atol=1e-5)
  h, cache = decode(weights, answers[:, 1], cache, jnp.array([-1, 1]), 1)
  np.testing.assert_allclose(h[1], want[1, 1], atol=1e-5)
  t = jnp.array([[1, 2, -1, -1], [2, 3, 4, 5]])
  some = jnp.take_along_axis(answers, jnp.maximum(t, 0), axis=1)
  h, _, cache = extend(weights, some, cache, t, 2)
  np.testing.assert_allclose(h[0], want[0, 2], atol=1e-5)
  np.testing.assert_allclose(h[1], want[1, 5], atol=1e-5)
  h, cache = decode(
    weights, answers[jnp.arange(2), jnp.array([3, 6])], cache,
    jnp.array([3, 6]), 6,
  )  # fmt: skip
  np.testing.assert_allclose(h[0], want[0, 3], atol=1e-5)
  np.testing.assert_allclose(h[1], want[1, 6], atol=1e-5)


@pytest.fixture(scope='module')
def remat_grads():
  """Returns policy -> (hidden states [2,12,D], gradients, bytes kept per
  row).
  """
  tokens = jax.random.randint(jax.random.key(0), (2, 12), 3, 16)
  valid = jnp.arange(12) >= jnp.array([[0], [5]])

  def of(policy):
    c, model, params = small_model(
      **DELTA, layers=3, delta_layers=(0, 2), remat=policy, experts=4,
      experts_per_token=2,
    )  # fmt: skip

    def loss(p):
      h, aux = model.hidden_routed(p, tokens, valid)
      return jnp.sum(jnp.sin(h) * valid[..., None]) + aux['load_balance'], h

    grads, h = jax.jit(jax.grad(loss, has_aux=True))(params)
    return h[valid], grads, remat.kept_bytes(c, 12)

  return {policy: of(policy) for policy in ('none', 'dots', 'full')}


@pytest.mark.parametrize('policy', ['dots', 'full'])
def test_recomputed_states_equal_the_first_ones(remat_grads, policy):
  """This includes the states of the delta rule and the chosen experts."""
  (want, grads, kept), (got, again, fewer) = (
    remat_grads[p] for p in ('none', policy)
  )
  assert fewer < kept
  np.testing.assert_allclose(got, want, atol=1e-5)
  for path, x in trees.flatten(grads).items():
    assert np.any(x), path
    gap = np.linalg.norm(trees.flatten(again)[path] - x)
    assert gap <= 1e-4 * np.linalg.norm(x), path


def test_bytes_of_a_cache_are_those_of_states_and_of_keys():
  c, model, params = small_model(**SEVEN)
  f = jax.jit(lambda *args: model.prefill(*args, G, C))
  lowered = f.lower(params, jnp.zeros((B, P), int), jnp.asarray(VALID))
  found = lowered.compile().memory_analysis().output_size_in_bytes
  features = 2 * 2 * 3 + 2 * 2 * 4  # q and k, v
  state = 4 * (2 * features + 2 * 2 * 3 * 4)  # two inputs, and four matrices
  keys = 2 * 4 * c.kv_heads * c.head_dim
  want = 5 * (B + B * G) * state + 2 * (B * P + B * G * C) * keys
  want += B * c.width * 4 + B * P  # the last hidden state, and the mask
  assert 0 <= found - want <= 8 * (2 + 4 * c.layers)


def test_a_deeper_model_of_the_same_pattern_has_a_program_of_equal_size():
  def size(n):
    delta = tuple(i for i in range(4 * n) if i % 4 < 3)
    c = small_config(**DELTA, layers=4 * n, delta_layers=delta)
    model = transformer.build(c)
    shapes = jax.eval_shape(
      lambda: jax.tree.map(
        lambda s: jnp.zeros(s.shape),
        model.specs,
        is_leaf=lambda s: hasattr(s, 'axes'),
      )
    )
    tokens = jnp.zeros((2, 8), int)
    return (
      jax.jit(model.hidden)
      .lower(shapes, tokens, tokens > -1)
      .as_text()
      .count('\n')
    )

  assert size(2) == size(6)


@pytest.mark.parametrize(
  'changes, said',
  [
    (dict(delta_layers=()), 'delta_heads has no effect: model.delta_layers'),
    (dict(delta_layers=(0, 7)), 'rising indices below model.layers=7'),
    (dict(delta_layers=(1, 0)), 'rising indices'),
    (dict(delta_layers=tuple(range(7))), 'must leave a layer with attention'),
    (dict(delta_taps=1), 'delta_taps=1 must be at least 2'),
    (dict(delta_groups=0), 'delta_groups=0 must be at least 1'),
    (dict(delta_key_dim=0), 'delta_split have no effect: model.delta_key_dim'),
    (dict(windows=(4,) * 7), 'combined with windows'),
    (dict(rope_of_layer=(0, -1) * 3 + (0,)), 'a rope_of_layer other than -1'),
    (dict(delta_rule='mamba2', delta_split=True), 'delta_split has no effect'),
    (dict(delta_beside=True), 'need model.delta_rule='),
    (dict(mlp_scales=(1.0,)), 'mlp_scales must have 2 factors'),
    (dict(attention_scale=2.0), 'attention_scale has no effect'),
    (dict(mlp_layers=(5, 2)), 'mlp_layers=.5, 2. must be rising indices'),
    (dict(mlp_layers=(1,)), 'must differ from model.delta_layers'),
    (dict(mlp_layers=(2, 5)), 'must leave a layer with attention'),
    (dict(mlp_layers=(2,), norm_place='post'), "norm_place other than 'pre'"),
  ],
)
def test_incompatible_settings_are_refused(changes, said):
  c = small_config(**SEVEN)
  with pytest.raises(ValueError, match=said):
    dataclasses.replace(c, **changes)


def test_a_convolution_multiplies_by_all_its_weights():
  c, model, params = small_model(
    **CONVOLUTION, layers=3, delta_layers=(0, 2), qk_norm=False, bias=False
  )
  norms = c.width * (2 * c.layers + 1)
  weights = trees.n_params(params) - norms
  assert c.tied and model.flops_per_token(0) == 2 * weights


def test_attention_and_a_state_in_one_layer_keep_both():
  beside = dict(delta_rule='mamba2', delta_beside=True, layers=3)
  c, model, params = small_model(**DELTA | beside, delta_layers=(0, 1, 2))
  shapes = jax.eval_shape(
    lambda p: model.prefill(p, jnp.zeros((B, P), int), VALID, G, C)[1], params
  )
  wide = 2 * c.delta_key_dim + c.delta_groups * c.delta_value_dim
  for keys, values, state in shapes.own:
    shape = B * G, c.kv_heads, C, c.head_dim
    assert keys.values.shape == values.values.shape == shape
    assert state.inputs.shape == (B * G, c.delta_taps - 1, 2, wide)
  for changes, said in (
    (dict(delta_layers=(0, 2)), 'needs all layers in model.delta_layers'),
    (dict(experts=4, experts_per_token=2), 'combined with experts'),
    (dict(delta_scales=(1.0,)), 'delta_scales must have 6 factors'),
  ):
    with pytest.raises(ValueError, match=said):
      dataclasses.replace(c, **changes)
  assert model.fork is None


def test_layers_of_an_mlp_alone_multiply_by_no_other_weights():
  c, model, params = small_model(
    layers=4, mlp_layers=(1, 2), activation='relu2', qk_norm=False, bias=False
  )
  norms = c.width * (c.layers + 1)
  mlp = 2 * c.width * c.mlp
  attention = c.width * c.head_dim * (2 * c.heads + 2 * c.kv_heads)
  assert trees.n_params(params) == (
    norms + 2 * (mlp + attention) + c.vocab * c.width
  )
  own = 2 * (trees.n_params(params) - norms)
  assert c.tied and model.flops_per_token(0) == own
  assert model.flops_per_token(10) == own + 4 * 2 * 10 * c.heads * c.head_dim


def test_state_layers_support_neither_fork_nor_steering():
  model = transformer.build(small_config(**SEVEN))
  assert model.fork is None
  with pytest.raises(ValueError, match='layers of several kinds'):
    adapters.attach(model, steering=True)


def test_invalid_config_files_are_named():
  h = dict(
    model_type='qwen3_next', vocab_size=16, hidden_size=16, num_hidden_layers=4,
    intermediate_size=8, num_attention_heads=2, num_key_value_heads=1,
    head_dim=16,
  )  # fmt: skip
  assert families.from_hf(h).delta_layers == (0, 1, 2)
  linear, full = 'linear_attention', 'full_attention'
  for changes, said in (
    (dict(layer_types=[linear] * 4), 'must leave a layer with attention'),
    (dict(layer_types=[linear, full]), '2 entries'),
    (dict(layer_types=['x', full, linear, full]), r"layer_types\[0\]='x'"),
    (dict(linear_num_value_heads=17), 'linear_num_value_heads=17'),
    (dict(linear_num_key_heads=0), 'linear_num_key_heads=0'),
    (dict(full_attention_interval=0), 'full_attention_interval=0'),
    (dict(mlp_only_layers=[1]), 'mlp_only_layers'),
    (dict(hidden_act='gelu_pytorch_tanh'), 'hidden_act'),
  ):
    with pytest.raises(ValueError, match=said):
      families.from_hf(h | changes)
  own = h | dict(model_type='nemotron_h', hybrid_override_pattern='M-M*-')
  assert families.from_hf(own).mlp_layers == (1, 4)
  for changes, said in (
    (dict(hybrid_override_pattern='M-E*'), 'not both mlp and moe'),
    (dict(hybrid_override_pattern='MX*'), r"layers_block_type=\['X'\]"),
    (dict(hybrid_override_pattern=''), r'layers_block_type=\[\]'),
    (dict(hybrid_override_pattern='M-M-'), 'leave a layer with attention'),
    (dict(layers_block_type=['mamba', 'conv']), r"layers_block_type=\['conv"),
    (dict(residual_in_fp32=True), 'residual_in_fp32=True is not supported'),
    (dict(attention_head_dim=8), 'attention_head_dim=8 is not supported'),
    (dict(moe_latent_size=8), 'moe_latent_size=8'),
    (dict(time_step_limit=[0.1, 1.0]), 'time_step_limit'),
    (dict(n_groups=3), 'mamba_num_heads=128 must be a multiple of n_groups=3'),
  ):
    with pytest.raises(ValueError, match=said):
      families.from_hf(own | changes)
  own = h | dict(model_type='falcon_h1', mamba_n_heads=8, mamba_d_ssm=48)
  assert families.from_hf(own).delta_layers == (0, 1, 2, 3)
  for changes, said in (
    (dict(ssm_multipliers=[1.0] * 4), 'ssm_multipliers must have 5 values'),
    (dict(projectors_bias=True), 'projectors_bias=True is not supported'),
    (dict(mamba_rms_norm=True), 'mamba_norm_before_gate=True'),
    (
      dict(attention_bias=True, attention_in_multiplier=2.0),
      'attention_in_multiplier=2.0 is not supported with attention_bias',
    ),
    (dict(mamba_d_head=7), 'mamba_d_head=7'),
    (dict(mamba_n_heads=7), 'mamba_n_heads=7'),
  ):
    with pytest.raises(ValueError, match=said):
      families.from_hf(own | changes)
  h |= dict(model_type='lfm2', head_dim=None)
  assert families.from_hf(h | dict(full_attn_idxs=[1])).delta_layers == (
    0,
    2,
    3,
  )
  for changes, said in (
    (dict(conv_bias=True), 'conv_bias is not supported'),
    (dict(full_attn_idxs=[]), 'must leave a layer with attention'),
    (dict(layer_types=['conv', linear, full, full]), r"layer_types\[1\]='lin"),
    (dict(full_attn_idxs=[0], conv_L_cache=1), 'delta_taps=1'),
    (dict(full_attn_idxs=[0], num_attention_heads=3), 'multiple of num_att'),
  ):
    with pytest.raises(ValueError, match=said):
      families.from_hf(h | changes)
