"""Losses of roles: each objective trains the rows of its role."""

import jax
import jax.numpy as jnp
import learning as L
import pytest
from test_step import gradients

from jaxrl_reason import losses

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
  want, whole = gradients(L.learner(SAME), batch)
  got, metrics = gradients(learner(SAME, SAME), batch)
  L.assert_close(got, want, rtol=1e-5, atol=1e-6)
  for name in whole:
    want = pytest.approx(float(whole[name]), rel=1e-5, abs=1e-6)
    assert metrics[name] == want, name


@pytest.mark.parametrize('how', sorted(losses.AGGREGATIONS))
def test_micro_batches_change_no_loss_of_a_role(batch, how):
  other = {'name': 'rloo', 'aggregation': how, 'kl_coef': 0.0}
  other |= {'entropy_coef': 0.01}
  whole = gradients(learner(other, SAME), batch)
  L.assert_close(whole, gradients(learner(other, SAME, micro_batches=4), batch))


def test_a_role_without_a_loss_leaves_the_other_as_alone(batch):
  """Up to the share of its rows, which is a factor of the whole loss."""
  rows = jnp.nonzero(ROLE == 1)[0]
  alone = jax.tree.map(lambda x: x[rows], batch)
  dapo = {'name': 'dapo'}
  want, found = gradients(L.learner(dapo), alone)
  share, silent = len(rows) / len(ROLE), batch.reward * (ROLE == 1)
  got, metrics = gradients(learner(NONE, dapo), batch.replace(reward=silent))
  L.assert_close(got, jax.tree.map(lambda x: x * share, want), atol=1e-6)
  for name in ('loss', 'entropy'):
    alone = pytest.approx(float(found[name]), abs=1e-6)
    assert metrics[f'role/r1/{name}'] == alone
  assert metrics['role/r0/loss'] == 0


def test_a_loss_of_a_role_reads_no_row_of_another(batch):
  other = batch.replace(reward=jnp.where(ROLE == 0, 9 - batch.reward, 0.0))
  same = batch.replace(reward=jnp.where(ROLE == 0, other.reward, batch.reward))
  both = learner({'name': 'rloo', 'kl_coef': 0.0}, {'name': 'dapo'})
  first, second = (gradients(both, x)[1] for x in (batch, same))
  assert first['role/r1/loss'] == second['role/r1/loss']
  assert first['role/r0/loss'] != second['role/r0/loss']


@pytest.mark.parametrize('how', sorted(losses.AGGREGATIONS))
def test_a_minibatch_may_have_no_row_of_a_role(batch, how):
  own = {'name': 'rloo', 'aggregation': how, 'kl_coef': 0.0}
  one_role = batch.replace(role=jnp.zeros_like(ROLE))
  got, metrics = gradients(learner(own, own), one_role)
  L.assert_close(got, gradients(L.learner(own), batch)[0], atol=1e-6)
  assert metrics['role/r1/loss'] == 0
