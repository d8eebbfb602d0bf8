"""Weights [N, T] for samples of another policy than the trained one.

The sampler's probabilities differ from the trainer's (other kernels, lower
precision, stale weights). The loss of a token is weighted by a function of

  w = old / sampler

taken per token, per row as a geometric mean ('sequence_mean') or per row
as the whole product ('sequence_product'): the `LEVELS` of arrays.py. Weights
carry no gradient and multiply the policy term only, not KL or entropy.

With the policy at the time of the update as `old` this corrects the gap between
two engines (truncated importance sampling, https://fengyao.notion.site/off-
policy-rl; IcePop, https://arxiv.org/abs/2510.18855). With a later proximal
policy as `old` and untruncated weights it is decoupled PPO
(https://arxiv.org/abs/2110.00641) for stale data: ratio to the proximal policy,
weight from the behaviour policy.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  LEVELS,
  Array,
  Arrays,
  Metrics,
  Sums,
  as_mask,
  check_shapes,
  choose,
  exp_minus_1_minus,
  importance_ratio,
  keep,
  log_ratio,
  possible,
  row_count,
  row_mean,
  row_sum,
  safe_divide,
  safe_exp,
  stop,
)
from jaxrl_reason.losses.diagnostics import moments
from jaxrl_reason.losses.objective_part import Weight, flat_names, part_of


def _bounds(low, high):
  return 0.0 if low is None else low, jnp.inf if high is None else high


def _truncate(w, low, high):
  return jnp.minimum(w, high)


def _clip(w, low, high):
  return jnp.clip(w, low, high)


def _mask(w, low, high):
  return jnp.where((w < low) | (w > high), 0.0, w)


def correction_weight(
  old_logp: Array,
  sampler_logp: Array,
  mask: Array,
  *,
  correction: str = 'truncate',
  correction_level: str = 'token',
  correction_low: float | None = None,
  correction_high: float | None = 2.0,
) -> jax.Array:
  """Computes w = old / sampler after 'truncate', 'clip' or 'mask': [N, T].

  truncate: min(w, high), TIS. mask: w inside [low, high], 0 outside (IcePop).
  """
  check_shapes(mask=mask, old_logp=old_logp, sampler_logp=sampler_logp)
  bound = choose('correction', correction, _BOUNDED)
  w = stop(
    importance_ratio(old_logp, sampler_logp, mask, ratio=correction_level)
  )
  return keep(mask, bound(w, *_bounds(correction_low, correction_high)))


_BOUNDED = {'truncate': _truncate, 'clip': _clip, 'mask': _mask}


@dataclasses.dataclass(frozen=True)
class Truncate(Weight):
  """min(w, high), w = old / sampler: truncated importance sampling."""

  high: float | None = 2.0
  level: str = 'token'
  normalise: bool = False
  low: float | None = None
  how = 'truncate'
  reads = ('at_sampling', 'sampler_logp', 'mask')
  names = flat_names('correction', 'high level normalise low')

  @property
  def keys_read(self) -> set[str]:
    unread = {'correction_low'} if self.how == 'truncate' else set()
    return super().keys_read - unread

  def __call__(self, arrays):
    return correction_weight(
      *self.take(arrays),
      correction=self.how,
      correction_level=self.level,
      correction_low=self.low,
      correction_high=self.high,
    )

  def of_batch(self, arrays: Arrays) -> jax.Array:
    """Computes the weights of a whole batch, for its advantages."""
    old, sampler = arrays['old_logp'], arrays['sampler_logp']
    mask = possible(arrays['mask'], old, sampler)
    w = self({**arrays, 'at_sampling': old, 'mask': mask})
    return normalise(w, mask) if self.normalise else w

  def sums(self, arrays: Arrays) -> dict[str, jax.Array]:
    if not self.normalise:
      return {}
    mask = arrays['mask']
    total = keep(mask, self(arrays)).sum()
    return {'weights': total, 'weight_tokens': row_count(mask).sum()}

  def weight(
    self, arrays: Arrays, denominators: Sums
  ) -> tuple[jax.Array, Metrics]:
    w, mask, d = self(arrays), arrays['mask'], denominators
    if self.normalise:
      w = normalise(w, mask, total=d['weights'], tokens=d['weight_tokens'])
    return w, moments(w, mask, d, prefix='weight')


class Clip(Truncate):
  """clip(w, low, high)."""

  how = 'clip'


class Mask(Truncate):
  """w inside [low, high], 0 outside: IcePop."""

  how = 'mask'


CORRECTIONS = {'truncate': Truncate, 'clip': Clip, 'mask': Mask}


def _ratio_of(lr):
  return safe_exp(lr)


def _k2_of(lr):
  return 0.5 * jnp.square(lr)


REJECT_BY = {'ratio': _ratio_of, 'k2': _k2_of, 'k3': exp_minus_1_minus}


def _row_sum(x, mask):
  return row_sum(x, mask)[:, None]


def _row_mean(x, mask):
  return row_mean(x, mask)[:, None]


def _row_max(x, mask):
  return keep(mask, x).max(-1, keepdims=True, initial=0.0)


ROW_STATISTICS = {'sum': _row_sum, 'mean': _row_mean, 'max': _row_max}
REJECT_LEVELS = {**LEVELS, **ROW_STATISTICS}


def rejection_weight(
  old_logp: Array,
  sampler_logp: Array,
  mask: Array,
  *,
  reject_by: str = 'ratio',
  reject_level: str = 'sequence_mean',
  reject_low: float | None = None,
  reject_high: float | None = None,
  veto: float | None = None,
) -> jax.Array:
  """Returns 1, or 0 for rejected tokens. These contribute 0 to the loss, and
  the divisors still count them.

  Rejects values outside [low, high], and rows that have any token with w <
  veto; w = old / sampler.

  Args:
    reject_by: per token 'ratio' w, 'k2' (log w)^2 / 2 or 'k3' w - 1 - log w.
    reject_level: 'token'; the 'sum', 'mean' or 'max' of it over a row's tokens;
      for 'ratio' also the `LEVELS` of one ratio per row.
  """
  check_shapes(mask=mask, old_logp=old_logp, sampler_logp=sampler_logp)
  lr = stop(log_ratio(old_logp, sampler_logp, mask))
  each = choose('reject_by', reject_by, REJECT_BY)
  level = choose('reject_level', reject_level, REJECT_LEVELS)
  if reject_level in ROW_STATISTICS or reject_by != 'ratio':
    x = level(each(lr), mask)
  else:
    x = each(level(lr, mask))
  low, high = _bounds(reject_low, reject_high)
  ok = (x >= low) & (x <= high)
  if veto is not None:
    ok &= ~(as_mask(mask) & (safe_exp(lr) < veto)).any(1, keepdims=True)
  return keep(mask, ok)


@part_of(rejection_weight, reads={'old_logp': 'at_sampling'})
class Reject(Weight):
  """`rejection_weight` as a part."""

  reject_by: str = 'ratio'
  reject_level: str = 'sequence_mean'
  reject_low: float | None = None
  reject_high: float | None = None
  veto: float | None = None
  metric = 'rejected'

  @property
  def keys_read(self) -> set[str]:
    bounded = self.reject_low is not None or self.reject_high is not None
    unread = set() if bounded else {'reject_by', 'reject_level'}
    return super().keys_read - unread


def normalise(
  weight: Array,
  mask: Array,
  *,
  total: Array | None = None,
  tokens: Array | None = None,
) -> jax.Array:
  """Scales weights to mean 1 over the batch's tokens.

  `total` and `tokens` are the whole batch's sum of weights and of tokens; None
  uses this batch.
  """
  total = keep(mask, weight).sum() if total is None else total
  tokens = row_count(mask).sum() if tokens is None else tokens
  return keep(mask, weight) * safe_divide(tokens, total)


def proximal_logp(
  logp: Array, sampler_logp: Array, age: Array, mask: Array
) -> jax.Array:
  """Approximates the log-probs before an update without a pass: [N, T].

  AReaL (https://arxiv.org/abs/2505.24298), 'loglinear': the policy before the
  update is at `age` of `age + 1` updates between the sampler and the trained
  policy, interpolated in log-probability. Use it as `old_logp`.

  Args:
    logp: [N, T], of the trained policy; without gradient.
    age: [N, T], updates between the sampler and the policy before the update.
  """
  check_shapes(mask=mask, logp=logp, sampler_logp=sampler_logp, x=age)
  behind, age = keep(mask, sampler_logp), keep(mask, age)
  return behind + safe_divide(age, age + 1) * stop(keep(mask, logp) - behind)
