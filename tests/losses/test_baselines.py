"""Advantages per row: numbers by hand, the NumPy twin, and exact zeros."""

import jax
import jax.numpy as jnp
import losses_twin as twin
import numpy as np
import pytest
from losses_batch import Compiled, close, edge_batch, run_in, together

from jaxrl_reason import losses as library

losses = Compiled(library)

R = jnp.array([1.0, 0.0, 0.0, 1.0, 0.0, 3.0])
G = jnp.array([2, 7, 2, 7, 2, 7])  # {1, 0, 0} and {0, 1, 3}


def test_golden_values():
  """The groups are {1, 0, 0} with mean 1/3 and {0, 1, 3} with mean 4/3."""
  third = 1 / 3
  mean = np.array([2, -4, -1, -1, -1, 5]) * third
  close(losses.group_mean(R, G), mean, 1e-6)
  close(losses.leave_one_out(R, G), [1, -2, -0.5, -0.5, -0.5, 2.5], 1e-6)
  # Variances with divisor 2: {1, 0, 0}: 1/3; {0, 1, 3}: 7/3.
  std1, std2 = third**0.5, (7 / 3) ** 0.5
  std = np.array([std1, std2, std1, std2, std1, std2])
  close(losses.group_zscore(R, G, eps=0.0), mean / std, 1e-6)
  close(losses.group_zscore(R, G, eps=1.0), mean / (std + 1), 1e-6)
  # Divisor 3: 2/9 and 14/9.
  std = np.sqrt(np.array([2, 14, 2, 14, 2, 14]) / 9)
  close(losses.group_zscore(R, G, ddof=0, eps=0.0), mean / std, 1e-6)
  close(losses.maxrl(R, G), [2, -1, -1, -0.25, -1, 1.25], 1e-6)
  close(losses.rank(R, G), [1, -1, -0.5, 0, -0.5, 1], 1e-6)
  # All six: mean 5/6, squares 11, variance (11 - 25/6) / 5 = 41/30.
  batch = (41 / 30) ** 0.5
  close(losses.group_mean_batch_std(R, G, eps=0.0), mean / batch, 1e-6)
  close(losses.reinforce(R, baseline=0.5), R - 0.5, 1e-6)
  close(losses.positives(R), [1, 0, 0, 1, 0, 1], 0)
  close(losses.signs(R, threshold=1.0), [-1, -1, -1, -1, -1, 1], 0)
  close(losses.greedy_baseline(R, jnp.ones(6)), R - 1, 1e-6)


