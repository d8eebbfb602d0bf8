"""Policy-gradient losses per token: [N, T], 0 outside the mask.

Every function takes (logp, old_logp, adv, mask): `logp` [N, T] of the current
policy, the only input with a gradient; `old_logp` [N, T] of the ratio's
denominator, or None on-policy; `adv` [N] or [N, T]; `mask` [N, T]. What comes
back is to be minimised and goes to `aggregate`. A loss of a whole row (GMPO,
mirror descent) is spread over its tokens so that one of the row aggregations,
named in its docstring, gives the published sum.
"""

import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  as_mask,
  hard_clip,
  keep,
  row_count,
  row_mean,
  row_sum,
  rows_to_tokens,
  safe_divide,
  safe_exp,
  stop,
)
from jaxrl_reason.losses.kl import KL_ESTIMATORS
from jaxrl_reason.losses.ratio import importance_ratio, log_ratio


def log_likelihood(logp, adv, mask):
  """-A log pi(y_t): REINFORCE (Williams 1992), RAFT, GPG.

  https://link.springer.com/article/10.1007/BF00992696. No ratio: data from an
  older policy is used as if it were fresh.
  """
  return -stop(rows_to_tokens(adv, mask)) * keep(mask, logp)


def importance_sampling(logp, old_logp, adv, mask, *, ratio='token'):
  """-r A, r = pi / old, with nothing clipped."""
  r = importance_ratio(logp, old_logp, mask, ratio=ratio)
  return -stop(rows_to_tokens(adv, mask)) * r


def ppo_clip(
  logp,
  old_logp,
  adv,
  mask,
  *,
  ratio='token',
  clip_low=0.2,
  clip_high=0.2,
  dual_clip=None,
):
  """-min(r A, clip(r, 1 - low, 1 + high) A), r = pi / old.

  PPO https://arxiv.org/abs/1707.06347; low != high is DAPO's clip-higher
  https://arxiv.org/abs/2503.14476; `ratio='sequence'` is GSPO and
  'sequence_token' GSPO-token https://arxiv.org/abs/2507.18071.

  `dual_clip=c` (https://arxiv.org/abs/1912.09729) bounds the ratio of negative
  advantages by c > 1 + high: -max(min(..), c A) for A < 0. The two-sided
  clipping of INTELLECT-2 (https://arxiv.org/abs/2505.07291), min(r, delta) in
  the first term, is the same function with c = delta.

  Written by the sign of A, so that each clip has one side and no ties:
  A > 0: r is capped at 1 + high; A < 0: r is kept in [1 - low, c]. `clip_low`
  and `clip_high` may be arrays [N, T] (Archer clips by entropy).
  """
  adv = stop(rows_to_tokens(adv, mask))
  r = importance_ratio(logp, old_logp, mask, ratio=ratio)
  top = jnp.inf if dual_clip is None else dual_clip
  low = jnp.where(adv < 0, 1 - clip_low, 0.0)
  high = jnp.where(adv < 0, top, 1 + clip_high)
  return -adv * hard_clip(r, low, high)


def clip_cov(
  logp, old_logp, adv, mask, cov_tokens, *, clip_low=0.2, clip_high=0.2
):
  """PPO's loss without the tokens `cov_tokens` [N, T]: Clip-Cov.

  https://arxiv.org/abs/2505.22617; `selection.clip_cov_tokens` draws them.
  """
  loss = ppo_clip(
    logp, old_logp, adv, mask, clip_low=clip_low, clip_high=clip_high
  )
  return jnp.where(as_mask(cov_tokens), 0.0, loss)


def kl_cov(logp, old_logp, adv, mask, cov_tokens, *, kl_cov_coef=1.0):
  """-r A, plus coef |log r| on the tokens `cov_tokens` [N, T]: KL-Cov.

  https://arxiv.org/abs/2505.22617; `selection.kl_cov_tokens` finds them. The
  paper writes a KL; |log r| is the estimate its code uses.
  """
  loss = importance_sampling(logp, old_logp, adv, mask)
  drift = jnp.abs(log_ratio(logp, old_logp, mask))
  return loss + jnp.where(as_mask(cov_tokens), kl_cov_coef * drift, 0.0)


