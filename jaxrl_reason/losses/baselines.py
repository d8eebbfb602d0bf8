"""Advantages per row, [N], from rewards [N] and group ids [N].

All functions of groups follow these rules:
  - invalid rows, and rows with a reward that is not finite, get 0 and are in no
    statistic;
  - a group of identical rewards gets exactly 0;
  - a row alone in its group gets 0 (`singleton='zero'`), or its reward
    (`singleton='reward'`, as in some trainers).

A row without a trained token counts in its group's statistics. To leave it out,
pass `valid & (row_count(mask) > 0)`.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses import groups
from jaxrl_reason.losses.arrays import (
  Array,
  as_float,
  masked_var,
  row_count,
  safe_divide,
  safe_sqrt,
)
from jaxrl_reason.losses.objective_part import Part, part


class Advantage(Part):
  """An estimator of advantages, [N] or [N, T], from rewards and groups."""


def no_advantage(reward: Array) -> jax.Array:
  """Returns A = 0: rewards are only metrics, and other terms are trained."""
  return jnp.zeros_like(as_float(reward))


NoAdvantage = part('NoAdvantage', no_advantage, Advantage)


def reinforce(
  reward: Array, *, valid: Array | None = None, baseline: float = 0.0
) -> jax.Array:
  """Computes A = r - baseline, a constant: REINFORCE (Williams 1992).

  https://link.springer.com/article/10.1007/BF00992696
  """
  ok = groups.valid_rows(reward, valid)
  return jnp.where(ok, jnp.where(ok, as_float(reward), 0.0) - baseline, 0.0)


Reinforce = part('Reinforce', reinforce, Advantage)


def reinforce_rej(
  reward: Array,
  group: Array,
  *,
  valid: Array | None = None,
  baseline: float = 0.0,
) -> jax.Array:
  """Computes the advantage of REINFORCE without prompts whose samples are all
  correct or all incorrect.

  Reinforce-Rej, https://arxiv.org/abs/2504.11343.
  """
  g = groups.group_of(reward, group, valid)
  return jnp.where(
    g.dead, 0.0, reinforce(reward, valid=valid, baseline=baseline)
  )


ReinforceRej = part('ReinforceRej', reinforce_rej, Advantage)


def positives(
  reward: Array, *, valid: Array | None = None, threshold: float = 0.0
) -> jax.Array:
  """Computes A = 1 where r > threshold, else 0: trains on successes only.

  RAFT, https://arxiv.org/abs/2304.06767; RAFT++ with a clipped ratio,
  https://arxiv.org/abs/2504.11343; PSR, https://arxiv.org/abs/2506.01347.
  """
  ok = groups.valid_rows(reward, valid)
  return as_float(ok & (jnp.where(ok, as_float(reward), 0.0) > threshold))


Positives = part('Positives', positives, Advantage)


def signs(
  reward: Array, *, valid: Array | None = None, threshold: float = 0.0
) -> jax.Array:
  """Computes A = +1 where r > threshold, else -1.

  The rewards of PSR and NSR, https://arxiv.org/abs/2506.01347, which weight the
  two signs separately: `pos_weight=0` is NSR, 0.1 is Weighted-REINFORCE.
  """
  ok = groups.valid_rows(reward, valid)
  return jnp.where(
    ok, 2 * positives(reward, valid=valid, threshold=threshold) - 1, 0.0
  )


Signs = part('Signs', signs, Advantage)


def greedy_baseline(
  reward: Array, greedy_reward: Array, *, valid: Array | None = None
) -> jax.Array:
  """Computes A = r - r(greedy answer to the same prompt): ReMax.

  https://arxiv.org/abs/2310.10505. `greedy_reward` is [N], one per row.
  """
  ok = groups.valid_rows(reward, valid) & groups.valid_rows(greedy_reward)
  difference = as_float(reward) - as_float(greedy_reward)
  return jnp.where(ok, difference, 0.0)


GreedyBaseline = part('GreedyBaseline', greedy_baseline, Advantage)


def optimal_value(
  reward: Array,
  pass_rate: Array,
  *,
  valid: Array | None = None,
  value_beta: float = 0.5,
) -> jax.Array:
  """Computes A = r - V*, V* = beta log E exp(r / beta) of the reference: A*-PO.

  https://arxiv.org/abs/2505.20686. Rewards are 0 or 1, so that with the
  reference's `pass_rate` p [N] of a row's prompt, V* = beta log(1 - p + p exp(1
  / beta)). Its loss is `mirror_descent` with `ratio_to='ref'`.
  """
  ok = groups.valid_rows(reward, valid)
  p = as_float(pass_rate)
  # log(1 - p + p e^x) = x + log(p + (1 - p) e^-x), which cannot overflow.
  mean = jnp.logaddexp(jnp.log(p), jnp.log1p(-p) - 1 / value_beta)
  value = 1 + value_beta * mean
  return jnp.where(ok, jnp.where(ok, as_float(reward), 0.0) - value, 0.0)


OptimalValue = part('OptimalValue', optimal_value, Advantage)


def group_mean(
  reward: Array,
  group: Array,
  *,
  valid: Array | None = None,
  singleton: str = 'zero',
) -> jax.Array:
  """Computes A = r - mean(group): Dr.GRPO, https://arxiv.org/abs/2503.20783."""
  g = groups.group_of(reward, group, valid)
  return groups.singletons(groups.centred(g), g, reward, singleton=singleton)


