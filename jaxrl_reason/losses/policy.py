"""Policy-gradient losses per token: [N, T], 0 outside the mask.

Every function takes (logp, old_logp, adv, mask): `logp` [N, T] of the current
policy, the only input with a gradient; `old_logp` [N, T] of the ratio's
denominator, or None on-policy; `adv` [N] or [N, T]; `mask` [N, T]. The result
is to be minimised; pass it to `aggregate`. The record after a function is the
part of an objective that calls it. Losses of whole rows are in row_policy.py.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Array,
  Arrays,
  absolute,
  as_mask,
  exp_minus_1_minus,
  hard_clip,
  importance_ratio,
  keep,
  log_ratio,
  rows_to_tokens,
  safe_exp,
  stop,
)
from jaxrl_reason.losses.objective_part import Part, part, part_of


class PolicyLoss(Part):
  """A loss per token [N, T] of (logp, old_logp, adv, mask)."""

  def clipped(self, arrays: Arrays) -> dict[str, jax.Array]:
    """Marks the tokens past each bound, {name: bool [N, T]}, for metrics."""
    return {}


def past(
  arrays: Arrays,
  low: Array,
  high: Array,
  *,
  ratio: str = 'token',
  dual: float | None = None,
) -> dict[str, jax.Array]:
  """Marks tokens past a bound that is one-sided by the sign of the
  advantage.
  """
  logp, old_logp, mask = arrays['logp'], arrays['old_logp'], arrays['mask']
  r = stop(importance_ratio(logp, old_logp, mask, ratio=ratio))
  adv = rows_to_tokens(arrays['adv'], mask)
  out = {'clip_low': (r < low) & (adv < 0), 'clip_high': (r > high) & (adv > 0)}
  return out if dual is None else {**out, 'clip_dual': (r > dual) & (adv < 0)}


def log_likelihood(logp: Array, adv: Array, mask: Array) -> jax.Array:
  """Computes -A log pi(y_t): REINFORCE (Williams 1992), RAFT, GPG.

  https://link.springer.com/article/10.1007/BF00992696. No ratio: samples of an
  older policy are used as if they were on-policy.
  """
  return -stop(rows_to_tokens(adv, mask)) * keep(mask, logp)


LogLikelihood = part('LogLikelihood', log_likelihood, PolicyLoss)


def importance_sampling(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  *,
  ratio: str = 'token',
) -> jax.Array:
  """Computes -r A, r = pi / old, with nothing clipped."""
  r = importance_ratio(logp, old_logp, mask, ratio=ratio)
  return -stop(rows_to_tokens(adv, mask)) * r


ImportanceSampling = part('ImportanceSampling', importance_sampling, PolicyLoss)


def ppo_clip(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual_clip: float | None = None,
  ratio: str = 'token',
) -> jax.Array:
  """Computes -min(r A, clip(r, 1 - low, 1 + high) A), r = pi / old.

  PPO https://arxiv.org/abs/1707.06347; low != high is DAPO's clip-higher
  https://arxiv.org/abs/2503.14476; `ratio='sequence_mean'` is GSPO and
  'sequence_mean_token' GSPO-token https://arxiv.org/abs/2507.18071.

  `dual_clip=c` (https://arxiv.org/abs/1912.09729) bounds the ratio of negative
  advantages by c > 1 + high: -max(min(..), c A) for A < 0. The two-sided
  clipping of INTELLECT-2 (https://arxiv.org/abs/2505.07291), min(r, delta) in
  the first term, is the same function with c = delta.

  The code separates the signs of A, so each clip has one side and no ties: for
  A > 0, r is at most 1 + high; for A < 0, r is in [1 - low, c]. `clip_low` and
  `clip_high` may be arrays [N, T] (Archer clips by entropy).
  """
  adv = stop(rows_to_tokens(adv, mask))
  r = importance_ratio(logp, old_logp, mask, ratio=ratio)
  top = jnp.inf if dual_clip is None else dual_clip
  low = jnp.where(adv < 0, 1 - clip_low, 0.0)
  high = jnp.where(adv < 0, top, 1 + clip_high)
  return -adv * hard_clip(r, low, high)


@part_of(ppo_clip)
class PPOClip(PolicyLoss):
  """`ppo_clip` as a part."""

  low: float = 0.2
  high: float = 0.2
  dual: float | None = None
  ratio: str = 'token'

  def clipped(self, arrays: Arrays) -> dict[str, jax.Array]:
    low, high = 1 - self.low, 1 + self.high
    return past(arrays, low, high, ratio=self.ratio, dual=self.dual)


def archer_clip(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  high_entropy: Array,
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual_clip: float | None = None,
  ratio: str = 'token',
  clip_high_entropy: float = 0.5,
) -> jax.Array:
  """Computes `ppo_clip` with one wider range on the tokens `high_entropy` [N,
  T].

  Archer, https://arxiv.org/abs/2507.15778: reasoning tokens may move further
  than knowledge tokens; `selection.high_entropy_in_row` separates them.
  """
  low = jnp.where(high_entropy, clip_high_entropy, clip_low)
  high = jnp.where(high_entropy, clip_high_entropy, clip_high)
  clips = dict(clip_low=low, clip_high=high, dual_clip=dual_clip)
  return ppo_clip(logp, old_logp, adv, mask, ratio=ratio, **clips)


class ArcherClip(part('ArcherClip', archer_clip, PolicyLoss)):
  """`archer_clip` as a part."""

  def clipped(self, arrays: Arrays) -> dict[str, jax.Array]:
    at = arrays['high_entropy']
    low, high = (jnp.where(at, self.wide, x) for x in (self.low, self.high))
    return past(arrays, 1 - low, 1 + high, ratio=self.ratio, dual=self.dual)


def clip_cov(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  cov_tokens: Array,
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
) -> jax.Array:
  """Computes PPO's loss without the tokens `cov_tokens` [N, T]: Clip-Cov.

  https://arxiv.org/abs/2505.22617; `selection.clip_cov_tokens` draws them.
  """
  loss = ppo_clip(
    logp, old_logp, adv, mask, clip_low=clip_low, clip_high=clip_high
  )
  return jnp.where(as_mask(cov_tokens), 0.0, loss)


class ClipCov(part('ClipCov', clip_cov, PolicyLoss)):
  """`clip_cov` as a part."""

  def clipped(self, arrays: Arrays) -> dict[str, jax.Array]:
    drawn = {'clip_cov': arrays['cov_tokens']}
    return past(arrays, 1 - self.low, 1 + self.high) | drawn


def kl_cov(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  cov_tokens: Array,
  *,
  kl_cov_coef: float = 1.0,
) -> jax.Array:
  """Computes -r A, plus coef |log r| on the tokens `cov_tokens` [N, T]: KL-Cov.

  https://arxiv.org/abs/2505.22617; `selection.kl_cov_tokens` finds them. The
  paper writes a KL; |log r| is the estimate its code uses.
  """
  loss = importance_sampling(logp, old_logp, adv, mask)
  drift = absolute(log_ratio(logp, old_logp, mask))
  return loss + jnp.where(as_mask(cov_tokens), kl_cov_coef * drift, 0.0)


KLCov = part('KLCov', kl_cov, PolicyLoss)


def cispo(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  *,
  ratio: str = 'token',
  clip_low: float = 1.0,
  clip_high: float = 4.0,
) -> jax.Array:
  """Computes -sg(clip(r, 1 - low, 1 + high)) A log pi: CISPO (MiniMax-M1).

  https://arxiv.org/abs/2506.13585. The importance weight is clipped, never the
  token: all tokens keep a gradient. The paper uses no lower bound (low = 1)
  and does not publish `high`.
  """
  adv = stop(rows_to_tokens(adv, mask))
  r = stop(importance_ratio(logp, old_logp, mask, ratio=ratio))
  w = keep(mask, hard_clip(r, 1 - clip_low, 1 + clip_high))
  return -w * adv * keep(mask, logp)


@part_of(cispo)
class CISPO(PolicyLoss):
  """`cispo` as a part."""

  ratio: str = 'token'
  low: float = 1.0
  high: float = 4.0

  def clipped(self, arrays: Arrays) -> dict[str, jax.Array]:
    logp, old_logp, _, mask = self.take(arrays)
    w = stop(importance_ratio(logp, old_logp, mask, ratio=self.ratio))
    return {'clip_low': w < 1 - self.low, 'clip_high': w > 1 + self.high}


def sapo(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  *,
  ratio: str = 'token',
  tau_pos: float = 1.0,
  tau_neg: float = 1.05,
) -> jax.Array:
  """Computes -(4 / tau) sigmoid(tau (r - 1)) A, a soft gate instead of a clip:
  SAPO.

  https://arxiv.org/abs/2511.20347. tau_pos where A > 0, tau_neg elsewhere; at
  r = 1 the gradient is that of r A.
  """
  adv = stop(rows_to_tokens(adv, mask))
  r = importance_ratio(logp, old_logp, mask, ratio=ratio)
  tau = jnp.where(adv > 0, tau_pos, tau_neg)
  # Not jax.nn.sigmoid: its gradient s (1 - s) loses all digits near s = 1.
  gate = 1 / (1 + safe_exp(-tau * (r - 1)))
  return keep(mask, -adv * gate * 4 / tau)


SAPO = part('SAPO', sapo, PolicyLoss)


def cpgd(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  drift_coef: float = 0.0,
) -> jax.Array:
  """Computes -min(log r A, clip(log r, ln(1 - low), ln(1 + high)) A) + drift:
  CPGD.

  https://arxiv.org/abs/2505.12504. The loss uses the logarithm of the
  ratio, so no gradient is multiplied by the ratio. The drift is
  drift_coef KL(old || pi), estimated by r - 1 - log r (k3).
  """
  adv = stop(rows_to_tokens(adv, mask))
  lr = log_ratio(logp, old_logp, mask)
  low = jnp.where(adv < 0, jnp.log1p(-clip_low), -jnp.inf)
  high = jnp.where(adv > 0, jnp.log1p(clip_high), jnp.inf)
  drift = drift_coef * exp_minus_1_minus(lr)
  return -adv * hard_clip(lr, low, high) + drift


class CPGD(part('CPGD', cpgd, PolicyLoss)):
  """`cpgd` as a part."""

  def clipped(self, arrays: Arrays) -> dict[str, jax.Array]:
    return past(arrays, 1 - self.low, 1 + self.high)


POLICIES = {
  'log_likelihood': LogLikelihood,
  'importance_sampling': ImportanceSampling,
  'ppo_clip': PPOClip,
  'clip_cov': ClipCov,
  'kl_cov': KLCov,
  'cispo': CISPO,
  'sapo': SAPO,
  'cpgd': CPGD,
}
