"""Every filter equals its definition, over all groups of small numbers."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason.base import Batch
from jaxrl_reason.rollouts import filters

G, C = 4, 3
# All groups of 4 rewards with 3 values, and lengths that differ in a group.
REWARDS = np.array(list(itertools.product([0.0, 0.25, 1.0], repeat=G)))
LENGTHS = np.array([[1 + (i + 2 * j) % C for j in range(G)] for i in range(81)])
VALID = np.array([[(i + j) % 7 > 0 for j in range(G)] for i in range(81)])


def batch(valid=None, order=None) -> Batch:
  """Returns all groups in one batch, with the rows in `order`, int [N]."""
  n = REWARDS.size
  ok = np.ones(n, bool) if valid is None else valid.reshape(-1)
  reward = REWARDS.reshape(-1)
  mask = np.arange(C) < LENGTHS.reshape(-1)[:, None]
  rows = Batch(
    tokens=jnp.zeros((n, C), jnp.int32),
    valid=jnp.asarray(mask),
    mask=jnp.asarray(mask),
    reward=jnp.float32(np.where(ok, reward, np.nan)),
    reward_parts=jnp.float32(reward)[:, None],
    reward_valid=jnp.asarray(ok),
    group=jnp.arange(n) // G,
    truncated=jnp.zeros(n, bool),
    temperature=jnp.ones(n),
    sampler_logp=jnp.zeros((n, C)),
  )
  return rows if order is None else jax.tree.map(lambda x: x[order], rows)


def kept(name, valid=None, **args):
  """Returns (rows kept, rows in baselines), bool [81,G]."""
  got = jax.jit(filters.make(name, args))(batch(valid))
  rows = np.asarray(got.mask).any(axis=1)
  return rows.reshape(-1, G), np.asarray(got.reward_valid).reshape(-1, G)


def by_group(rule, valid=None):
  """Applies rule(rewards, lengths of the rows with a verdict) -> bool to each
  group.
  """
  ok = np.ones(REWARDS.shape, bool) if valid is None else valid
  return np.array(
    [rule(r[v], n[v]) for r, n, v in zip(REWARDS, LENGTHS, ok)], bool
  )


@pytest.mark.parametrize('valid', [None, VALID], ids=['all', 'some_invalid'])
@pytest.mark.parametrize(
  'name, args, rule',
  [
    ('dead_groups', {}, lambda r, n: np.ptp(r) > 0),
    ('spread', {'spread': 0.75}, lambda r, n: np.ptp(r) >= 0.75),
    (
      'band',
      {'low': 0.25, 'high': 0.5},
      lambda r, n: 0.25 <= (r > 0.5).mean() <= 0.5,
    ),
  ],
)
def test_filters_of_groups(name, args, rule, valid):
  rows, baseline = kept(name, valid, **args)
  want = by_group(rule, valid)
  np.testing.assert_array_equal(rows, np.repeat(want[:, None], G, axis=1))
  ok = np.ones(REWARDS.shape, bool) if valid is None else valid
  np.testing.assert_array_equal(baseline, ok)  # baselines stay as they were
  assert 0 < want.sum() < len(want)


def test_random_groups_do_not_depend_on_rewards():
  """A share of the groups remains, and other tokens keep other groups. A second
  pass drops no group. Rewards and the order of rows do not change a draw.
  """
  keep = filters.make('random', {'share': 0.4})
  tokens = jax.random.randint(jax.random.key(1), (REWARDS.size, C), 0, 9)
  rows = batch(VALID).replace(tokens=tokens)
  got = keep(rows)
  chosen = np.asarray(got.mask.any(axis=1)).reshape(-1, G)
  assert np.all(chosen == chosen[:, :1])
  n = len(REWARDS)
  assert abs(chosen[:, 0].mean() - 0.4) < 3 * (0.4 * 0.6 / n) ** 0.5
  np.testing.assert_array_equal(got.mask, keep(got).mask)
  np.testing.assert_array_equal(got.reward_valid, rows.reward_valid)
  other = rows.replace(reward=1 - rows.reward)
  np.testing.assert_array_equal(got.mask, keep(other).mask)
  order = np.random.default_rng(0).permutation(REWARDS.size)
  mixed = jax.tree.map(lambda x: x[order], rows)
  np.testing.assert_array_equal(got.mask[order], keep(mixed).mask)
  assert np.any(got.mask != keep(rows.replace(tokens=tokens + 1)).mask)
  more = filters.make('random', {'share': 0.7})(rows)
  assert np.all(more.mask | ~got.mask) and more.mask.sum() > got.mask.sum()


def test_a_share_on_the_edge_of_the_band_is_inside():
  """A share of 3 of 10 is exactly 0.3, also in float32."""
  for n, edge in ((10, 0.3), (6, 1 / 3), (7, 3 / 7)):
    right = jnp.arange(n) < round(edge * n)
    rows = jax.tree.map(lambda x: x[:n], batch())  # noqa: B023
    rows = rows.replace(
      group=jnp.zeros(n, jnp.int32), reward_parts=jnp.float32(right)[:, None]
    )
    for low, high in ((edge, 1.0), (0.0, edge)):
      got = filters.keep_band(rows, low=low, high=high)
      assert np.any(got.mask), (n, edge, low, high)


def test_rewards_that_differ_by_the_spread_are_kept():
  """0.7 - 0.6 is 0.1, and less than that in float32."""
  for low, high, spread in ((0.6, 0.7, 0.1), (0.1, 0.7, 0.6), (0.7, 0.9, 0.2)):
    rows = jax.tree.map(lambda x: x[:2], batch())
    rows = rows.replace(
      group=jnp.zeros(2, jnp.int32), reward=jnp.float32([low, high])
    )
    kept = filters.keep_spread(rows, spread=spread)
    assert np.any(kept.mask), (low, high)
    kept = filters.keep_spread(rows, spread=spread + 0.001)
    assert not np.any(kept.mask), (low, high)


@pytest.mark.parametrize('valid', [None, VALID], ids=['all', 'some_invalid'])
@pytest.mark.parametrize(
  'name, value',
  [
    ('shortest', lambda r, n: n),
    ('efficient', lambda r, n: -r / n),
    ('best', lambda r, n: -r),
  ],
)
def test_the_first_k_of_a_group(name, value, valid):
  rows, baseline = kept(name, valid, keep=2)
  ok = np.ones(REWARDS.shape, bool) if valid is None else valid
  np.testing.assert_array_equal(baseline, rows & ok)
  for r, n, v, got in zip(REWARDS, LENGTHS, ok, baseline):
    costs = np.float32(value(np.float32(r), np.float32(n)))
    assert got.sum() == min(2, v.sum()) and not np.any(got & ~v)
    assert max(costs[got], default=0) <= min(costs[v & ~got], default=np.inf)


@pytest.mark.parametrize('keep', [2, 3])
def test_the_most_varied_rows(keep):
  """No subset of `keep` rows has a larger variance of rewards."""
  for valid in (None, VALID):
    _, baseline = kept('varied', valid, keep=keep)
    ok = np.ones(REWARDS.shape, bool) if valid is None else valid
    for r, v, got in zip(REWARDS, ok, baseline):
      size = min(keep, v.sum())
      assert got.sum() == size
      best = max(
        np.var(r[list(rows)])
        for rows in itertools.combinations(np.flatnonzero(v), size)
      )
      np.testing.assert_allclose(np.var(r[got]), best, atol=1e-6)


@pytest.mark.parametrize('name', ['fewer_right', 'fewer_wrong'])
def test_one_side_of_a_group_is_thinned(name):
  rows, baseline = kept(name, keep=1)
  for r, n, got in zip(REWARDS, LENGTHS, rows):
    thinned = (r > 0.5) == (name == 'fewer_right')
    assert np.all(got[~thinned]) and got[thinned].sum() == min(1, thinned.sum())
    if name == 'fewer_right' and thinned.any():
      assert n[got & thinned] == n[thinned].min()
  np.testing.assert_array_equal(rows, baseline)


def test_rows_in_another_order_are_the_same_rows():
  """Groups are identified by number, not by the position of rows."""
  order = np.random.default_rng(0).permutation(REWARDS.size)
  for name in ('dead_groups', 'best', 'varied', 'fewer_right'):
    f = filters.make(name, {'keep': 2})
    there = np.asarray(f(batch()).reward)[order]
    a, b = f(batch()), f(batch(order=order))
    sums = [
      np.bincount(x.group, np.where(x.reward_valid, x.reward, 0))
      for x in (a, b)
    ]
    np.testing.assert_allclose(*sums, err_msg=name)
    np.testing.assert_array_equal(there, b.reward)


@pytest.mark.parametrize(
  'name', ['shortest', 'efficient', 'best', 'varied', 'fewer_right']
)
def test_a_filter_selects_among_rows_that_are_left(name):
  """Rows that reached the token limit do not take the places of others."""
  limit = np.arange(REWARDS.size) % G < 2
  rows = batch().replace(truncated=jnp.asarray(limit))
  got = filters.make(f'truncated+{name}', {'keep': 2})(rows)
  left = jax.tree.map(lambda x: x[~limit], rows)
  want = filters.make(name, {'keep': 2})(left)
  assert not np.any(got.mask[limit]) and np.any(want.mask)
  np.testing.assert_array_equal(got.mask[~limit], want.mask)
  np.testing.assert_array_equal(got.reward_valid[~limit], want.reward_valid)
  # Only wrong rows, which `fewer_right` does not select, keep their verdict.
  others = limit & (REWARDS.reshape(-1) <= 0.5) & (name == 'fewer_right')
  np.testing.assert_array_equal(got.reward_valid[limit], others[limit])


def test_filters_are_applied_in_turn():
  """A group may have zero variance only among the remaining rows."""
  rows, _ = kept('best+dead_groups', keep=2)
  top = np.sort(REWARDS)[:, -2:]
  np.testing.assert_array_equal(rows.any(axis=1), np.ptp(top, axis=1) > 0)
  assert filters.make('none', {}) is None
  assert filters.make('none+dead_groups', {}) is filters.drop_dead_groups


def test_filters_that_do_not_exist_are_named():
  make = functools.partial(filters.make, args={'keep': 0, 'spread': 0.0})
  with pytest.raises(ValueError, match="Did you mean 'dead_groups'"):
    make('dead_group')
  with pytest.raises(ValueError, match='rl.filter_args.keep above 0'):
    make('truncated+varied')