GroupMean = part('GroupMean', group_mean, Advantage)


def group_zscore(
  reward: Array,
  group: Array,
  *,
  valid: Array | None = None,
  ddof: int = 1,
  eps: float = 1e-6,
  singleton: str = 'zero',
) -> jax.Array:
  """Computes A = (r - mean) / (std + eps): GRPO,
  https://arxiv.org/abs/2402.03300.

  The paper defines neither ddof nor eps. Common trainers use ddof=1 and eps of
  1e-6 or 1e-4; NumPy's std has ddof=0.
  """
  g = groups.group_of(reward, group, valid)
  std = groups.group_std_of(g, ddof=ddof)
  adv = jnp.where(g.dead, 0.0, safe_divide(groups.centred(g), std + eps))
  return groups.singletons(adv, g, reward, singleton=singleton)


GroupZScore = part('GroupZScore', group_zscore, Advantage)


def leave_one_out(
  reward: Array,
  group: Array,
  *,
  valid: Array | None = None,
  singleton: str = 'zero',
) -> jax.Array:
  """Computes A_i = r_i - mean_{j != i} r_j = G / (G - 1) (r_i - mean).

  RLOO, https://arxiv.org/abs/2402.14740.
  """
  g = groups.group_of(reward, group, valid)
  adv = safe_divide(groups.centred(g) * g.n, jnp.maximum(g.n - 1, 0.0))
  return groups.singletons(adv, g, reward, singleton=singleton)


LeaveOneOut = part('LeaveOneOut', leave_one_out, Advantage)


def group_mean_batch_std(
  reward: Array,
  group: Array,
  *,
  valid: Array | None = None,
  ddof: int = 1,
  eps: float = 1e-6,
  singleton: str = 'zero',
) -> jax.Array:
  """Computes A = (r - mean(group)) / (std(all rewards of the batch) + eps).

  LitePPO, https://arxiv.org/abs/2508.08221.
  """
  g = groups.group_of(reward, group, valid)
  spread = jnp.where(g.valid, as_float(reward), 0.0)
  std = safe_sqrt(masked_var(spread, g.valid, ddof=ddof))
  adv = safe_divide(groups.centred(g), std + eps)
  return groups.singletons(adv, g, reward, singleton=singleton)


GroupMeanBatchStd = part('GroupMeanBatchStd', group_mean_batch_std, Advantage)


def length_weighted(
  reward: Array,
  group: Array,
  mask: Array,
  *,
  valid: Array | None = None,
  singleton: str = 'zero',
) -> jax.Array:
  """Computes A = r - sum_j l_j r_j / sum_j l_j, l the lengths in tokens: OPO.

  https://arxiv.org/abs/2505.23585: the baseline of least variance when the
  squared gradient norm of a row grows with its length.
  """
  g = groups.group_of(reward, group, valid)
  length = jnp.where(g.valid, row_count(mask), 0.0)
  base = safe_divide(
    groups.over_group(length * g.shifted, g.segment),
    groups.over_group(length, g.segment),
  )
  adv = jnp.where(g.valid, g.shifted - base, 0.0)
  return groups.singletons(adv, g, reward, singleton=singleton)


LengthWeighted = part('LengthWeighted', length_weighted, Advantage)


