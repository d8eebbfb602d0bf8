"""Features of other trainers equal their formulas, one loop at a time."""

import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from losses_batch import close

from jaxrl_reason import losses

RNG = np.random.default_rng(3)
GROUP = np.array([0, 0, 0, 1, 1, 1, 2])
MASK = np.array(
  [
    [1, 1, 0, 1, 1],
    [1, 1, 1, 0, 0],
    [1, 0, 1, 0, 0],
    [1, 1, 1, 1, 0],
    [0, 0, 0, 0, 0],
    [1, 1, 0, 0, 1],
    [1, 1, 1, 0, 0],
  ]
)
REWARD = np.float32([1, 0, 0.5, 1, 1, 0, 1])
LOGP = np.float32(-RNG.random(MASK.shape) - 0.1)
SQUARES = np.float32(RNG.random(MASK.shape))


def optimal(places, weight=None):
  """Loops over groups and positions: the return minus the weighted mean
  return.
  """
  out = np.zeros(MASK.shape)
  spots = [list(np.flatnonzero(row)) for row in MASK]
  for i, own in enumerate(spots):
    energy = lambda j, t: sum(  # noqa: E731
      (1 - 2 * np.exp(np.float64(LOGP[j, s])) + SQUARES[j, s])
      * (1 if weight is None else weight[j, s] ** 2)
      for s in spots[j]
      if s <= t
    )
    for k, t in enumerate(own):
      total = weighed = rows = 0
      for j in np.flatnonzero(GROUP == GROUP[i]):
        at = t if places == 'column' and MASK[j, t] else None
        if places == 'token' and k < len(spots[j]):
          at = spots[j][k]
        if at is not None:
          w = energy(j, at)
          total, weighed, rows = total + w, weighed + w * REWARD[j], rows + 1
      out[i, t] = REWARD[i] - weighed / total if rows > 1 else 0
  return out


@pytest.mark.parametrize('places', ['column', 'token'])
def test_optimal_token_baseline(places):
  got = losses.optimal_token(
    REWARD,
    GROUP,
    LOGP,
    np.where(MASK, SQUARES, np.nan),
    MASK,
    otb_places=places,
  )
  close(got, optimal(places), 1e-5)
  weight = np.float32(RNG.random(MASK.shape) * 2)
  weighed = losses.advantages(
    {'advantage': 'optimal_token', 'otb_places': places},
    REWARD,
    GROUP,
    mask=MASK,
    old_logp=LOGP,
    sum_p_squared=SQUARES,
    token_weight=np.where(MASK, weight, np.nan),
  )
  close(weighed, optimal(places, weight), 1e-4)
  assert np.abs(weighed - got).max() > 0.01
  alone = losses.optimal_token(
    REWARD, GROUP, LOGP, SQUARES, MASK, otb_places=places, singleton='reward'
  )
  close(alone[6], MASK[6] * REWARD[6], 1e-6)
  name = {'column': 'otb', 'token': 'otb_turns'}[places]
  assert losses.needs(name) == {'old_logp', 'sum_p_squared'}
  adv = losses.advantages(
    name, REWARD, GROUP, mask=MASK, old_logp=LOGP, sum_p_squared=SQUARES
  )
  close(adv, got, 1e-6)


def test_sum_of_squared_probabilities():
  logits = np.float32(RNG.normal(size=(2, 3, 5)))
  p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  close(losses.sum_p_squared(logits), (p**2).sum(-1), 1e-5)


SAMPLER = np.float32(LOGP + 0.5 * RNG.normal(size=MASK.shape))


@pytest.mark.parametrize('by', ['ratio', 'k2', 'k3'])
@pytest.mark.parametrize('level', ['token', 'sum', 'mean', 'max'])
def test_rejection_by_sums_means_and_maxima(by, level):
  d = np.float64(LOGP) - SAMPLER
  x = {'ratio': np.exp(d), 'k2': d**2 / 2, 'k3': np.exp(d) - 1 - d}[by]
  x = np.where(MASK, x, 0)
  count = np.maximum(MASK.sum(1, keepdims=True), 1)
  stat = {
    'token': x,
    'sum': x.sum(1, keepdims=True),
    'mean': x.sum(1, keepdims=True) / count,
    'max': x.max(1, keepdims=True),
  }[level]
  limit = float(np.median(stat[MASK.any(1)]))
  got = losses.rejection_weight(
    LOGP, SAMPLER, MASK, reject_by=by, reject_level=level, reject_high=limit
  )
  close(got, MASK * (stat <= limit * (1 + 1e-6)), 0)
  assert 0 < got.sum() < MASK.sum()
  s = {'reject_by': by, 'reject_level': level, 'reject_high': limit}
  assert losses.needs(s) == {'old_logp', 'sampler_logp'}


