"""Advantages composed of others: over a part of a group, or over reward parts.

The rules of baselines.py apply.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxrl_reason.losses import groups
from jaxrl_reason.losses.arrays import (
  Array,
  as_float,
  check_shapes,
  choose,
  row_count,
  safe_divide,
  safe_sqrt,
)
from jaxrl_reason.losses.baselines import Advantage, group_zscore
from jaxrl_reason.losses.objective_part import part


def gfpo(
  reward: Array,
  group: Array,
  metric: Array,
  *,
  valid: Array | None = None,
  keep_k: int = 4,
  ddof: int = 1,
  eps: float = 1e-6,
  singleton: str = 'zero',
) -> jax.Array:
  """Computes the z-score among the k rows of a group with the highest metric, 0
  else.

  GFPO, https://arxiv.org/abs/2508.09726. `metric` is [N]: minus the length, or
  reward per token (`filter_metric`). Of equal metrics the earlier row is kept.
  """
  g = groups.group_of(reward, group, valid)
  place = groups.place_in_group(g, -as_float(metric))
  return group_zscore(
    reward,
    group,
    valid=g.valid & (place < keep_k),
    ddof=ddof,
    eps=eps,
    singleton=singleton,
  )


def filter_metric(
  reward: Array, mask: Array, *, keep_by: str = 'short'
) -> jax.Array:
  """Computes GFPO's metric: 'short' is -length, 'efficient' reward / length."""
  length = row_count(mask)
  if choose('keep_by', keep_by, {'short': True, 'efficient': False}):
    return -length
  return safe_divide(jnp.nan_to_num(as_float(reward)), length)


def _gfpo(
  reward,
  group,
  mask,
  *,
  valid=None,
  keep_k=4,
  keep_by='short',
  ddof=1,
  eps=1e-6,
  singleton='zero',
):
  """`gfpo` by `filter_metric`."""
  metric = filter_metric(reward, mask, keep_by=keep_by)
  options = dict(keep_k=keep_k, ddof=ddof, eps=eps, singleton=singleton)
  return gfpo(reward, group, metric, valid=valid, **options)


GFPO = part('GFPO', _gfpo, Advantage)


def gdpo(
  reward_parts: Array,
  group: Array,
  *,
  valid: Array | None = None,
  part_weights: Sequence[float] = (),
  ddof: int = 1,
  eps: float = 1e-6,
  singleton: str = 'zero',
) -> jax.Array:
  """Computes A = sum_r w_r zscore(part r): normalise each reward, then add.
  GDPO.

  https://arxiv.org/abs/2601.05242, whose second half, a whitening over the
  batch, is `whiten(.., by='rows')`. `reward_parts` is [N, R]; a part that is
  not finite contributes 0 and is in no statistic of its own column.
  """
  check_shapes(reward_parts=reward_parts, group=group, valid=valid)

  def zscore(part):
    return group_zscore(
      part, group, valid=valid, ddof=ddof, eps=eps, singleton=singleton
    )

  adv = jax.vmap(zscore, in_axes=1, out_axes=1)(jnp.asarray(reward_parts))
  if len(part_weights) not in (0, adv.shape[1]):
    raise ValueError(
      f'losses: part_weights has {len(part_weights)} weights for '
      f'{adv.shape[1]} reward parts: give one for each, or none.'
    )
  weights = jnp.asarray(part_weights) if len(part_weights) else 1.0
  return (adv * weights).sum(1)


GDPO = part('GDPO', gdpo, Advantage)


def best_of_group(
  reward: Array,
  group: Array,
  *,
  valid: Array | None = None,
  divide_by_std: bool = False,
  ddof: int = 1,
  eps: float = 1e-6,
  singleton: str = 'zero',
) -> jax.Array:
  """Computes A = best - second best for the best row of a group, else 0.

  Pass@k training by the marginal value of a row,
  https://arxiv.org/abs/2503.19595. If two rows share the best reward, every row
  gets 0.

  Args:
    divide_by_std: divide by the group's standard deviation + eps, as verl's
      `grpo_passk` does by default.
  """
  g = groups.group_of(reward, group, valid)
  others = groups.same_group(g) & ~jnp.eye(g.n.size, dtype=bool)
  runner_up = jnp.where(others, g.shifted[None, :], -jnp.inf).max(1)
  lead = jnp.maximum(g.shifted - runner_up, 0.0)
  if divide_by_std:
    lead = safe_divide(lead, groups.group_std_of(g, ddof=ddof) + eps)
  adv = jnp.where(g.valid & (g.n > 1), lead, 0.0)
  return groups.singletons(adv, g, reward, singleton=singleton)


class BestOfGroup(part('BestOfGroup', best_of_group, Advantage)):
  """`best_of_group` as a part."""

  @property
  def keys_read(self) -> set[str]:
    unread = set() if self.divide_by_std else {'ddof', 'eps'}
    return super().keys_read - unread


def leave_one_out_std(
  reward: Array,
  group: Array,
  *,
  valid: Array | None = None,
  ddof: int = 1,
  eps: float = 1e-6,
  singleton: str = 'zero',
) -> jax.Array:
  """Computes A_i = (r_i - mean of the others) / (std of the others + eps).

  Neither depends on r_i. If the others are equal, or fewer than ddof + 1, the
  difference is not divided.
  """
  g = groups.group_of(reward, group, valid)
  others = groups.same_group(g) & ~jnp.eye(g.n.size, dtype=bool)
  x = jnp.where(others, g.shifted[None, :], 0.0)
  n = as_float(others).sum(1)
  mean = safe_divide(x.sum(1), n)
  square = jnp.where(others, jnp.square(x - mean[:, None]), 0.0).sum(1)
  low = jnp.where(others, x, jnp.inf).min(1, initial=jnp.inf)
  same = (n <= ddof) | (jnp.where(others, x, low[:, None]).max(1) == low)
  std = safe_sqrt(safe_divide(square, jnp.maximum(n - ddof, 0.0)))
  gap = jnp.where(g.valid & ~g.dead, g.shifted - mean, 0.0)
  adv = jnp.where(same, gap, safe_divide(gap, std + eps))
  return groups.singletons(adv, g, reward, singleton=singleton)


LeaveOneOutStd = part('LeaveOneOutStd', leave_one_out_std, Advantage)
