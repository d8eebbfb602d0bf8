"""Selects tokens for a loss, [N, T] bool, by statistics of the batch.

The choices depend on the whole batch. Make them once, before micro-batching,
and slice the result like any other [N, T] array.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl_reason.losses import groups
from jaxrl_reason.losses.arrays import (
  Array,
  as_float,
  as_mask,
  check_shapes,
  importance_ratio,
  keep,
  log_ratio,
  masked_mean,
  row_count,
  row_mean,
  rows_to_tokens,
  safe_divide,
  stop,
)
from jaxrl_reason.losses.distillation import divergence
from jaxrl_reason.losses.objective_part import Weight, part


def covariance(logp: Array, adv: Array, mask: Array) -> jax.Array:
  """Computes (log pi - mean log pi) (A - mean A) per token, means over the
  batch.

  https://arxiv.org/abs/2505.22617: tokens with a high covariance reduce
  entropy.
  """
  check_shapes(mask=mask, logp=logp)
  logp, adv = stop(keep(mask, logp)), rows_to_tokens(adv, mask)
  return keep(
    mask, (logp - masked_mean(logp, mask)) * (adv - masked_mean(adv, mask))
  )


def _largest(score, where, n):
  """Returns the n places in `where` with the largest score; ties by place."""
  flat = jnp.where(where, score, -jnp.inf).reshape(-1)
  order = jnp.argsort(-flat, stable=True)
  place = jnp.zeros_like(order).at[order].set(jnp.arange(flat.size))
  return (place < n).reshape(score.shape) & where


def _count(mask, share):
  return jnp.maximum(jnp.floor(share * row_count(mask).sum()), 1)


def clip_cov_tokens(
  logp: Array,
  adv: Array,
  mask: Array,
  key: jax.Array,
  *,
  old_logp: Array | None = None,
  cov_share: float = 2e-4,
  cov_low: float = 1.0,
  cov_high: float = 5.0,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
) -> jax.Array:
  """Chooses a random share of the tokens whose covariance is in (low, high):
  Clip-Cov.

  https://arxiv.org/abs/2505.22617. At least one token if there is any. Tokens
  beyond the ratio clip are not chosen, as in the paper's code.
  """
  cov = covariance(logp, adv, mask)
  where = as_mask(mask) & (cov > cov_low) & (cov < cov_high)
  if old_logp is not None:
    lr = stop(keep(mask, logp) - keep(mask, old_logp))
    a = rows_to_tokens(adv, mask)
    where &= ~((a > 0) & (lr > jnp.log1p(clip_high)))
    where &= ~((a < 0) & (lr < jnp.log1p(-clip_low)))
  draw = jax.random.uniform(key, cov.shape)
  return _largest(draw, where, _count(mask, cov_share))


ClipCovTokens = part('ClipCovTokens', clip_cov_tokens)


def kl_cov_tokens(
  logp: Array, adv: Array, mask: Array, *, cov_share: float = 2e-4
) -> jax.Array:
  """Chooses the share of the tokens with the largest covariance: KL-Cov."""
  cov = covariance(logp, adv, mask)
  return _largest(cov, as_mask(mask), _count(mask, cov_share))


KLCovTokens = part('KLCovTokens', kl_cov_tokens)


def top_entropy_tokens(
  entropy: Array, mask: Array, *, entropy_share: float = 0.2
) -> jax.Array:
  """Chooses the share of the batch's tokens with the highest entropy.

  https://arxiv.org/abs/2506.01939 trains on the top 20% only and still divides
  by all tokens. Equal entropies at the threshold are all kept.
  """
  check_shapes(mask=mask, entropy=entropy)
  h = jnp.where(as_mask(mask), as_float(entropy), -jnp.inf)
  n = _count(mask, entropy_share).astype(int)
  threshold = jnp.sort(h.reshape(-1))[::-1][n - 1]
  return as_mask(mask) & (h >= threshold)


TopEntropy = part('TopEntropy', top_entropy_tokens)


def low_entropy_tokens(
  entropy: Array, mask: Array, *, low_entropy_share: float = 0.8
) -> jax.Array:
  """Chooses the share of the batch's tokens with the lowest entropy.

  https://arxiv.org/abs/2506.01939 trains on the other 80 % of the tokens as a
  control of `top_entropy_tokens`.
  """
  check_shapes(mask=mask, entropy=entropy)
  count = _count(mask, low_entropy_share)
  return _largest(-as_float(entropy), as_mask(mask), count)


LowEntropy = part('LowEntropy', low_entropy_tokens)


def random_tokens(
  mask: Array, key: jax.Array, *, random_share: float = 0.2
) -> jax.Array:
  """Chooses a random share of the batch's tokens, independent of entropy.

  The control of `top_entropy_tokens` in https://arxiv.org/abs/2506.01939: as
  many tokens, and the same divisor.
  """
  draw = jax.random.uniform(key, jnp.shape(mask))
  return _largest(draw, as_mask(mask), _count(mask, random_share))


RandomTokens = part('RandomTokens', random_tokens)


def high_entropy_in_row(
  entropy: Array, mask: Array, *, entropy_quantile: float = 0.8
) -> jax.Array:
  """Marks tokens at or above the quantile of their own row's entropies.

  Archer, https://arxiv.org/abs/2507.15778, separates reasoning tokens (above)
  and knowledge tokens (below). The quantile is the value of rank ceil(q n).
  """
  check_shapes(mask=mask, entropy=entropy)
  m = as_mask(mask)
  h = jnp.where(m, as_float(entropy), jnp.inf)
  rank = jnp.ceil(entropy_quantile * row_count(mask)).astype(int)
  place = jnp.clip(rank - 1, 0, h.shape[1] - 1)[:, None]
  threshold = jnp.take_along_axis(jnp.sort(h, 1), place, 1)
  return m & (h >= threshold)


def second_moment_tokens(
  at_sampling: Array,
  sampler_logp: Array,
  mask: Array,
  *,
  max_second_moment: float = 0.04,
) -> jax.Array:
  """Chooses the tokens whose mean squared log ratio is below a bound: M2PO.

  https://arxiv.org/abs/2510.01161. Tokens are left out by size of
  (log old - log sampler)^2, the largest first, until the mean of the others is
  below `max_second_moment`, in nats^2. As in AReaL, `old` is the policy before
  the updates of the batch, and at least one token is chosen.
  """
  check_shapes(mask=mask, at_sampling=at_sampling, sampler_logp=sampler_logp)
  where = as_mask(mask)
  square = jnp.square(stop(log_ratio(at_sampling, sampler_logp, mask)))
  ranked = jnp.sort(jnp.where(where, square, -1.0).reshape(-1))
  kept = jnp.maximum(ranked, 0.0).cumsum()  # smallest first
  n = where.sum()
  rank = jnp.arange(ranked.size) - (ranked.size - n)
  below = kept < max_second_moment * (rank + 1)
  # The mean grows with every token, so the count is the last one below.
  chosen = jnp.maximum((below & (rank >= 0)).sum(), 1)
  return _largest(-square, where, chosen)


SecondMoment = part('SecondMoment', second_moment_tokens)


def uncertain_tokens(
  entropy: Array, mask: Array, *, left_out: float = 0.2
) -> jax.Array:
  """Chooses the share of the tokens with the highest entropy: EKSFT.

  https://arxiv.org/abs/2605.29303. Unlike `top_entropy_tokens`, it chooses none
  if the share is less than a token, and the first of equal entropies.
  """
  check_shapes(mask=mask, entropy=entropy)
  where = as_mask(mask)
  n = jnp.floor(left_out * row_count(mask).sum())
  return _largest(stop(as_float(entropy)), where, n)


Uncertain = part('Uncertain', uncertain_tokens)


def moved_tokens(
  teacher_kl: Array, mask: Array, *, left_out: float = 0.2
) -> jax.Array:
  """Chooses the share of the tokens with the highest KL(pi || reference):
  EKSFT, https://arxiv.org/abs/2605.29303.
  """
  check_shapes(mask=mask, teacher_kl=teacher_kl)
  where, kl = as_mask(mask), stop(as_float(teacher_kl))
  n = jnp.floor(left_out * row_count(mask).sum())
  # At the start of a stage all divergences are 0, up to rounding.
  return _largest(kl, where & (kl > 1e-6), n)


class Moved(part('Moved', moved_tokens)):
  """`moved_tokens` as a part."""

  def compare(self, logits: Array, reference: Array) -> jax.Array:
    """Computes the divergence over the vocabulary, [.., V] -> [..]."""
    return divergence(logits, reference)


def tokens_within_tv(
  logp: Array,
  old_logp: Array,
  adv: Array,
  mask: Array,
  group: Array,
  *,
  max_prompt_tv: float = 0.02,
) -> jax.Array:
  """Chooses tokens of prompts near the old policy, and those that return: TVPO.

  open-instruct (https://github.com/allenai/open-instruct). The total variation
  of a prompt is bounded by the mean of |pi / old - 1| / 2 over the tokens of a
  row, then over the rows of its group. If it exceeds `max_prompt_tv`, a
  probability, only tokens whose gradient moves pi towards old are chosen.
  """
  check_shapes(mask=mask, logp=logp, old_logp=old_logp, group=group)
  adv = rows_to_tokens(adv, mask)
  r = stop(importance_ratio(logp, old_logp, mask))
  tv = 0.5 * row_mean(jnp.abs(r - 1), mask)
  segment = groups.segment_ids(group)
  rows = groups.over_group(as_float(row_count(mask) > 0), segment)
  prompt_tv = safe_divide(groups.over_group(tv, segment), rows)
  near = (prompt_tv <= max_prompt_tv)[:, None]
  return as_mask(mask) & (near | (adv * jnp.sign(r - 1) <= 0))


WithinTV = part('WithinTV', tokens_within_tv)


@dataclasses.dataclass(frozen=True)
class OnlySelected(Weight):
  """Trains on the tokens that a part of `Objective.select` chose."""

  name: str = 'top_entropy'

  def __call__(self, arrays):
    return as_float(as_mask(arrays[self.name]))


@dataclasses.dataclass(frozen=True)
class LeftOut(Weight):
  """Trains on the tokens that are chosen by none of the parts `chosen` of
  `Objective.select`.
  """

  chosen: tuple[str, ...] = ()

  def __call__(self, arrays):
    left_out = (as_mask(arrays[name]) for name in self.chosen)
    return 1.0 - as_float(functools.reduce(jnp.logical_or, left_out))


@dataclasses.dataclass(frozen=True)
class OnlyLow(OnlySelected):
  """Trains on the tokens that `low_entropy_tokens` chose."""

  name: str = 'low_entropy'


@dataclasses.dataclass(frozen=True)
class OnlyDrawn(OnlySelected):
  """Trains on the tokens that `random_tokens` chose."""

  name: str = 'random'


@dataclasses.dataclass(frozen=True)
class OnlyModerate(OnlySelected):
  """Trains on the tokens that `second_moment_tokens` chose."""

  name: str = 'second_moment'
  metric = 'outside_second_moment'


@dataclasses.dataclass(frozen=True)
class OnlyWithinTV(OnlySelected):
  """Trains on the tokens that `tokens_within_tv` chose."""

  name: str = 'within_tv'
  metric = 'outside_tv'


HighEntropy = part('HighEntropy', high_entropy_in_row)


def off_policy_rows(
  logp: Array, old_logp: Array, adv: Array, mask: Array, *, max_row_drift: float
) -> jax.Array:
  """Computes weights [N, T] that drop negative rows with a large policy drift.

  DeepSeek-V3.2, https://arxiv.org/abs/2512.02556: 0 where A < 0 and the row's
  mean of log old - log pi exceeds `max_row_drift`, 1 elsewhere; on-policy
  (`old_logp=None`) 1 everywhere.
  """
  check_shapes(mask=mask, logp=logp, old_logp=old_logp)
  if old_logp is None:
    return keep(mask, 1.0)
  drift = row_mean(stop(keep(mask, old_logp) - keep(mask, logp)), mask)
  drop = (rows_to_tokens(adv, mask) < 0) & (drift > max_row_drift)[:, None]
  return keep(mask, ~drop)


DropDrifted = part('DropDrifted', off_policy_rows, Weight, metric='drifted')


COV_TOKENS = {'clip_cov': ClipCovTokens, 'kl_cov': KLCovTokens}
