"""Weights [N, T] for data sampled by another policy than the one trained.

The sampler's probabilities differ from the trainer's (other kernels, lower
precision, stale weights). The loss of a token is weighted by a function of

  w = old / sampler

taken per token, per row as a geometric mean ('sequence') or per row as the
whole product ('product'): the `LEVELS` of ratio.py. Weights carry no gradient
and multiply the policy term only, not KL or entropy.

With the policy at the time of the update as `old` this corrects the gap between
two engines (truncated importance sampling, https://fengyao.notion.site/off-
policy-rl; IcePop, https://arxiv.org/abs/2510.18855). With a later proximal
policy as `old` and untruncated weights it is decoupled PPO
(https://arxiv.org/abs/2110.00641) for stale data: ratio to the proximal policy,
weight from the behaviour policy.
"""

import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  as_float,
  as_mask,
  keep,
  safe_divide,
  stop,
)
from jaxrl_reason.losses.ratio import importance_ratio


def _bounds(low, high):
  return 0.0 if low is None else low, jnp.inf if high is None else high


CORRECTIONS = {
  'truncate': lambda w, low, high: jnp.minimum(w, high),
  'clip': lambda w, low, high: jnp.clip(w, low, high),
  'mask': lambda w, low, high: jnp.where((w < low) | (w > high), 0.0, w),
}


def correction_weight(
  old_logp,
  sampler_logp,
  mask,
  *,
  correction='truncate',
  correction_level='token',
  correction_low=None,
  correction_high=2.0,
):
  """w = old / sampler after 'truncate', 'clip' or 'mask': [N, T].

  truncate: min(w, high), TIS. mask: w inside [low, high], 0 outside (IcePop).
  """
  w = stop(
    importance_ratio(old_logp, sampler_logp, mask, ratio=correction_level)
  )
  low, high = _bounds(correction_low, correction_high)
  return keep(mask, CORRECTIONS[correction](w, low, high))


def rejection_weight(
  old_logp,
  sampler_logp,
  mask,
  *,
  reject_level='sequence',
  reject_low=None,
  reject_high=None,
  veto=None,
):
  """1 or 0: what is rejected contributes 0 to the loss and stays in divisors.

  Rejects tokens ('token') or rows ('sequence', 'product') whose w = old /
  sampler leaves [low, high], and rows that have any token with w < veto.
  """
  w = stop(importance_ratio(old_logp, sampler_logp, mask, ratio=reject_level))
  low, high = _bounds(reject_low, reject_high)
  ok = (w >= low) & (w <= high)
  if veto is not None:
    each = stop(importance_ratio(old_logp, sampler_logp, mask))
    ok &= ~(as_mask(mask) & (each < veto)).any(1, keepdims=True)
  return keep(mask, ok)


def normalise(weight, mask, *, total=None, tokens=None):
  """Weights with mean 1 over the batch's tokens.

  `total` and `tokens` are the whole batch's sum of weights and tokens; this
  batch's own if None.
  """
  total = keep(mask, weight).sum() if total is None else total
  tokens = as_float(as_mask(mask)).sum() if tokens is None else tokens
  return keep(mask, weight) * safe_divide(tokens, total)