def cispo(
  logp, old_logp, adv, mask, *, ratio='token', clip_low=1.0, clip_high=4.0
):
  """-sg(clip(r, 1 - low, 1 + high)) A log pi: CISPO (MiniMax-M1).

  https://arxiv.org/abs/2506.13585. The importance weight is clipped, never the
  token: all tokens keep a gradient. The paper uses no lower bound (low = 1)
  and tunes `high` without printing it.
  """
  adv = stop(rows_to_tokens(adv, mask))
  r = stop(importance_ratio(logp, old_logp, mask, ratio=ratio))
  w = keep(mask, hard_clip(r, 1 - clip_low, 1 + clip_high))
  return -w * adv * keep(mask, logp)


def gmpo(logp, old_logp, adv, mask, *, clip_low=0.4, clip_high=0.4):
  """-A (prod_t clipped r_t)^(1 / T): the geometric mean of PPO's terms, GMPO.

  https://arxiv.org/abs/2507.20673. The clip range is (e^-low, e^high),
  one-sided by the sign of A as in PPO. `adv` is one number per row; an [N, T]
  one is averaged over its row. Aggregate with `seq_mean_token_mean`.
  """
  adv = stop(row_mean(rows_to_tokens(adv, mask), mask))[:, None]
  low = jnp.where(adv < 0, -clip_low, -jnp.inf)
  high = jnp.where(adv > 0, clip_high, jnp.inf)
  lr = hard_clip(log_ratio(logp, old_logp, mask), low, high)
  return keep(mask, -adv * safe_exp(row_mean(lr, mask))[:, None])


def sapo(
  logp, old_logp, adv, mask, *, ratio='token', tau_pos=1.0, tau_neg=1.05
):
  """-(4 / tau) sigmoid(tau (r - 1)) A: a soft gate for a hard clip, SAPO.

  https://arxiv.org/abs/2511.20347. tau_pos where A > 0, tau_neg elsewhere; at
  r = 1 the gradient is that of r A.
  """
  adv = stop(rows_to_tokens(adv, mask))
  r = importance_ratio(logp, old_logp, mask, ratio=ratio)
  tau = jnp.where(adv > 0, tau_pos, tau_neg)
  # Not jax.nn.sigmoid: its gradient s (1 - s) loses all digits near s = 1.
  gate = 1 / (1 + safe_exp(-tau * (r - 1)))
  return keep(mask, -adv * gate * 4 / tau)


def cpgd(
  logp, old_logp, adv, mask, *, clip_low=0.2, clip_high=0.2, drift_coef=0.0
):
  """-min(log r A, clip(log r, ln(1 - low), ln(1 + high)) A) + drift: CPGD.

  https://arxiv.org/abs/2505.12504. A clipped policy gradient: the ratio enters
  by its logarithm, so no gradient is multiplied by it. The drift is
  drift_coef KL(old || pi), estimated by r - 1 - log r (k3).
  """
  adv = stop(rows_to_tokens(adv, mask))
  lr = log_ratio(logp, old_logp, mask)
  low = jnp.where(adv < 0, jnp.log1p(-clip_low), -jnp.inf)
  high = jnp.where(adv > 0, jnp.log1p(clip_high), jnp.inf)
  drift = drift_coef * KL_ESTIMATORS['k3'](-lr)
  return -adv * hard_clip(lr, low, high) + drift


def _binary_divergence(logp, old_logp, mask, divergence):
  """TV or KL(old || pi) between (sampled token, all others) of two policies."""
  # exp(-1e-7) is the largest probability: log(1 - p) stays finite.
  logp = jnp.minimum(stop(keep(mask, logp, -1.0)), -1e-7)
  old = jnp.minimum(stop(keep(mask, old_logp, -1.0)), -1e-7)
  p, q = jnp.exp(logp), jnp.exp(old)
  if divergence == 'tv':
    return jnp.abs(p - q)
  rest = jnp.log(-jnp.expm1(old)) - jnp.log(-jnp.expm1(logp))
  return q * (old - logp) + (1 - q) * rest


