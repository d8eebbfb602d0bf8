"""Statistics over groups of rows: the samples of one prompt.

`group` is an int [N] of ids in any order with any values; a group may have any
size. Every function returns one number per row, so callers do not depend on the
layout of groups.

Invalid rows (a verifier that failed, a non-finite reward) are in no statistic.
Rewards are shifted by their group's smallest value before anything is summed:
the shift is exact for equal rewards. So the deviation of identical rewards from
their mean is exactly 0 in float32, for any value and size, and rewards such as
1e6 + {0, 1} keep their digits.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Array,
  as_float,
  as_mask,
  check_shapes,
  choose,
  safe_divide,
  safe_sqrt,
)


class Group(NamedTuple):
  """The statistics of each row's group; all [N]."""

  segment: jax.Array  # int, dense enough to index [0, N)
  valid: jax.Array  # bool, rows that take part
  n: jax.Array  # valid rows in the group
  low: jax.Array  # smallest reward of the group
  shifted: jax.Array  # reward - low, 0 where invalid
  dead: jax.Array  # bool: all rewards of the group are the same


def segment_ids(group: Array) -> jax.Array:
  """Maps ids of any values to ids in [0, N); equal stay equal, others
  differ.
  """
  check_shapes(group=group)
  group = jnp.asarray(group)
  if not jnp.issubdtype(group.dtype, jnp.integer):
    raise ValueError(
      f'losses: group holds {group.dtype} and has to hold integers, one id per '
      'row: rows with the same id share a prompt.'
    )
  return jnp.searchsorted(jnp.sort(group), group)


def over_group(
  x: jax.Array, segment: jax.Array, op: Callable = jax.ops.segment_sum
) -> jax.Array:
  """Reduces [N, ...] over groups; returns each row's group result."""
  return op(x, segment, num_segments=x.shape[0])[segment]


def valid_rows(reward: Array, valid: Array | None = None) -> jax.Array:
  """Marks rows, bool [N], with a finite reward that are not invalid."""
  finite = jnp.isfinite(as_float(reward))
  return finite if valid is None else finite & as_mask(valid)


def group_of(reward: Array, group: Array, valid: Array | None = None) -> Group:
  """Computes the statistics of each row's group."""
  check_shapes(reward=reward, group=group, valid=valid)
  valid = valid_rows(reward, valid)
  segment = segment_ids(group)
  reward = as_float(reward)
  least = jnp.where(valid, reward, jnp.inf)
  low = over_group(least, segment, jax.ops.segment_min)
  low = jnp.where(jnp.isfinite(low), low, 0.0)
  shifted = jnp.where(valid, jnp.where(valid, reward, low) - low, 0.0)
  dead = over_group(shifted, segment, jax.ops.segment_max) == 0
  n = over_group(as_float(valid), segment)
  return Group(segment, valid, n, low, shifted, dead)


def group_mean_of(g: Group) -> jax.Array:
  """Computes the group mean of `shifted`; plus `low` it is the mean reward."""
  return safe_divide(over_group(g.shifted, g.segment), g.n)


def centred(g: Group) -> jax.Array:
  """Computes reward - group mean; exactly 0 for dead groups and invalid
  rows.
  """
  return jnp.where(g.valid, g.shifted - group_mean_of(g), 0.0)


def group_std_of(g: Group, *, ddof: int = 1) -> jax.Array:
  """Computes the standard deviation over the group with divisor n - ddof, 0 if
  n <= ddof.
  """
  total = over_group(jnp.square(centred(g)), g.segment)
  return safe_sqrt(safe_divide(total, jnp.maximum(g.n - ddof, 0.0)))


def singletons(
  adv: Array, g: Group, reward: Array, *, singleton: str
) -> jax.Array:
  """Returns rows alone in their group 0 (`'zero'`) or their reward."""
  if choose('singleton', singleton, {'zero': True, 'reward': False}):
    return jnp.where(g.n > 1, adv, 0.0)
  alone = g.valid & (g.n == 1)
  return jnp.where(alone, jnp.where(alone, as_float(reward), 0.0), adv)


def same_group(g: Group) -> jax.Array:
  """Returns, bool [N, N], whether both rows are valid and of the same group."""
  same = g.segment[:, None] == g.segment[None, :]
  return same & g.valid[:, None] & g.valid[None, :]


def place_in_group(g: Group, x: jax.Array) -> jax.Array:
  """Computes the place of each row when its group is sorted by x, 0 first; ties
  by row.

  int [N]; invalid rows do not count and get 0.
  """
  row = jnp.arange(x.shape[0])
  before = (x[None, :] < x[:, None]) | (
    (x[None, :] == x[:, None]) & (row[None, :] < row[:, None])
  )
  return (before & same_group(g)).sum(1)
