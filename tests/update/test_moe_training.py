"""A mixture of experts in the trainer: replayed routes, and load balance in the
loss.
"""

import dataclasses

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
import tiny_recipe
from etils import epath
from run import test_rollout
from small import small_model

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding
from jaxrl_reason.config import rules
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models.parts import moe
from jaxrl_reason.rollouts.fused import FusedSource
from jaxrl_reason.run import prepare, stages
from jaxrl_reason.run.checks import config_checks
from jaxrl_reason.run.rl import programs
from jaxrl_reason.run.rl.generation_settings import generation
from jaxrl_reason.update import learner as learner_lib
from jaxrl_reason.update import scoring
from jaxrl_reason.update import step as step_lib

E = 4
SHAPE = dict(vocab=24, kv_heads=4, tied=False, layers=2, mlp=8)
_, MODEL, PARAMS = small_model(experts=E, experts_per_token=1, **SHAPE)
NEUTRAL = Sampling.make()
GEN = dataclasses.replace(L.GEN, model=MODEL)
REPLAY = dataclasses.replace(GEN, routes=True)


def learner(settings=None, **changes) -> learner_lib.Learner:
  return dataclasses.replace(L.learner(settings), model=MODEL, **changes)


def state(learner):
  return learner_lib.init_state(learner, PARAMS)


def tied(winner: int):
  """Returns parameters with experts 0 and 1, and 2 and 3, tied to 2e-7.
  `winner` (0 or 1) determines the side of each near-tie.
  """
  router = np.array(PARAMS['layers']['mlp']['router'])  # [L,D,E]
  router[..., 1::2] = router[..., ::2]
  router[..., winner::2] += 2e-7
  mlp = PARAMS['layers']['mlp'] | {'router': jnp.asarray(router)}
  return PARAMS | {'layers': PARAMS['layers'] | {'mlp': mlp}}


def sampled(gen, params, p=None):
  p = L.prompts() if p is None else p
  out = jax.jit(lambda params: L.sample(params, p, gen))(params)
  return L.batch_of(p, out, L.varied())


@pytest.fixture(scope='module')
def batch():
  return sampled(REPLAY, tied(0))


def gradients(learner, params, batch):
  """Returns (gradient, metrics), with advantages."""

  @jax.jit
  def f(params, batch):
    adv = step_lib.advantages(learner, batch)
    return step_lib.gradients(learner, params, batch, adv, NEUTRAL)

  return f(params, batch)


def test_replayed_log_probs_equal_the_samplers_where_routers_tie(batch):
  """The trainer's router would choose the other expert, because of rounding."""
  params = tied(1)
  _, own = gradients(learner(), params, batch.replace(routes=None))
  _, replayed = gradients(learner(micro_batches=2), params, batch)
  assert own['gap_max'] > 0.1
  assert replayed['gap_max'] < 1e-5
  # A byte per use, in the order of the batch's tokens.
  assert batch.routes.dtype == jnp.int8
  assert batch.routes.shape == (*batch.tokens.shape, 2, 1)


def test_old_log_probs_are_replayed_too_and_the_reference_is_not(batch):
  lr = learner({'kl_coef': 0.1}, epochs=2)
  at = learner_lib.init_state(lr, tied(1))
  add = jax.jit(lambda s, b: scoring.add_arrays(lr, s, b, NEUTRAL))
  got = add(at, batch)
  gap = jnp.where(batch.mask, jnp.abs(got.old_logp - batch.sampler_logp), 0)
  assert gap.max() < 1e-5
  own = add(at, batch.replace(routes=None))
  np.testing.assert_array_equal(got.ref_logp, own.ref_logp)
  assert jnp.abs(got.old_logp - own.old_logp).max() > 0.1


def test_tokens_that_were_not_sampled_use_the_router(batch):
  """UNKNOWN selects the router: for all routes, or for a row."""
  unknown = batch.replace(routes=jnp.full_like(batch.routes, moe.UNKNOWN))
  _, want = gradients(learner(), tied(1), batch.replace(routes=None))
  _, got = gradients(learner(), tied(1), unknown)
  L.assert_close(got, want)
  p = L.prompts()
  p = p.replace(
    demo=np.ones((L.B, L.C), np.int32), demo_length=np.full(L.B, 3, np.int32)
  )
  mixed = sampled(dataclasses.replace(REPLAY, demos=1), PARAMS, p)
  routes = np.asarray(mixed.routes).reshape(L.B, L.G, -1)
  assert (routes[:, -1] == moe.UNKNOWN).all()
  assert (routes[:, :-1, : L.P] != moe.UNKNOWN).all()
  hinted = p.replace(train_tokens=p.tokens[::-1], train_valid=p.valid[::-1])
  routes = np.asarray(sampled(REPLAY, PARAMS, hinted).routes)
  assert (routes[:, : L.P] == moe.UNKNOWN).all()
  assert (routes[:, L.P] != moe.UNKNOWN).all()


