"""Frozen weights in fewer bytes: their error, and the agreement of all
computations that read them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_config, small_model

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.checkpoints import hf
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import adapters, spec, transformer, weights
from jaxrl_reason.models.adapters import frozen, lora
from jaxrl_reason.models.parts import layers
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.run.checks import config_checks

LORA = lora.Lora(rank=2, alpha=3.0, targets='.*attn/(q|o)|.*mlp/down')
DENSE = dict(kv_heads=4, tied=False)
MOE = DENSE | dict(experts=4, experts_per_token=2, mlp=8)


def adapted(dtype, shape, targets=LORA.targets):
  """Returns (plain Model, its parameters, Model with frozen weights, its
  parameters). The plain parameters are the values of the frozen ones.
  """
  c, base, params = small_model(**shape)
  settings = lora.Lora(LORA.rank, LORA.alpha, targets=targets)
  plain = adapters.attach(base, lora=settings)
  ab = spec.init(plain.specs[lora.KEY], jax.random.key(7))
  params |= {lora.KEY: jax.tree.map(lambda x: x + 0.1, ab)}
  model = adapters.attach(
    base, lora=settings, frozen_dtype=dtype, trainable='lora/.*'
  )

  def is_leaf(x):
    return frozen.is_pair(x) or spec.is_spec(x)

  kept = jax.jit(
    lambda p: jax.tree.map(frozen.keep, model.specs, p, is_leaf=is_leaf)
  )(params)
  back = frozen.restored(kept, plain.specs)
  return plain, jax.tree.map(lambda x: x.astype(jnp.float32), back), model, kept


@pytest.fixture(scope='module')
def int8():
  return adapted('int8', DENSE)


@pytest.fixture(scope='module')
def experts():
  return adapted('int8', MOE, '.*attn/(q|o)')


def rows():
  tokens = jax.random.randint(jax.random.key(1), (8, 9), 0, 16)
  return tokens, jnp.arange(9) >= jnp.arange(8)[:, None] % 3


def logits(model):
  return jax.jit(
    lambda params: model.unembed(params, model.hidden(params, *rows()))
  )


@pytest.mark.parametrize('shape', [DENSE, MOE], ids=['dense', 'experts'])
def test_the_error_is_at_most_half_a_step_of_each_output(shape):
  c, model, params = small_model(**shape)
  kept_specs = frozen.specs(model.specs, 'int8', 'nothing')
  before = trees.flatten(params)
  seen = 0
  for path, s in trees.flatten(kept_specs, frozen.is_pair).items():
    if not frozen.is_pair(s):
      continue
    seen += 1
    w = np.asarray(before[path], np.float64)
    # The input dimensions by hand: [L,(E,)in,out...], except for o.
    lead = 2 if c.experts and 'mlp' in path else 1
    inputs = (1, 2) if path.endswith('attn/o') else (lead,)
    step = np.abs(w).max(inputs, keepdims=True) / 127
    pair = frozen.keep(s, before[path])
    found = np.asarray(pair['int8'], np.float64) * np.expand_dims(
      np.asarray(pair['scale']), inputs
    )
    assert (np.abs(found - w) <= step / 2 * (1 + 1e-5)).all(), path
    assert pair['scale'].shape == s['scale'].shape
    assert (np.abs(pair['int8']).max(inputs) == 127).all()  # the whole range
  assert seen == 7
  zero = frozen.quantize(jnp.zeros((3, 2)), (0,))
  assert not np.any(zero['int8']) and not np.any(zero['scale'])


@pytest.mark.parametrize('name', ['int8', 'experts'])
def test_frozen_weights_equal_a_model_with_their_values(name, request):
  plain, full, model, kept = request.getfixturevalue(name)
  want = logits(plain)(full)
  np.testing.assert_allclose(logits(model)(kept), want, atol=2e-4)
  off = model.adapters_off
  np.testing.assert_allclose(
    logits(model)(off(kept)), logits(plain)(off(full)), atol=2e-4
  )
  assert np.abs(logits(model)(off(kept)) - want).max() > 0.01


@pytest.mark.parametrize('name', ['int8', 'experts'])
def test_gradients_pass_through_and_not_into_it(name, request):
  plain, full, model, kept = request.getfixturevalue(name)

  def grads(model, params):
    ab, rest = trees.split(params, 'lora/.*')

    def loss(ab):
      return jnp.sum(jnp.sin(model.hidden(trees.join(ab, rest), *rows())))

    return trees.flatten(jax.jit(jax.grad(loss))(ab))

  got, want = grads(model, kept), grads(plain, full)
  assert set(got) == {f'lora/{k}' for k in trees.flatten(kept[lora.KEY])}
  assert set(got) == set(want)
  for path, x in want.items():
    atol = 1e-4 * float(np.abs(x).max())
    np.testing.assert_allclose(got[path], x, rtol=1e-3, atol=atol)
    assert np.any(x), path


def generate(model, params, prompts):
  return sampler.generate(
    model, params, prompts, prompts >= 0, jax.random.key(3), Sampling.make(),
    jnp.array([-1]), n_samples=2, max_new=5,
  )  # fmt: skip


def logp(model, params, prompts, out):
  tokens = jnp.concatenate([jnp.repeat(prompts, 2, 0), out.tokens], axis=1)
  z = model.unembed(params, model.hidden(params, tokens, tokens >= 0))
  z = jax.nn.log_softmax(z)[:, prompts.shape[1] - 1 : -1]
  return jnp.take_along_axis(z, out.tokens[..., None], axis=-1)[..., 0]


@pytest.mark.parametrize('name', ['int8', 'experts'])
def test_sampler_and_trainer_agree_split_or_not(name, request):
  """On eight devices each scale has the layout of its weight's outputs."""
  _, _, model, kept = request.getfixturevalue(name)
  prompts = jnp.arange(32).reshape(8, 4) % 16

  def both(params, prompts):
    return (
      out := generate(model, params, prompts),
      logp(model, params, prompts, out),
    )

  out, want = jax.jit(both)(kept, prompts)
  np.testing.assert_allclose(out.logp, want, atol=1e-5)
  mesh = sharding.make_mesh((1, 4, 2))
  where = sharding.shardings(model.specs, mesh, sharding.TRAIN_RULES)
  up = where['layers']['mlp']['up']

  def part(s):
    return tuple(s.spec)

  assert part(up['scale'])[-1] == part(up['int8'])[-1] == 'tensor'
  assert ('fsdp' in part(up['scale'])) == (name == 'experts')
  with jax.set_mesh(mesh):
    placed = jax.tree.map(jax.device_put, kept, where)
    split, again = jax.jit(both)(placed, sharding.to_global(prompts, mesh))
  np.testing.assert_array_equal(split.tokens, out.tokens)
  np.testing.assert_allclose(again, want, rtol=1e-4, atol=1e-5)


