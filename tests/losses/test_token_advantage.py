"""Advantages per token equal the NumPy twin and numbers by hand, with holes."""

import jax
import jax.numpy as jnp
import losses_twin as twin
import numpy as np
import pytest
from losses_batch import Compiled, close, edge_batch, run_in

from jaxrl_reason import losses as library

losses = Compiled(library)


def test_returns_by_hand():
  """A reward of 8 on the last token is halved per token, without the hole."""
  mask = jnp.array([[1, 1, 0, 1, 0]])
  got = losses.returns(jnp.array([8.0]), mask, gamma=0.5)
  close(got, [[2, 4, 0, 8, 0]], 1e-6)
  process = jnp.array([[1.0, 0, jnp.nan, 0, jnp.nan]])
  got = losses.returns(
    jnp.array([8.0]), mask, process_reward=process, gamma=0.5
  )
  close(got, [[3, 4, 0, 8, 0]], 1e-6)


def test_gae_by_hand():
  """V = (1, 2), R = 4, gamma 1, lambda 1/2: so delta = (1, 2), A = (2, 2)."""
  values = jnp.array([[1.0, jnp.nan, 2.0]])
  mask = jnp.array([[1, 0, 1]])
  got = losses.gae(jnp.array([4.0]), values, mask, gae_lambda=0.5)
  close(got, [[2, 0, 2]], 1e-6)
  targets = losses.value_targets(jnp.array([4.0]), values, mask)
  close(targets, [[4, 0, 4]], 1e-6)  # lambda 1: the plain return


@pytest.mark.parametrize('bits', [32, 64])
def test_returns_and_gae_against_the_twin(bits):
  b = edge_batch()
  mask, valid = b['mask'], b['valid']
  rng = np.random.default_rng(0)
  values = np.float64(np.float32(rng.normal(size=mask.shape)))
  poisoned = np.where(mask, values, np.nan)

  def run(dtype):
    args = dict(valid=valid, gamma=0.9)
    reward = jnp.asarray(b['reward'], dtype)
    v = jnp.asarray(poisoned, dtype)
    return (
      losses.returns(reward, mask, **args),
      losses.gae(reward, v, mask, gae_lambda=0.7, **args),
      losses.gae(reward, v, mask, lambda_alpha=0.5, **args),
      losses.value_targets(reward, v, mask, value_lambda=0.8, **args),
    )

  ours, rtol = run_in(bits, lambda dtype: jax.jit(lambda: run(dtype))())
  r = twin.outcome_on_last(b['reward'], mask, valid)
  length = np.maximum(mask.sum(1), 1)
  adaptive = np.clip(1 - 1 / (0.5 * length), 0, 1)
  row_ok = (mask & valid[:, None]).astype(float)

  def gae(lam):
    return twin.gae(r, values, mask, 0.9, lam) * row_ok

  ones = np.ones(len(length))
  close(ours[0], twin.returns(r, mask, 0.9), rtol)
  close(ours[1], gae(0.7 * ones), rtol)
  close(ours[2], gae(adaptive), rtol)
  targets = np.where(mask, gae(0.8 * ones) + values, 0)
  close(ours[3], targets, rtol)


def test_reinforce_pp_charges_kl_on_every_token():
  s = library.resolve(
    {'name': 'reinforce_pp', 'whiten': 'none', 'kl_coef': 0.5}
  )
  mask = jnp.array([[1, 1, 0]])
  old, ref = jnp.array([[-1.0, -2, jnp.nan]]), jnp.array([[-1.5, -1, jnp.nan]])
  adv = losses.advantages(
    s,
    jnp.array([3.0]),
    jnp.zeros(1, int),
    mask=mask,
    old_logp=old,
    ref_logp=ref,
  )
  # KL 0.5 and -1: rewards -0.25 and 3 + 0.5.
  close(adv, [[3.25, 3.5, 0]], 1e-6)


def test_prime_by_hand():
  """Two rows have mean process rewards 2 and 3, and outcomes 1 and 0."""
  process = jnp.array([[1.0, 3.0], [3.0, jnp.nan]])
  mask = jnp.array([[1, 1], [1, 0]])
  adv = losses.prime(jnp.array([1.0, 0.0]), jnp.zeros(2, int), process, mask)
  # Row 0: (1 - 3) + (3 - 3) + 1, (3 - 3) + 1; row 1: (3 - 2) - 1.
  close(adv, [[-1, 1], [0, 0]], 1e-6)
  implicit = losses.implicit_reward(
    jnp.array([[-1.0, jnp.nan]]),
    jnp.array([[-3.0, jnp.nan]]),
    jnp.array([[1, 0]]),
    prm_beta=0.05,
  )
  close(implicit, [[0.1, 0]], 1e-6)