def test_golden_values_of_a_batch_with_dead_groups():
  reward = jnp.array([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
  group = jnp.array([0, 0, 1, 1, 2, 2])
  # One live group of three: GPG scales by 6 / 2.
  close(losses.gpg(reward, group), [1.5, -1.5, 0, 0, 0, 0], 1e-6)
  close(
    losses.reinforce_rej(reward, group, baseline=0.5),
    [0.5, -0.5, 0, 0, 0, 0],
    1e-6,
  )
  close(losses.dead_group_share(reward, group), 2 / 3, 1e-6)


def test_opo_weighs_by_length():
  mask = jnp.array([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
  reward = jnp.array([1.0, 0.0, 3.0])
  # baseline (3 * 1 + 1 * 0 + 2 * 3) / 6 = 1.5
  adv = losses.length_weighted(reward, jnp.zeros(3, int), mask)
  close(adv, [-0.5, -1.5, 1.5], 1e-6)


def test_gfpo_keeps_the_shortest():
  reward = jnp.array([1.0, 0.0, 1.0, 0.0])
  mask = jnp.arange(4)[None, :] < jnp.array([3, 1, 2, 4])[:, None]
  metric = losses.filter_metric(reward, mask)
  adv = losses.gfpo(reward, jnp.zeros(4, int), metric, keep_k=2, eps=0.0)
  half = 0.5**0.5  # of {0, 1}: mean 1/2, deviation sqrt(1/2)
  close(adv, [0, -half, half, 0], 1e-6)
  metric = losses.filter_metric(reward, mask, keep_by='efficient')
  close(metric, [1 / 3, 0, 1 / 2, 0], 1e-6)


def test_gdpo_distinguishes_rewards_with_equal_sums():
  """(0, 1) and (1, 0) have equal sums, but differ if parts are normalised
  separately.
  """
  parts = jnp.array([[0.0, 10.0], [1.0, 0.0], [1.0, 10.0], [1.0, 0.0]])
  adv = losses.gdpo(parts, jnp.zeros(4, int), eps=0.0, part_weights=(1, 0.5))
  first = np.array([-0.75, 0.25, 0.25, 0.25]) / 0.5
  second = np.array([5, -5, 5, -5]) / (100 / 3) ** 0.5
  close(adv, first + second / 2, 1e-6)


def test_bnpo_against_scipy_free_arithmetic():
  """Groups have p = 1/4, 1/2, 3/4: m = 1/2, v = 1/24, a = b = 5/2."""
  reward = jnp.array([1.0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0])
  group = jnp.repeat(jnp.arange(3), 4)
  # alpha = beta = 1 + 5/6 = 11/6; B(a, b) by a fine midpoint sum.
  x = (np.arange(200000) + 0.5) / 200000
  beta = (x ** (5 / 6) * (1 - x) ** (5 / 6)).mean()
  p = np.repeat([0.25, 0.5, 0.75], 4)
  density = (p * (1 - p)) ** (5 / 6) / beta
  close(losses.bnpo(reward, group), (reward - p) / density, 1e-5)


ROW = {
  'group_mean': (losses.group_mean, twin.group_mean),
  'group_zscore': (losses.group_zscore, twin.group_zscore),
  'leave_one_out': (losses.leave_one_out, twin.leave_one_out),
  'batch_std': (losses.group_mean_batch_std, twin.group_mean_batch_std),
  'gpg': (losses.gpg, twin.gpg),
  'maxrl': (losses.maxrl, twin.maxrl),
  'rank': (losses.rank, twin.rank),
}


@pytest.mark.parametrize('bits', [32, 64])
def test_against_the_twin(bits):
  """The batch has interleaved groups of 1 to 5, a NaN reward, and rows without
  tokens.
  """
  b = edge_batch()

  def both(dtype):
    reward = jnp.asarray(b['reward'], dtype)
    out = {
      k: ours(reward, b['group'], valid=b['valid'])
      for k, (ours, _) in ROW.items()
    }
    out['opo'] = losses.length_weighted(reward, b['group'], b['mask'])
    return out

  ours, rtol = run_in(bits, lambda dtype: jax.jit(lambda: both(dtype))())
  for name, (_, theirs) in ROW.items():
    close(ours[name], theirs(b['reward'], b['group'], b['valid']), rtol, name)
  theirs = twin.length_weighted(b['reward'], b['group'], b['valid'], b['mask'])
  close(ours['opo'], theirs, rtol, 'opo')


GROUPED = {
  **{k: ours for k, (ours, _) in ROW.items()},
  'bnpo': losses.bnpo,
  'passk': losses.passk,
  'length_weighted': lambda r, g: losses.length_weighted(
    r, g, jnp.arange(1, r.size + 1)[:, None] > jnp.arange(4)
  ),
  'gfpo': lambda r, g: losses.gfpo(r, g, r),
  'gdpo': lambda r, g: losses.gdpo(jnp.stack([r, r], 1), g),
}


def test_dead_groups_are_exactly_zero():
  """Advantages in float32 are 0 and not 1e-8, for any reward and group size."""
  values = jnp.array([0.1, 1 / 3, -7.3, 1e6 + 0.1, 1e-20, 0.7, 123.456])
  group = jnp.array([i for i in range(7) for _ in range(3 + 4 * i)])
  for name, adv in together(GROUPED, values[group], group).items():
    assert not np.any(adv), name


def test_digits_survive_large_rewards():
  """{1, 0, 0} plus 1e6 has the same advantages: rewards are shifted first."""
  shifted = jnp.float32(1e6) + R
  close(losses.group_mean(shifted, G), losses.group_mean(R, G), 1e-6)


def test_invalid_rows_are_in_no_statistic():
  reward = jnp.array([1.0, 0.0, 5.0, jnp.nan, jnp.inf])
  valid = jnp.array([1, 1, 0, 1, 1])
  adv = losses.group_mean(reward, jnp.zeros(5, int), valid=valid)
  close(adv, [0.5, -0.5, 0, 0, 0], 1e-6)


def test_singletons_by_argument():
  reward, group = jnp.array([3.0, 1.0, 0.0]), jnp.array([4, 9, 9])
  close(losses.group_mean(reward, group), [0, 0.5, -0.5], 1e-6)
  adv = losses.leave_one_out(reward, group, singleton='reward')
  close(adv, [3, 1, -1], 1e-6)


def test_leave_one_out_is_the_scaled_mean():
  size = np.array([3.0] * 6)
  scaled = size / (size - 1) * losses.group_mean(R, G)
  close(losses.leave_one_out(R, G), scaled, 1e-6)


def test_permutation_and_vmap():
  order = np.random.default_rng(1).permutation(6)
  for fn in (losses.group_zscore, losses.rank):
    close(fn(R[order], G[order]), fn(R, G)[order], 1e-6)
  stacked = jax.vmap(losses.group_zscore)(
    jnp.stack([R, R[order]]), jnp.stack([G, G[order]])
  )
  close(stacked[1], losses.group_zscore(R[order], G[order]), 1e-6)


def test_whitening_and_shaping():
  adv = jnp.array([1.0, 2.0, 6.0])
  mask = jnp.array([[1, 1], [1, 0], [0, 0]])
  rows = losses.whiten(adv, mask, by='rows', whiten_eps=0.0)
  close(rows, twin.whiten(np.float64(adv), np.ones(3, bool), eps=0), 1e-6)
  tokens = losses.whiten(adv, mask, by='tokens', whiten_eps=0.0)
  # {1, 1, 2}: mean 4/3, variance (2/9 + 4/9) / 2 = 1/3.
  scaled = np.array([[-1, -1], [2, 0], [0, 0]]) / 3 * 3**0.5
  close(tokens, scaled, 1e-6)
  entropy = jnp.array([[0.5, 9.0], [9.0, jnp.nan], [jnp.nan, 1.0]])
  shaped = losses.entropy_shape(-adv, entropy, mask)
  # min(0.4 H, |A| / 2): 0.2, 0.5 in the first row, 1 in the second.
  close(shaped, [[-0.8, -0.5], [-1, 0], [0, 0]], 1e-6)
  close(losses.weigh_signs(adv - 2, pos_weight=0.1), [-1, 0, 0.4], 1e-6)
  close(losses.clip_advantage(adv, adv_max=1.5), [1, 1.5, 1.5], 0)


def test_maxrl_keeps_signs_and_is_less_than_the_group_size():
  """Negative rewards are shifted by the group's lowest reward: |A| < n."""
  group = jnp.zeros(4, int)
  close(
    losses.maxrl(jnp.array([-1.0, -1, -1, 1]), group), [-1, -1, -1, 3], 1e-6
  )
  close(
    losses.maxrl(jnp.array([0.0, 0, 0, 0.001]), group), [-1, -1, -1, 3], 1e-5
  )
  rng = np.random.default_rng(0)
  reward = np.float32(rng.normal(size=(50, 4)))
  reward[0] = [-1, -1, 1, 1.0005]  # a mean of 0.000125
  adv = losses.maxrl(reward.reshape(-1), jnp.repeat(jnp.arange(50), 4))
  adv = np.asarray(adv).reshape(50, 4)
  centred = reward - reward.mean(1, keepdims=True)
  assert (np.sign(adv) == np.sign(centred)).all() and np.abs(adv).max() < 4