def test_decoding_keeps_it_int8(int8):
  """No product of the decode loop reads a projection of more than a byte."""
  _, _, model, kept = int8
  held = jax.eval_shape(model.decode_params, kept)
  for layer in held['layers']:
    for w in (layer['attn']['q'].w, layer['mlp']['down'].w, layer['mlp']['up']):
      assert isinstance(w, layers.Quantized) and w.int8.dtype == jnp.int8


@pytest.mark.parametrize('dtype', ['bfloat16', 'int8'])
def test_bytes_in_memory(dtype):
  """Counted by hand, for a model that consists mostly of projections."""
  c = small_config(width=64, mlp=128, head_dim=16, bias=False, qk_norm=False)
  specs = weights.specs(c)

  def n(*names):
    return sum(
      np.prod(s.shape)
      for p, s in trees.flatten(specs, spec.is_spec).items()
      if p.rpartition('/')[2] in names
    )

  projections = n('q', 'k', 'v', 'o', 'gate', 'up', 'down')
  norms = n('attn_norm', 'mlp_norm', 'final_norm')
  scales = 3 * (64 + 32 + 32 + 64 + 128 + 128 + 64)
  kept = frozen.specs(specs, dtype, 'lora/.*')
  held = trees.n_bytes(spec.abstract(kept))
  assert trees.n_bytes(spec.abstract(specs)) == 4 * (
    projections + norms + n('embed')
  )
  if dtype == 'bfloat16':
    assert held == 2 * (projections + n('embed')) + 4 * norms
  else:
    assert held == projections + 4 * (scales + norms) + 2 * n('embed')
    assert trees.n_bytes(spec.abstract(specs)) / held > 3.5
  made = jax.jit(lambda key: frozen.init(kept, key))(jax.random.key(0))
  assert trees.n_bytes(made) == held


def test_base_weights_are_rounded_to_bfloat16_and_adapters_are_not():
  plain, full, model, kept = adapted('bfloat16', DENSE)
  assert kept['layers']['attn']['q'].dtype == jnp.bfloat16
  assert kept['layers']['attn_norm'].dtype == jnp.float32
  np.testing.assert_allclose(
    logits(model)(kept), logits(plain)(full), atol=1e-5
  )
  prompts = jnp.arange(8).reshape(2, 4)
  out, got = jax.jit(
    lambda p: (out := generate(model, p, prompts), logp(model, p, prompts, out))
  )(kept)
  np.testing.assert_allclose(out.logp, got, atol=1e-5)


@pytest.mark.parametrize('shape', [DENSE, MOE], ids=['dense', 'experts'])
def test_loaded_layer_by_layer_is_quantized_whole(tmp_path, shape):
  shape = shape | dict(bias=False)
  c, model, params = small_model(**shape)
  hf.save(tmp_path, params, c, dtype='float32')
  kept = frozen.specs(model.specs, 'int8', 'embed')

  def is_leaf(x):
    return frozen.is_pair(x) or spec.is_spec(x)

  want = jax.tree.map(frozen.keep, kept, params, is_leaf=is_leaf)
  mesh = sharding.make_mesh((1, 4, 2))
  where = sharding.shardings(kept, mesh, sharding.TRAIN_RULES)
  for place in (None, where):
    got = hf.load(tmp_path, c, kept=kept, where=place)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    same = jax.tree.map(lambda a, b: a.dtype == b.dtype, got, want)
    assert all(jax.tree.leaves(same))
  assert got['embed'].dtype == jnp.float32  # it is trained
  assert got['layers']['attn']['q']['int8'].sharding.spec[2] == 'tensor'


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'frozen_dtype': 'int4'}, 'int4.*choose one of float32, bfloat16, int8'),
  ],
)
def test_impossible_settings_are_refused(changes, words):
  config = config_lib.default()
  config.update_from_flattened_dict(changes)
  with pytest.raises(ValueError, match=words):
    config_checks.check(config, 1)


def test_trained_weights_are_not_frozen():
  c = small_config()
  model = transformer.build(c)
  with pytest.raises(ValueError, match="'int8' has no effect: trainable='.*'"):
    adapters.attach(model, frozen_dtype='int8')
  with pytest.raises(ValueError, match='frozen.init'):
    spec.init(frozen.specs(model.specs, 'int8', 'x'), jax.random.key(0))