def test_turn_rewards_by_hand():
  """Row 0 has two turns, row 1 has one; the last turn has the outcome."""
  nan = jnp.nan
  turn = jnp.array([[1.0, 2.0], [0.0, nan]])
  ids = jnp.array([[0, 0, 1, -1], [0, 0, 0, 5]])
  mask = jnp.array([[1, 0, 1, 1], [1, 1, 1, 1]])
  reward, group = jnp.array([10.0, 4.0]), jnp.zeros(2, int)
  adv = losses.segments(
    reward, group, turn, ids, mask, segment_gamma=0.5, segment_baseline='none'
  )
  # Turn 1 of row 0: 12; turn 0: 1 + 6 = 7; row 1: 4.
  close(adv, [[7, 0, 12, 0], [4, 4, 4, 0]], 1e-6)
  adv = losses.segments(reward, group, turn, ids, mask, segment_gamma=0.5)
  # Turn 0: 7 and 4 around 5.5; turn 1 is alone.
  close(adv, [[1.5, 0, 0, 0], [-1.5, -1.5, -1.5, 0]], 1e-6)


def _turns_of_leaves():
  """Two trees of a problem: tree a forks after its first turn to leaves 0 and
  1, and tree b to leaves 2 and 3. Returns the arguments of `segments`.
  """
  turn = jnp.array([[1.0, 4.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
  ids = jnp.broadcast_to(jnp.array([0, 0, 1, -1]), (4, 4))
  mask = jnp.array([[1, 0, 1, 0]] * 4)
  node = jnp.array([[1, 1, 2, 0], [1, 1, 3, 0], [5, 5, 6, 0], [5, 5, 7, 0]])
  return jnp.zeros(4), jnp.zeros(4, int), turn, ids, mask, node


def test_turns_in_a_tree_are_compared_with_their_siblings():
  """A first turn has the mean return of its leaves, 3 and 1, compared with the
  other tree. A second turn is compared with its sibling alone.
  """
  *given, node = _turns_of_leaves()
  adv = losses.segments(*given, node_ids=node)
  want = [[1, 0, 2, 0], [1, 0, -2, 0], [-1, 0, 0, 0], [-1, 0, 0, 0]]
  close(adv, want, 1e-6)
  settings = dict(segment_baseline='group_zscore', eps=0.0)
  half = 1 / 2**0.5  # two siblings, whatever the number of their leaves
  adv = losses.segments(*given, node_ids=node, **settings)
  want = [[half, 0, half, 0], [half, 0, -half, 0]]
  close(adv, [*want, [-half, 0, 0, 0], [-half, 0, 0, 0]], 1e-6)
  adv = losses.segments(*given, node_ids=node, segment_gamma=0.0)
  close(adv[:, 0], [0.5, 0.5, -0.5, -0.5], 1e-6)


def test_an_invalid_leaf_counts_for_no_node():
  *given, node = _turns_of_leaves()
  valid = jnp.array([0, 1, 1, 1])
  adv = losses.segments(*given, node_ids=node, valid=valid)
  # Both first turns have a mean return of 1.
  close(adv, jnp.zeros((4, 4)), 1e-6)


def test_rows_that_share_no_turn_are_compared_as_without_a_tree():
  nan = jnp.nan
  r = np.random.default_rng(0)
  turn = jnp.asarray(r.normal(size=(6, 3)))
  turn = turn.at[1, 2].set(nan).at[2, 1:].set(nan).at[4, 0].set(nan)
  ids = jnp.broadcast_to(jnp.array([0, 1, 1, 2]), (6, 4))
  # A player who waits in the last turn has its reward, but no token there.
  ids = ids.at[0, 3].set(1).at[5, 3].set(1)
  group = jnp.array([3, 3, 3, 8, 8, 8])
  given = jnp.asarray(r.normal(size=6)), group, turn, ids, jnp.ones((6, 4))
  node = jnp.broadcast_to(jnp.arange(1, 7)[:, None], (6, 4))
  node = node.at[4, 0].set(0)
  for baseline in ('none', 'group_mean', 'group_zscore'):
    how = dict(segment_baseline=baseline)
    want = losses.segments(*given, **how)
    np.testing.assert_array_equal(
      losses.segments(*given, node_ids=node, **how), want
    )


def test_tree_by_hand():
  """The root r has children a (leaves 0, 1) and b (leaf 2); rewards 1, 0, 0."""
  node = jnp.array([[7, 7, 1], [7, 7, 2], [9, 3, 3]])
  mask = jnp.array([[1, 1, 1], [1, 1, 1], [1, 1, 0]])
  reward, group = jnp.array([1.0, 0.0, 0.0]), jnp.full(3, 4)
  both = losses.tree(reward, group, node, mask)
  root, a = 1 / 3, 1 / 2
  shared = 2 * (a - root) / 2**0.5
  want = [
    [shared, shared, (1 - root) + (1 - a)],
    [shared, shared, (0 - root) + (0 - a)],
    [2 * (0 - root), (0 - root) + 0, 0],
  ]
  close(both, want, 1e-5)
  local = losses.tree(
    reward, group, node, mask, tree_global=0.0, tree_power=0.0
  )
  close(local[0], [a - root, a - root, 1 - a], 1e-5)
  dead = losses.tree(jnp.full(3, 0.1), group, node, mask)
  assert not np.any(dead)


def test_under_jit_and_vmap():
  b = edge_batch()
  reward = jnp.nan_to_num(jnp.float32(b['reward']))

  def fn(r):
    return losses.returns(r, b['mask'], gamma=0.9)

  stacked = jax.jit(jax.vmap(fn))(jnp.stack([reward, 2 * reward]))
  close(stacked[1], 2 * np.float64(fn(reward)), 1e-5)
