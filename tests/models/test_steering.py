"""Steering vectors: the base is exact if they are zero or off, their effect,
and their training.
"""

import dataclasses

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import config as config_lib
from jaxrl_reason import losses, trees
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import adapters, spec, transformer
from jaxrl_reason.models.adapters import frozen, lora, steering
from jaxrl_reason.rollouts.fused import FusedSource
from jaxrl_reason.update import learner as learner_lib
from jaxrl_reason.update import optim, step

SHAPE = dict(vocab=24, kv_heads=4, tied=False, layers=2)
CONFIG, BASE, PARAMS = small_model(**SHAPE)
MODEL = adapters.attach(BASE, steering=True)
VECTORS = jax.random.normal(jax.random.key(4), (2, 16))
NEUTRAL = Sampling.make()


@pytest.fixture(scope='module')
def forward():
  tokens = jax.random.randint(jax.random.key(1), (4, 9), 0, 24)
  valid = jnp.arange(9) >= jnp.array([[0], [2], [1], [0]])
  f = jax.jit(lambda params: MODEL.hidden(params, tokens, valid))
  base = jax.jit(lambda params: BASE.hidden(params, tokens, valid))
  return f, base(PARAMS)


def test_zero_vectors_equal_the_base_exactly(forward):
  f, want = forward
  start = spec.init(MODEL.specs, jax.random.key(0))[steering.KEY]
  zero = PARAMS | {steering.KEY: start}
  np.testing.assert_array_equal(f(zero), want)
  on = PARAMS | {steering.KEY: VECTORS}
  np.testing.assert_array_equal(f(MODEL.adapters_off(on)), want)
  assert np.abs(f(on) - want).max() > 0.1


def test_a_vector_is_added_after_its_layer():
  """With one layer, v is added to the state before the final norm."""
  one, model, params = small_model(**SHAPE | {'layers': 1})
  tokens, valid = jnp.arange(6)[None], jnp.ones((1, 6), bool)
  v = VECTORS[:1]
  steered = adapters.attach(model, steering=True)
  got = steered.hidden(params | {steering.KEY: v}, tokens, valid)
  weight, eps = np.asarray(params['final_norm'], np.float64), one.norm_eps
  # Undo the weight of the norm. The lengths of the states remain unknown.
  base = np.asarray(model.hidden(params, tokens, valid), np.float64) / weight
  got = np.asarray(got, np.float64) / weight
  # base = x / |x| and got = (x + v) / |x + v|, so v is a combination of both.
  for a, b in zip(base[0], got[0]):
    mix, *_ = np.linalg.lstsq(np.stack([a, b], 1), np.asarray(v[0]), rcond=None)
    np.testing.assert_allclose(np.stack([a, b], 1) @ mix, v[0], atol=1e-4)
    assert mix[1] > 0 > mix[0]
  assert eps < 1e-5


def learner(settings=None):
  c = config_lib.default()
  c.steering = True
  c = config_lib.read(c).trained_paths
  section = config_lib.Optimizer(lr=0.1, warmup_steps=0)
  return learner_lib.Learner(
    MODEL,
    losses.resolve({'name': 'grpo', 'kl_coef': 0.1} | (settings or {})),
    optim.make(section, 10),
    start=L.P,
    trainable=c,
  )


def test_only_vectors_are_trained_and_sampler_equals_trainer():
  """A fused step changes only the vectors, and the reference is the model
  without them.
  """
  lr = learner()
  params = PARAMS | {steering.KEY: VECTORS}
  state = learner_lib.init_state(lr, params)
  assert state.ref_params is None
  assert trees.n_params(state.opt_state) <= 2 * VECTORS.size + 5
  gen = dataclasses.replace(L.GEN, model=MODEL)
  source = FusedSource(gen, L.REWARD)
  run = jax.jit(lambda s, p: L.fused(lr, s, p, source))
  new, metrics = run(state, L.prompts())
  before, now = trees.flatten(params), trees.flatten(new.params)
  moved = {p for p in before if np.any(before[p] != now[p])}
  assert moved == {'steering'}
  assert np.all(np.any(new.params[steering.KEY] != VECTORS, axis=1))
  assert metrics['gap_max'] < 1e-5 and metrics['kl'] > 1e-3


def test_steering_with_adapters_and_int8():
  """All three at once: trained as sampled, the reference without both."""
  model = adapters.attach(
    BASE,
    lora=lora.Lora(2, 4.0, targets='.*attn/q'),
    steering=True,
    frozen_dtype='int8',
    trainable='lora/.*|steering',
  )
  params = jax.jit(lambda k: frozen.init(model.specs, k))(jax.random.key(2))
  params = jax.tree.map(
    lambda x: x if x.dtype == jnp.int8 else x + 0.1 * jnp.cos(x), params
  )
  lr = learner()
  lr = dataclasses.replace(lr, model=model, trainable='lora/.*|steering')
  state = learner_lib.init_state(lr, params)
  gen = dataclasses.replace(L.GEN, model=model)
  out = jax.jit(lambda params: L.sample(params, L.prompts(), gen))(params)
  batch = L.batch_of(L.prompts(), out, L.varied())
  new, metrics = jax.jit(lambda s, b: step.update(lr, s, b, NEUTRAL, L.ROOT))(
    state, batch
  )
  assert metrics['gap_max'] < 1e-5
  before, now = trees.flatten(params), trees.flatten(new.params)
  moved = {p for p in before if np.any(before[p] != now[p])}
  adapter = 'lora/layers/attn/q/'
  assert moved == {'steering', adapter + 'a', adapter + 'b'}
  assert set(model.adapters_off(params)) == set(PARAMS)


def test_vectors_that_no_bias_can_replace_are_not_folded():
  """These are the output of an MLP before a norm, and experts."""
  for changes in dict(norm_place='post'), dict(experts=2, experts_per_token=1):
    c = dataclasses.replace(CONFIG, **changes)
    with pytest.raises(ValueError, match='norms or experts'):
      steering.folded(PARAMS | {steering.KEY: VECTORS}, c)


@pytest.mark.parametrize('mlp_scales', [(), (1.5, 0.5)])
def test_folded_vectors_equal_with_scaled_residuals(mlp_scales):
  scales = dict(residual_scale=0.4, mlp_scales=mlp_scales)
  c, base, params = small_model(**SHAPE, **scales)
  params |= {steering.KEY: VECTORS}
  tokens, valid = jnp.arange(12).reshape(2, 6), jnp.ones((2, 6), bool)
  want = adapters.attach(base, steering=True).hidden(params, tokens, valid)
  folded, c = steering.folded(params, c)
  got = transformer.build(c).hidden(folded, tokens, valid)
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_without_vectors_the_model_is_unchanged():
  assert adapters.attach(BASE) is BASE