def dppo(logp, old_logp, adv, mask, *, divergence='tv', max_divergence=0.15):
  """-M r A, M = 0 where a step past the trust region would go further: DPPO.

  https://arxiv.org/abs/2602.04879. M = 0 where D(old, pi) > max_divergence and
  either A > 0 and r > 1, or A < 0 and r < 1. D is the binary estimate, between
  the sampled token and all others: total variation |p - q| (threshold 0.15) or
  'kl' (0.05).
  """
  old_logp = stop(logp) if old_logp is None else old_logp
  adv = stop(rows_to_tokens(adv, mask))
  r = importance_ratio(logp, old_logp, mask)
  far = _binary_divergence(logp, old_logp, mask, divergence) > max_divergence
  away = jnp.where(adv > 0, r > 1, (adv < 0) & (r < 1))
  return jnp.where(far & away, 0.0, -adv * r)


def mirror_descent(
  logp, old_logp, adv, mask, *, md_tau=0.1, md_level='sequence'
):
  """-A log pi + (tau / 2) (log pi / old)^2: the Kimi form of OPMD, and DRO.

  k1.5 https://arxiv.org/abs/2501.12599: per row, log pi and the squared log
  ratio are those of the whole sequence; aggregate with `seq_mean_token_sum`.
  DRO https://arxiv.org/abs/2405.19107, (A - tau log(pi / ref))^2 / 2, has tau
  times this gradient: use `ratio_to='ref'`. `md_level='token'` squares the log
  ratio of each token instead.
  """
  lr = log_ratio(logp, old_logp, mask)
  square = jnp.square(lr)
  if md_level == 'sequence':
    share = safe_divide(jnp.square(row_sum(lr, mask)), row_count(mask))
    square = keep(mask, share[:, None])
  return log_likelihood(logp, adv, mask) + 0.5 * md_tau * square


def vespo(
  logp, old_logp, adv, mask, *, vespo_pos=(2.0, 3.0), vespo_neg=(3.0, 2.0)
):
  """-sg(W^c1 exp(c2 (1 - W))) A log pi, W the whole sequence's ratio: VESPO.

  https://arxiv.org/abs/2602.10693, (c1, c2) by the sign of A. The kernel is 1
  at W = 1 and goes to 0 on both sides.
  """
  adv = stop(rows_to_tokens(adv, mask))
  log_w = stop(row_sum(log_ratio(logp, old_logp, mask), mask))[:, None]
  c1 = jnp.where(adv >= 0, vespo_pos[0], vespo_neg[0])
  c2 = jnp.where(adv >= 0, vespo_pos[1], vespo_neg[1])
  kernel = safe_exp(c1 * log_w + c2 * (1 - safe_exp(log_w)))
  return -kernel * adv * keep(mask, logp)


def topr(
  logp, old_logp, adv, mask, *, topr_pos=(1.0, 1.0), topr_neg=(0.0, 1.0)
):
  """-sg(clip(W, a, b)) A log pi, W the whole sequence's ratio: TOPR.

  https://arxiv.org/abs/2503.14286, (a, b) by the sign of A. The canonical form
  learns from positives as they are (1, 1), and from negatives by a truncated
  weight (0, 1) that vanishes once the policy no longer samples them.
  """
  adv = stop(rows_to_tokens(adv, mask))
  w = stop(importance_ratio(logp, old_logp, mask, ratio='product'))
  low = jnp.where(adv >= 0, topr_pos[0], topr_neg[0])
  high = jnp.where(adv >= 0, topr_pos[1], topr_neg[1])
  return -hard_clip(w, low, high) * adv * keep(mask, logp)


POLICIES = {
  'log_likelihood': log_likelihood,
  'importance_sampling': importance_sampling,
  'ppo_clip': ppo_clip,
  'clip_cov': clip_cov,
  'kl_cov': kl_cov,
  'cispo': cispo,
  'gmpo': gmpo,
  'sapo': sapo,
  'cpgd': cpgd,
  'dppo': dppo,
  'mirror_descent': mirror_descent,
  'vespo': vespo,
  'topr': topr,
}