def test_impossible_rejection_levels_are_refused():
  with pytest.raises(ValueError, match="reject_by='k2'"):
    losses.resolve(
      {
        'reject_by': 'k2',
        'reject_level': 'sequence_product',
        'reject_high': 1.0,
      }
    )
  with pytest.raises(ValueError, match='sequence_mean'):
    losses.importance_ratio(LOGP, SAMPLER, MASK, ratio='sequence')


@pytest.mark.parametrize('name', ['luspo', 'luspo_token'])
def test_luspo_sums_rows_and_averages_over_them(name):
  """TRL 1.16: (per_token_loss * mask).sum(-1).mean(), for any ratio.

  Its `luspo` has ratios of sequences: every token of a row has the row's.
  """
  logp = np.float64(LOGP)
  lr = np.float64(RNG.normal(0, 0.15, MASK.shape))
  adv = np.array([1.0, -1.0, 0.5, 2.0, 1.0, -2.0, 0.3])
  low, high = {'luspo': (2e-3, 2.5e-3), 'luspo_token': (0.2, 0.2)}[name]
  count = np.maximum(MASK.sum(1, keepdims=True), 1)
  mean = (lr * MASK).sum(1, keepdims=True) / count + 0 * lr
  r = np.exp(mean if name == 'luspo' else lr)
  a = adv[:, None]
  per_token = -np.minimum(r * a, np.clip(r, 1 - low, 1 + high) * a)
  rows = MASK.any(1) if name == 'luspo' else np.ones(7, bool)
  want = (per_token * MASK).sum(-1)[rows].mean()
  got, _ = losses.policy_loss(
    name, np.float32(logp + lr), np.float32(adv), MASK, old_logp=LOGP
  )
  close(got, want, 1e-4)


def test_leave_one_out_std():
  got = losses.leave_one_out_std(REWARD, GROUP)
  want = np.zeros(7)
  for i in range(7):
    rest = [REWARD[j] for j in range(7) if GROUP[j] == GROUP[i] and j != i]
    if rest:
      std = np.std(rest, ddof=1) + 1e-6 if len(set(rest)) > 1 else 1.0
      want[i] = (REWARD[i] - np.mean(rest)) / std
  close(got, want, 1e-5)
  assert not np.any(losses.leave_one_out_std(np.full(7, 0.1), GROUP))
  pair = losses.leave_one_out_std(np.float32([1, 0]), np.zeros(2, int))
  close(pair, [1, -1], 1e-6)


def test_the_best_of_a_group_has_its_lead_as_advantage():
  close(losses.best_of_group(REWARD, GROUP), [0.5, 0, 0, 0, 0, 0, 0], 1e-6)
  reward = np.array([1, np.nan, 0.25, 3, 2, 1, 1])
  close(losses.best_of_group(reward, GROUP), [0.75, 0, 0, 1, 0, 0, 0], 1e-6)


def test_passk_of_grpo_divides_by_the_deviation_as_in_verl():
  """(best - second best) / (torch.std(rewards) + 1e-6), for the best row."""
  reward = np.float32([3, 1, 0.5, 1, 1, 0, 1])
  std = statistics.stdev([3.0, 1.0, 0.5])  # divisor n - 1, as torch.std
  adv = losses.advantages('grpo_passk', reward, GROUP, mask=MASK)
  close(adv, [2 / (std + 1e-6), 0, 0, 0, 0, 0, 0], 1e-5)
  plain = {'name': 'grpo_passk', 'divide_by_std': False}
  adv = losses.advantages(plain, reward, GROUP, mask=MASK)
  close(adv, [2, 0, 0, 0, 0, 0, 0], 1e-6)