def gpg(
  reward: Array,
  group: Array,
  *,
  valid: Array | None = None,
  singleton: str = 'zero',
) -> jax.Array:
  """Computes A = B / (B - M) (r - mean), M of the B rows being in dead groups:
  GPG.

  https://arxiv.org/abs/2504.02546 (its F_norm = 1). The factor corrects a mean
  over rows of which M are 0. A popular trainer counts
  zero rewards instead of dead groups.
  """
  g = groups.group_of(reward, group, valid)
  rows = as_float(g.valid).sum()
  live = as_float(g.valid & ~g.dead).sum()
  adv = groups.centred(g) * safe_divide(rows, live)
  return groups.singletons(adv, g, reward, singleton=singleton)


GPG = part('GPG', gpg, Advantage)


def maxrl(
  reward: Array,
  group: Array,
  *,
  valid: Array | None = None,
  singleton: str = 'zero',
) -> jax.Array:
  """Computes A = (r - mean) / mean over the group, 0 without a success: MaxRL.

  https://arxiv.org/abs/2602.02710. With 0/1 rewards the mean over the group is
  (1 / K) sum over the K successes of the score function, minus its baseline.

  The mean estimates a probability, so rewards have to be 0 or more. In a group
  with a negative reward, the lowest reward is subtracted from every reward: -1
  and 1 have the advantages of 0 and 1.
  """
  g = groups.group_of(reward, group, valid)
  mean = jnp.maximum(g.low, 0.0) + groups.group_mean_of(g)
  adv = safe_divide(groups.centred(g), mean)
  return groups.singletons(adv, g, reward, singleton=singleton)


MaxRL = part('MaxRL', maxrl, Advantage)


def rank(
  reward: Array,
  group: Array,
  *,
  valid: Array | None = None,
  singleton: str = 'zero',
) -> jax.Array:
  """Computes A_i = (#{r_j < r_i} - #{r_j > r_i}) / (G - 1), in [-1, 1].

  The centred rank (ties share their rank), as in rank-based fitness shaping
  (https://arxiv.org/abs/1106.4487): only the order of the rewards counts.
  """
  g = groups.group_of(reward, group, valid)
  sign = jnp.sign(g.shifted[:, None] - g.shifted[None, :])
  adv = jnp.where(groups.same_group(g), sign, 0.0).sum(1)
  adv = safe_divide(adv, jnp.maximum(g.n - 1, 0.0))
  return groups.singletons(adv, g, reward, singleton=singleton)


Rank = part('Rank', rank, Advantage)


def _beta_density(p, a, b):
  logs = (a - 1) * jnp.log(p) + (b - 1) * jnp.log1p(-p)
  return jnp.exp(logs - jax.scipy.special.betaln(a, b))


def bnpo(
  reward: Array,
  group: Array,
  *,
  valid: Array | None = None,
  singleton: str = 'zero',
) -> jax.Array:
  """Computes A = (r - p) / f(p; 1 + a/3, 1 + b/3), f the Beta density: BNPO.

  https://arxiv.org/abs/2506.02864. p is the group mean of 0/1 rewards, and
  (a, b) fit a Beta distribution to the p of the batch by their mean m and
  variance v over groups: a = (m (1 - m) / v - 1) m, b = (..) (1 - m). If v is
  0, the density is 1.
  """
  g = groups.group_of(reward, group, valid)
  p = g.low + groups.group_mean_of(g)
  share = jnp.where(g.valid, safe_divide(1.0, g.n), 0.0)  # sums to 1 per group
  total = share.sum()
  m = safe_divide((share * p).sum(), total)
  v = safe_divide((share * jnp.square(p - m)).sum(), total)
  concentration = safe_divide(m * (1 - m), v) - 1
  fit = (v > 0) & (concentration > 0) & ~g.dead & (p > 0) & (p < 1)
  c = jnp.where(concentration > 0, concentration, 1.0)
  density = _beta_density(
    jnp.where(fit, p, 0.5), 1 + c * m / 3, 1 + c * (1 - m) / 3
  )
  adv = groups.centred(g) / jnp.where(fit, density, 1.0)
  return groups.singletons(adv, g, reward, singleton=singleton)


BNPO = part('BNPO', bnpo, Advantage)


def dead_group_share(
  reward: Array, group: Array, *, valid: Array | None = None
) -> jax.Array:
  """Computes the share of the groups that carry no signal, a scalar."""
  g = groups.group_of(reward, group, valid)
  share = jnp.where(g.valid, safe_divide(1.0, g.n), 0.0)
  return safe_divide(jnp.where(g.dead, share, 0.0).sum(), share.sum())
