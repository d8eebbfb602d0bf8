"""Importance ratios pi / old between the current and an older policy.

  token           r_it = pi(y_it) / old(y_it)
  sequence        s_i  = (prod_t r_it)^(1 / T_i)                        (GSPO)
  sequence_token  s_it = sg(s_i) r_it / sg(r_it): value s_i, gradient of its
                  own token                                       (GSPO-token)
  product         prod_t r_it, the ratio of the whole sequences         (TOPR)

https://arxiv.org/abs/2507.18071. All of them are exponentials of a log-ratio
clamped to +-MAX_LOG_RATIO, of shape [N, T], exactly 0 outside the mask. With
`old_logp=None` the batch is on-policy: old = stop_gradient(logp), and every
ratio is exactly 1 with the gradient of logp.
"""

import jax.numpy as jnp

from jaxrl_reason.losses.arrays import keep, row_mean, row_sum, safe_exp, stop


def log_ratio(logp, old_logp, mask):
  """log pi - log old per token, [N, T], 0 outside the mask."""
  logp = keep(mask, logp)
  old = stop(logp if old_logp is None else keep(mask, old_logp))
  return logp - old


def _per_row(reduce):
  def level(lr, mask):
    return jnp.broadcast_to(reduce(lr, mask)[:, None], lr.shape)

  return level


LEVELS = {
  'token': lambda lr, mask: lr,
  'sequence': _per_row(row_mean),
  'sequence_token': lambda lr, mask: (
    lr - stop(lr) + stop(row_mean(lr, mask))[:, None]
  ),
  'product': _per_row(row_sum),
}


def importance_ratio(logp, old_logp, mask, *, ratio='token'):
  """pi / old at one of the `LEVELS`: [N, T], 0 outside the mask."""
  lr = log_ratio(logp, old_logp, mask)
  return keep(mask, safe_exp(LEVELS[ratio](lr, mask)))