def test_rewards_are_clipped_before_everything():
  s = {'advantage': 'group_mean', 'reward_low': 0.0, 'reward_high': 2.0}
  reward, group = np.array([5.0, -3.0, np.nan]), np.zeros(3, int)
  adv = losses.advantages(s, reward, group, mask=np.ones((3, 2)))
  close(adv, [1, -1, 0], 1e-6)
  s = {'advantage': 'gae', 'reward_high': 2.0}
  targets = losses.critic_targets(
    s, np.array([5.0]), np.zeros((1, 2)), np.ones((1, 2))
  )
  close(targets, [[2, 2]], 1e-6)
  with pytest.raises(ValueError, match='reward_low'):
    losses.resolve({**s, 'reward_low': 3.0})


def test_the_mask_of_prime_rl_has_both_sides():
  old = jnp.log(jnp.array([[0.5, 0.5, 0.5, 0.5]]))
  logp = jnp.log(jnp.array([[0.75, 0.25, 0.65, 0.35]]))
  mask = jnp.ones((1, 4))
  for sign in (1.0, -1.0):
    x = losses.dppo(
      logp, old, jnp.array([sign]), mask, max_divergence=0.2, mask_sides='both'
    )
    close(x, -sign * np.array([[0, 0, 1.3, 0.7]]), 1e-5)
  # The preset's region is 0.1: the last probability stays inside.
  logp = jnp.log(jnp.array([[0.75, 0.25, 0.65, 0.45]]))
  loss, metrics = losses.policy_loss(
    'ipo_mask', logp, jnp.ones(1), mask, sampler_logp=old
  )
  d = np.log([1.5, 0.5, 1.3, 0.9])
  close(loss, -0.9 / 4 + 1e-3 * (d**2).mean(), 1e-5)
  close(metrics['clip_low'] + metrics['clip_high'], 0.75, 1e-6)


def test_a_capped_ratio_keeps_a_capped_gradient():
  old, mask = jnp.full((1, 1), -5.0), jnp.ones((1, 1))

  def loss(logp):
    x = losses.dppo(logp, old, -jnp.ones(1), mask, ratio_max=20.0)
    return x.sum()

  value, slope = jax.value_and_grad(loss)(jnp.full((1, 1), -1.0))  # r = e^4
  close(value, 20.0, 1e-5)
  close(slope, [[20.0]], 1e-5)
  value, slope = jax.value_and_grad(loss)(old + 1.0)
  close(value, np.e, 1e-5)
  close(slope, [[np.e]], 1e-5)


def test_length_preference():
  n = MASK.sum(1)
  for lam in (0.0, 1.0, -2.0):
    want = np.zeros(7)
    for i in np.flatnonzero(n):
      own = [n[j] for j in range(7) if GROUP[j] == GROUP[i] and n[j]]
      std = np.std(own)
      h = [1 + (x - np.mean(own)) / std / 9 if std else 1.0 for x in own]
      g = np.exp(np.array(h) ** lam)
      mine = 1 + (n[i] - np.mean(own)) / std / 9 if std else 1.0
      want[i] = len(own) * np.exp(mine**lam) / g.sum()
    got = losses.length_preference(MASK, GROUP, length_lambda=lam)
    close(got, want, 1e-5, lam)
  for lam in (40.0, 1e4, -1e4):  # the longest, or shortest, row alone
    got = losses.length_preference(MASK, GROUP, length_lambda=lam)
    close(got.sum(), (n > 0).sum(), 1e-4, lam)
  slope = jax.grad(
    lambda lam: losses.length_preference(MASK, GROUP, length_lambda=lam)[0]
  )(1.0)
  assert np.isfinite(slope) and slope > 0
  adv = losses.advantages('lambda_grpo', REWARD, GROUP, mask=MASK)
  plain = losses.advantages('grpo', REWARD, GROUP, mask=MASK, ref_logp=LOGP)
  close(adv, plain * losses.length_preference(MASK, GROUP), 1e-5)


def test_proximal_log_probs_lie_on_the_way_to_the_policy():
  """AReaL: behave + (v_prox - v_behave) / (v_theta - v_behave) (new - behave),
  v_prox = v_theta - 1.
  """
  version = RNG.integers(0, 5, MASK.shape)
  new = np.float64(LOGP)
  share = (4 - version) / (5 - version)
  want = MASK * (SAMPLER + share * (new - SAMPLER))
  poisoned = np.where(MASK, LOGP, np.nan)
  got = losses.proximal_logp(poisoned, SAMPLER, 4 - version, MASK)
  close(got, want, 1e-5)
  slope = jax.grad(
    lambda x: losses.proximal_logp(x, SAMPLER, version, MASK).sum()
  )(LOGP)
  assert not np.any(slope)
