"""Rewards for length, [N], and masks of truncated rows. Lengths are in tokens.

`length` is `row_count(mask)`. `correct` is [N]: a row is correct if it is above
0, and incorrect if it is NaN. The functions return a term to add to the reward
(`.._penalty`, `.._bonus`) or the reward itself.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxrl_reason.losses import groups
from jaxrl_reason.losses.arrays import Array, as_float, as_mask, safe_divide


def _right(correct):
  return as_float(correct) > 0


def soft_overlong_penalty(
  length: Array, *, max_length: float, cache: float
) -> jax.Array:
  """Returns 0 up to max - cache, then falling linearly to -1 at max: DAPO.

  https://arxiv.org/abs/2503.14476 eq. 13; -1 beyond `max_length`.
  """
  over = (max_length - cache - as_float(length)) / cache
  return jnp.clip(over, -1.0, 0.0)


def l1_exact_penalty(
  length: Array, target: Array, *, alpha: float = 3e-4
) -> jax.Array:
  """Computes -alpha |target - length|: L1-Exact,
  https://arxiv.org/abs/2503.04697.
  """
  return -alpha * jnp.abs(as_float(target) - as_float(length))


def l1_max_reward(
  correct: Array,
  length: Array,
  target: Array,
  *,
  alpha: float = 3e-4,
  delta: float = 0.5,
) -> jax.Array:
  """Computes correct * clip(alpha (target - length) + delta, 0, 1): L1-Max.

  https://arxiv.org/abs/2503.04697
  """
  room = alpha * (as_float(target) - as_float(length)) + delta
  return jnp.where(_right(correct), jnp.clip(room, 0.0, 1.0), 0.0)


def alp_penalty(
  correct: Array,
  length: Array,
  group: Array,
  *,
  valid: Array | None = None,
  alp_beta: float = 1e-7,
) -> jax.Array:
  """Computes -beta length max(solve rate, 1 / K), K rows in the group: ALP.

  https://arxiv.org/abs/2506.05256: a token costs more on easy prompts.
  """
  g = groups.group_of(correct, group, valid)
  solved = g.low + groups.group_mean_of(g)
  rate = jnp.maximum(solved, safe_divide(1.0, g.n))
  return jnp.where(g.valid, -alp_beta * as_float(length) * rate, 0.0)


def laser_bonus(
  correct: Array,
  length: Array,
  target: Array,
  *,
  alpha: float = 0.5,
  explore: Array | None = 0.0,
) -> jax.Array:
  """Returns alpha for correct rows within `target` tokens: LASER.

  https://arxiv.org/abs/2505.15612. `target` is a number, or [N] from
  `laser_d_target` (LASER-D). Incorrect rows longer than their
  target get `explore` (LASER-DE).
  """
  correct, within = _right(correct), as_float(length) <= target
  return jnp.where(
    correct & within, alpha, jnp.where(~correct & ~within, explore, 0.0)
  )


def difficulty(
  correct: Array,
  group: Array,
  *,
  valid: Array | None = None,
  bounds: Sequence[float] = (1 / 3, 2 / 3),
) -> jax.Array:
  """Grades rows, 0 hard, 1 medium, 2 easy, int [N], by the solve rate of the
  row's group.

  Groups are hard up to a solve rate of bounds[0], easy above bounds[1].
  """
  g = groups.group_of(correct, group, valid)
  rate = g.low + groups.group_mean_of(g)
  return (rate > bounds[0]).astype(int) + (rate > bounds[1]).astype(int)


def laser_d_target(
  correct: Array,
  length: Array,
  level: Array,
  samples: int,
  candidates: Array,
  *,
  n_levels: int = 3,
) -> jax.Array:
  """Computes the length target of each difficulty level: LASER-D, [n_levels].

  https://arxiv.org/abs/2505.15612: the smallest candidate l at which the
  expected number of complete correct answers per prompt, (share of the level's
  correct rows with length <= l) * (mean correct rows per prompt), reaches 1;
  the largest candidate if none does.

  Args:
    correct, length, level: [N], from a monitoring set; `level` of `difficulty`.
    samples: rows per prompt.
    candidates: ascending lengths, [K].
  """
  candidates = as_float(candidates)
  right = as_float(_right(correct))[:, None]  # [N, 1]
  short = as_float(as_float(length)[:, None] <= candidates)  # [N, K]
  member = as_float(level[:, None] == jnp.arange(n_levels))  # [N, D]
  covered = member.T @ (right * short)  # [D, K]
  # Whole numbers: (covered / n_right) * (n_right per prompt) may round to
  # less than 1.
  enough = (covered > 0) & (samples * covered >= member.sum(0)[:, None])
  first = jnp.where(enough.any(1), jnp.argmax(enough, 1), candidates.size - 1)
  return candidates[first]


def kimi_bonus(
  correct: Array, length: Array, group: Array, *, valid: Array | None = None
) -> jax.Array:
  """Computes lambda if correct, min(0, lambda) if not: Kimi k1.5's long2short.

  https://arxiv.org/abs/2501.12599: lambda = 1/2 - (len - min) / (max - min)
  over the group; 0 if all its lengths are equal.
  """
  g = groups.group_of(length, group, groups.valid_rows(correct, valid))
  span = groups.over_group(g.shifted, g.segment, jax.ops.segment_max)
  lam = jnp.where(g.dead, 0.0, 0.5 - safe_divide(g.shifted, span))
  lam = jnp.where(g.valid, lam, 0.0)
  return jnp.where(_right(correct), lam, jnp.minimum(lam, 0.0))


def o1_pruner_reward(
  correct: Array,
  length: Array,
  ref_length: Array,
  ref_correct: Array,
  *,
  weight: float = 2.0,
) -> jax.Array:
  """Computes mean reference length / length - 1 + weight (correct - reference
  rate).

  O1-Pruner, https://arxiv.org/abs/2501.12570. `ref_length` and `ref_correct`
  are [N], the reference policy's means on the row's prompt.
  """
  shorter = safe_divide(as_float(ref_length), as_float(length)) - 1
  return shorter + weight * (as_float(_right(correct)) - as_float(ref_correct))


def cosine_reward(
  correct: Array,
  length: Array,
  *,
  max_length: float,
  correct_range: Sequence[float] = (2.0, 1.0),
  wrong_range: Sequence[float] = (-10.0, 0.0),
  exceed: float = -10.0,
) -> jax.Array:
  """Computes r_L + (r_0 - r_L) (1 + cos(pi length / max)) / 2, `exceed` at the
  limit.

  https://arxiv.org/abs/2502.03373: (r_0, r_L) are the rewards at length 0 and
  at max_length, one pair for correct rows and one for wrong ones.
  """
  length = as_float(length)
  ok = _right(correct)
  start = jnp.where(ok, correct_range[0], wrong_range[0])
  end = jnp.where(ok, correct_range[1], wrong_range[1])
  wave = 0.5 * (1 + jnp.cos(math.pi * length / max_length))
  return jnp.where(length >= max_length, exceed, end + (start - end) * wave)


def brevity_bonus(
  reward: Array, length: Array, group: Array, *, valid: Array | None = None
) -> jax.Array:
  """Computes r clip(1 - length / mean, 0, 1) for the best rows of a group: [N].

  The relative length penalty of prime-rl
  (https://github.com/PrimeIntellect-ai/prime-rl), as a term to add to the
  reward. The mean is over the rows with the group's largest reward. Other rows
  get 0, and so does a group whose largest reward is 0 or less.
  """
  g = groups.group_of(reward, group, valid)
  most = groups.over_group(g.shifted, g.segment, jax.ops.segment_max)
  best = g.valid & (g.shifted >= most) & (g.low + most > 0)
  cost = jnp.where(best, as_float(length), 0.0)
  rows = groups.over_group(as_float(best), g.segment)
  mean = safe_divide(groups.over_group(cost, g.segment), rows)
  share = jnp.clip(1 - safe_divide(cost, mean), 0.0, 1.0)
  return jnp.where(best & (mean > 0), (g.low + g.shifted) * share, 0.0)


def repeated_share(tokens: Array, mask: Array, *, n: int = 10) -> jax.Array:
  """Computes the share of a row's tokens in n-grams that occurred before: [N].

  The n-gram repetition penalty of https://arxiv.org/abs/2502.03373, over tokens
  [N, T]. An n-gram lies within one run of the mask [N, T]. Rows are sorted
  by their n-grams, so that equal ones are neighbours.
  """
  tokens, mask = jnp.asarray(tokens), as_mask(mask)
  t = tokens.shape[1] - n + 1
  if t < 2:
    return jnp.zeros(tokens.shape[0])
  grams = [tokens[:, i : i + t] for i in range(n)]
  inside = jnp.stack([mask[:, i : i + t] for i in range(n)]).all(0)
  order = jnp.lexsort((*grams, inside), axis=-1)  # stable: earlier places first
  same = jnp.take_along_axis(inside, order, -1)
  for gram in grams:
    gram = jnp.take_along_axis(gram, order, -1)
    same &= gram == jnp.roll(gram, 1, -1)
  before = jnp.roll(jnp.take_along_axis(inside, order, -1), 1, -1)
  same = (same & before).at[:, 0].set(False)
  again = jnp.take_along_axis(same, jnp.argsort(order, -1), -1)
  # A token is covered if one of the n places up to it begins such an n-gram.
  begun = jnp.pad(jnp.cumsum(again, -1), ((0, 0), (n, n - 1)), mode='edge')
  begun = begun.at[:, :n].set(0)
  covered = begun[:, n:] > begun[:, :-n]
  return safe_divide((covered & mask).sum(-1), mask.sum(-1))


def drop_rows(mask: Array, rows: Array) -> jax.Array:
  """Returns the mask [N, T] without the rows marked in `rows` [N]: overlong
  filtering.

  https://arxiv.org/abs/2503.14476 drops truncated rows, because their reward
  does not depend on their reasoning.
  """
  return as_mask(mask) & ~as_mask(rows)[:, None]