def test_the_balance_adds_its_own_gradient(batch):
  """The term is the mean balance of micro-batches, times the coefficient."""
  coef, pieces = 0.5, 2
  plain = learner(micro_batches=pieces)
  grads, metrics = gradients(plain, PARAMS, batch)
  balanced = dataclasses.replace(plain, balance_coef=coef)
  got, more = gradients(balanced, PARAMS, batch)

  @jax.jit
  def balance(params):
    whole = 0.0
    for i in range(pieces):
      b = jax.tree.map(lambda x: x[i::pieces], batch)  # noqa: B023
      aux = MODEL.hidden_routed(params, b.tokens, b.valid, b.routes)[1]
      whole += aux['load_balance'] / pieces
    return whole

  value, extra = jax.value_and_grad(balance)(PARAMS)
  L.assert_close(got, jax.tree.map(lambda a, b: a + coef * b, grads, extra))
  assert np.abs(extra['layers']['mlp']['router']).max() > 1e-3
  np.testing.assert_allclose(more['load_balance'], value, rtol=1e-5)
  np.testing.assert_allclose(metrics['load_balance'], value, rtol=1e-5)
  np.testing.assert_allclose(
    more['loss'], metrics['loss'] + coef * value, rtol=1e-5
  )
  np.testing.assert_allclose(more['pg_loss'], metrics['pg_loss'], rtol=1e-5)


def test_the_balance_costs_no_second_forward(batch):
  """Its program multiplies as many experts as the one without balance."""

  def products(coef):
    lr = learner(balance_coef=coef)
    adv = jnp.ones(L.B * L.G)

    def f(p, b):
      return step_lib.gradients(lr, p, b, adv, NEUTRAL)

    return str(jax.make_jaxpr(f)(PARAMS, batch)).count('= ragged_dot')

  assert products(0.5) == products(0.0) > 0


def step(learner, gen):
  source = FusedSource(gen, L.REWARD)
  return lambda state, prompts: L.fused(learner, state, prompts, source)


@pytest.mark.parametrize('gen', [GEN, REPLAY], ids=['own', 'replayed'])
def test_a_fused_step_trains_and_is_the_same_split_by_expert(gen):
  lr = learner({'kl_coef': 0.05}, balance_coef=0.01)
  want, m1 = jax.jit(step(lr, gen))(state(lr), L.prompts())
  moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), want.params, PARAMS)
  assert min(moved['layers']['mlp'].values()) > 0
  mesh = sharding.make_mesh((1, 4, 2))
  where = sharding.shardings(MODEL.specs, mesh, sharding.TRAIN_RULES)
  where = sharding.state_shardings(state(lr), where, mesh)
  with jax.set_mesh(mesh):
    start = jax.tree.map(
      lambda x, s: jax.device_put(np.asarray(x), s), state(lr), where
    )
    rows = sharding.to_global(L.prompts(), mesh)
    got, m8 = programs.updating(step(lr, gen), 0, where)(start, rows)
  L.assert_close(m8, m1, rtol=1e-3, atol=1e-5)
  L.assert_close(got, want, rtol=1e-3, atol=1e-5)
  up = got.params['layers']['mlp']['up']
  assert up.sharding.shard_shape(up.shape) == (2, 1, 16, 4)


def test_the_host_path_replays_the_same():
  lr = learner(epochs=2)
  want, expected = jax.jit(step(lr, REPLAY))(state(lr), L.prompts())
  host, _ = test_rollout.host_step(lr, parts=2, gen=REPLAY)
  start = jax.tree.map(jnp.copy, state(lr))  # it is donated
  got, metrics, _, _ = host(start)
  L.assert_close(got, want, rtol=1e-3, atol=1e-5)
  # The rewards of this pool extract no answer.
  assert metrics.pop('answer_entropy') == 0 < expected.pop('answer_entropy')
  L.assert_close(metrics, expected, rtol=1e-3, atol=1e-5)


def test_a_stage_trains_by_its_config(tmp_path):
  config = tiny_recipe.get_config()
  config.model.update(experts=E, experts_per_token=1)
  config.sft.balance_coef, config.rl.balance_coef = 0.25, 0.5
  config.compile_cache = ''
  config.rl.prompts = 8
  config = config_lib.read(config)
  model = prepare.prepare(config, epath.Path(tmp_path)).model
  coefs = {
    s: stages.learner(config, model, s).balance_coef for s in config.stages
  }
  assert coefs == {'pretrain': 0.0, 'sft': 0.25, 'rl': 0.5}
  assert not generation(config.rl, config.data, model, None).routes
  config = config.changed({'rl.replay_routes': True})
  assert generation(config.rl, config.data, model, None).routes


@pytest.mark.parametrize(
  ('key', 'value'),
  [('rl.replay_routes', True), ('rl.balance_coef', 0.1)]
  + [('sft.balance_coef', 0.1)],
)
def test_settings_of_experts_are_refused_without_any(key, value):
  config = config_lib.default()
  config.update_from_flattened_dict({key: value})
  run = config_lib.read(config)
  given = {'sft': run.sft, 'rl': run.rl}, run.rl.replay_routes
  with pytest.raises(ValueError, match=f'{key}={value}: .* no experts'):
    rules.refuse(config_checks.expert_rules, *given, 0)
  rules.refuse(config_checks.expert_rules, *given, 4)
