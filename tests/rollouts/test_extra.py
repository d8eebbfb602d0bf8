"""Additional samples for some problems: their selection and their use."""

import itertools

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason.rollouts import extra
from jaxrl_reason.rollouts.rounds import RoundsSource

G = 4
RATES = np.array([0.1, 0.3, 0.5, 0.9])


def shares(by: str, n_groups: int, rates=RATES) -> np.ndarray:
  """Returns the number of additional groups of each problem."""
  at = extra.allocated(jnp.float32(rates), n_groups, G, extra.GAINS[by])
  return np.bincount(at, minlength=len(rates))


@pytest.mark.parametrize('n_groups', range(1, 7))
def test_the_knapsack_is_solved(n_groups):
  """No other allocation of groups has a larger value."""

  def value(extra_groups):
    n = G * (1 + np.array(extra_groups))
    chance = 1 - RATES**n - (1 - RATES) ** n
    return np.sum(chance * RATES * (1 - RATES) ** 2)

  every = (
    x
    for x in itertools.product(range(n_groups + 1), repeat=len(RATES))
    if sum(x) == n_groups
  )
  best = max(value(x) for x in every)
  np.testing.assert_allclose(
    value(shares('knapsack', n_groups)), best, rtol=1e-5
  )


def test_hard_problems_get_more_in_proportion():
  """Totals, with the first G, are proportional to 1 - s, up to one group."""
  got = shares('hard', 60)
  want = (1 - RATES) / np.sum(1 - RATES) * 64
  assert np.all(np.abs(G * (1 + got) / G - want) <= 1)
  assert got.sum() == 60


def test_rates_leave_failed_verifications_out():
  found = L.Trajectories(
    L.prompts(n=2), L.sample(L.model_and_params()[1], L.prompts(n=2)), None
  )
  parts = jnp.float32([1, 1, 0, 0, 1, 1, 1, 0])[:, None]
  ok = jnp.array([1, 0, 1, 1, 0, 0, 0, 0], bool)
  reward = L.Reward(parts[:, 0], parts, ok)
  rates = extra.solve_rates(found.replace(reward=reward))
  np.testing.assert_allclose(rates, [2 / 5, 1 / 2])


def test_the_samples_of_a_problem_share_a_baseline():
  state = L.state(L.learner())
  source = RoundsSource(L.SOURCE, extra.Extra(8, 'hard'))
  found = jax.jit(
    lambda p: source(state.params, None, p, L.ROOT, 0, L.NEUTRAL, L.STOP)
  )(L.prompts())
  batch = batch_lib.make_batch(found)
  assert batch.tokens.shape[0] == (L.B + 8) * L.G
  # Rows of a group have the prompt of its number.
  whole = batch_lib.make_batch(
    jax.jit(
      lambda p: L.SOURCE(state.params, None, p, L.ROOT, 0, L.NEUTRAL, L.STOP)
    )(L.prompts())
  )
  most = np.bincount(np.asarray(found.group)).max()
  assert found.account.metrics['extra/groups_max'] == most >= 2
  first = L.B * L.G
  np.testing.assert_array_equal(batch.tokens[:first], whole.tokens)
  of = {int(g): whole.tokens[i, : L.P] for i, g in enumerate(whole.group)}
  for i, g in enumerate(np.asarray(batch.group)):
    np.testing.assert_array_equal(batch.tokens[i, : L.P], of[int(g)])
  # They differ from the first samples.
  again = [i for i in range(first, len(batch.group))]
  firsts = {
    (int(whole.group[i]), tuple(np.asarray(whole.tokens[i])))
    for i in range(first)
  }
  new = {
    (int(batch.group[i]), tuple(np.asarray(batch.tokens[i]))) for i in again
  }
  assert len(new - firsts) > len(new) / 2
  # A learner accepts the batch in any order of rows.
  step = jax.jit(lambda s, p: L.fused(L.learner(), s, p, source))
  _, metrics = step(state, L.prompts())
  assert np.isfinite(metrics['loss']) and metrics['extra/groups_max'] == most
