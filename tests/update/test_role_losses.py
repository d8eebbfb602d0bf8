"""Losses of roles: each objective trains the rows of its role."""

import dataclasses

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from test_step import gradients

from jaxrl_reason import losses, sharding
from jaxrl_reason.run.rl import role_settings
from jaxrl_reason.update import role_losses, scoring
from jaxrl_reason.update import step as step_lib

ROLE = (jnp.arange(L.B * L.G) // L.G % 2).astype(jnp.int8)
SAME = {'name': 'dr_grpo', 'fixed_length': L.C}
NONE = {'advantage': 'reinforce', 'kl_coef': 0.0}


@pytest.fixture(scope='module')
def batch():
  return L.rollout_batch(L.learner()).replace(role=ROLE)


def learner(*settings, **changes):
  roles = tuple((f'r{i}', losses.resolve(s)) for i, s in enumerate(settings))
  return L.learner(SAME, roles=roles, **changes)


def test_roles_with_one_loss_have_that_of_the_run(batch):
  """With divisors of rows; to the rounding of float32 sums."""
  want, whole = gradients(L.learner(SAME))(batch)
  got, metrics = gradients(learner(SAME, SAME))(batch)
  L.assert_close(got, want, rtol=1e-5, atol=1e-6)
  for name in whole:
    want = pytest.approx(float(whole[name]), rel=1e-5, abs=1e-6)
    assert metrics[name] == want, name


@pytest.mark.parametrize('how', sorted(losses.AGGREGATIONS))
def test_micro_batches_change_no_loss_of_a_role(batch, how):
  other = {'name': 'rloo', 'aggregation': how, 'kl_coef': 0.0}
  other |= {'entropy_coef': 0.01}
  whole = gradients(learner(other, SAME))(batch)
  L.assert_close(whole, gradients(learner(other, SAME, micro_batches=4))(batch))


def test_eight_devices_equal_one(batch):
  """Rows of the roles alternate, as those of two players do."""
  batch = batch.replace(role=jnp.arange(L.B * L.G, dtype=jnp.int8) % 2)
  both = learner({'name': 'rloo', 'kl_coef': 0.0}, {'name': 'dapo'})
  want = gradients(both)(batch)
  mesh = sharding.make_mesh((8, 1, 1))
  with jax.set_mesh(mesh):
    got = gradients(both)(sharding.to_global(batch, mesh))
  L.assert_close(got, want)


def test_a_role_without_a_loss_leaves_the_other_as_alone(batch):
  """Up to the share of its rows, which is a factor of the whole loss."""
  rows = jnp.nonzero(ROLE == 1)[0]
  alone = jax.tree.map(lambda x: x[rows], batch)
  dapo = {'name': 'dapo'}
  want, found = gradients(L.learner(dapo))(alone)
  share, silent = len(rows) / len(ROLE), batch.reward * (ROLE == 1)
  got, metrics = gradients(learner(NONE, dapo))(batch.replace(reward=silent))
  L.assert_close(got, jax.tree.map(lambda x: x * share, want), atol=1e-6)
  for name in ('loss', 'entropy'):
    alone = pytest.approx(float(found[name]), abs=1e-6)
    assert metrics[f'role/r1/{name}'] == alone
  assert metrics['role/r0/loss'] == 0


def test_a_loss_of_a_role_reads_no_row_of_another(batch):
  other = batch.replace(reward=jnp.where(ROLE == 0, 9 - batch.reward, 0.0))
  same = batch.replace(reward=jnp.where(ROLE == 0, other.reward, batch.reward))
  both = learner({'name': 'rloo', 'kl_coef': 0.0}, {'name': 'dapo'})
  first, second = (gradients(both)(x)[1] for x in (batch, same))
  assert first['role/r1/loss'] == second['role/r1/loss']
  assert first['role/r0/loss'] != second['role/r0/loss']


@pytest.mark.parametrize('how', sorted(losses.AGGREGATIONS))
def test_a_minibatch_may_have_no_row_of_a_role(batch, how):
  own = {'name': 'rloo', 'aggregation': how, 'kl_coef': 0.0}
  one_role = batch.replace(role=jnp.zeros_like(ROLE))
  got, metrics = gradients(learner(own, own))(one_role)
  L.assert_close(got, gradients(L.learner(own))(batch)[0], atol=1e-6)
  assert metrics['role/r1/loss'] == 0


RATIO = {'name': 'dapo', 'entropy_coef': 0.01}
SUMS = {'name': 'grpo', 'kl_coef': 0.0}


def alone(batch, role):
  """Returns the rows of a role, and their share."""
  rows = jnp.nonzero(batch.role == role)[0]
  own = jax.tree.map(lambda x: x[rows], batch)
  return own, len(rows) / len(batch.role)


def test_the_gradient_is_the_sum_of_those_of_the_roles(batch):
  want = jax.tree.map(jnp.zeros_like, L.model_and_params()[1])
  for i, settings in enumerate((RATIO, SUMS)):
    own, share = alone(batch, i)
    grads, _ = gradients(L.learner(settings))(own)
    want = jax.tree.map(lambda x, y: x + share * y, want, grads)  # noqa: B023
  L.assert_close(gradients(learner(RATIO, SUMS))(batch)[0], want)


def test_updates_may_lack_rows_of_a_role(batch):
  """Two rows have the second role, so at least two of four updates of an epoch
  have none. The metrics of a role are those of updates with its rows, and the
  loss remains the sum over roles.
  """
  batch = batch.replace(role=(jnp.arange(L.B * L.G) < 2).astype(jnp.int8))
  many = learner(RATIO, SUMS, minibatches=4)
  state = L.state(many)
  update = jax.jit(step_lib.update, static_argnums=0)
  got, metrics = update(many, state, batch, L.NEUTRAL, L.ROOT)
  full = scoring.add_arrays(many, state, batch, L.NEUTRAL)
  rows = full, step_lib.advantages(many, full), None
  key = jax.random.split(L.ROOT, 1)[0]
  order = jax.random.permutation(key, len(batch.role))
  one = jax.jit(step_lib._one_update, static_argnums=(0, 2))
  seen = []
  for i in range(4):
    now = jax.tree.map(lambda x: x[order][i::4], rows)  # noqa: B023
    state, found = one(many, L.NEUTRAL, None, state, (now, key))
    own = now[0].role == 1
    tokens = (now[0].mask & own[:, None]).sum() / now[0].mask.sum()
    seen.append({k: float(x) for k, x in found.items()})
    seen[-1] |= {'rows': float(own.mean()), 'tokens': float(tokens)}
  L.assert_close(got.params, state.params)
  assert sum(x['rows'] > 0 for x in seen) in (1, 2)
  seen = {k: np.array([x[k] for x in seen]) for k in seen[0]}
  for name, weight in (('loss', 'rows'), ('entropy', 'tokens')):
    want = np.average(seen[f'role/r1/{name}'], weights=seen[weight])
    assert metrics[f'role/r1/{name}'] == pytest.approx(want, abs=1e-6)
    assert want != 0
  share, of_roles = (
    2 / len(batch.role),
    [metrics[f'role/r{i}/loss'] for i in (0, 1)],
  )
  total = (1 - share) * of_roles[0] + share * of_roles[1]
  assert metrics['loss'] == pytest.approx(float(total), abs=1e-6)
  assert all(np.isfinite(x) for x in metrics.values())


class Least(losses.PPOClip):
  """A loss with a metric that is neither a mean nor a maximum."""

  def metrics(self, arrays, denominators):
    return {'least_min': arrays['logp'].min()}


CORRECTED = {'name': 'dapo', 'correction': 'truncate', 'dual_clip': 3.0}
ALL = {k: losses.resolve(k) for k in losses.PRESETS}
ALL['corrected'] = losses.resolve(CORRECTED | {'kl_coef': 0.1})
ALL['own'] = dataclasses.replace(ALL['dapo'], policy=Least())
ALL = {k: x for k, x in ALL.items() if x.needs <= role_settings.READABLE}


@pytest.mark.parametrize('name', ALL)
def test_metrics_of_two_roles_are_those_of_all_rows(name):
  """The loss is the sum over roles, which is not that of all rows."""
  o, rng, shape = ALL[name], np.random.default_rng(0), (12, 7)
  mask = np.arange(7) < rng.integers(1, 8, (12, 1))
  mask[:5] &= np.arange(7) < 3
  logp = rng.uniform(-3, -0.1, shape)
  near = [logp + rng.normal(0, 0.5, shape) for _ in range(3)]
  given = dict(zip(('old_logp', 'sampler_logp', 'ref_logp'), near))
  given['entropy'] = -logp
  adv, role = rng.normal(size=12) * (np.arange(12) % 3 > 0), np.arange(12) >= 5
  of_sums = {k: given[k] for k in ('old_logp', 'sampler_logp')}

  given |= {'logp': logp, 'adv': adv}
  sums = losses.denominators(o, mask, **of_sums)
  _, want = losses.policy_loss(o, mask=mask, **given, denominators=sums)
  rows = (('a', o), ('b', o)), role, mask
  sums = role_losses.denominators(*rows, **of_sums)
  loss, got = role_losses.policy_loss(*rows, **given, denominators=sums)
  apart = {'loss', 'pg_loss', 'least_min'}
  assert want.keys() - got.keys() <= {'least_min'}
  for k in want.keys() - apart:
    assert got[k] == pytest.approx(float(want[k]), rel=1e-5, abs=1e-6), k
  shares = 5 / 12, 7 / 12
  total = sum(s * got[f'role/{x}/loss'] for s, x in zip(shares, 'ab'))
  assert loss == got['loss'] == pytest.approx(float(total), rel=1e-5)
  if name == 'own':
    lows = [got[f'role/{x}/least_min'] for x in 'ab']
    assert min(lows) == want['least_min']
