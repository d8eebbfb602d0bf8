"""What to watch beside a loss. Scalars without gradients.

Every metric is a sum divided by a named divisor of the whole batch, so the
values of micro-batches add up, except names ending in `_max`, which reduce by
max. Ratios of such sums (effective sample size, perplexity) are not additive;
`summarize` forms them at the end from the added-up metrics.
"""

import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  as_float,
  as_mask,
  keep,
  rows_to_tokens,
  safe_divide,
  safe_exp,
  stop,
)
from jaxrl_reason.losses.kl import KL_ESTIMATORS
from jaxrl_reason.losses.ratio import LEVELS, importance_ratio, log_ratio


def token_share(x, mask, denominators):
  """Sum over the mask / the batch's tokens: a mean, or the share of a flag."""
  return safe_divide(
    keep(mask, stop(as_float(x))).sum(), denominators['tokens']
  )


def weight_metrics(lr, mask, denominators, *, prefix):
  """Mean, mean square and max of exp(lr); the square is for `summarize`."""
  w = keep(mask, safe_exp(lr))
  # Squares of e^40 summed over a batch overflow float32: e^20 at most here.
  near = jnp.square(jnp.minimum(w, 4.8e8))
  return {
    f'{prefix}_mean': token_share(w, mask, denominators),
    f'{prefix}_sq_mean': token_share(near, mask, denominators),
    f'{prefix}_max': w.max(initial=0.0),
  }


def ratio_metrics(logp, old_logp, mask, denominators, *, ratio='token'):
  """Mean and max of the ratio, and the KL between the two policies.

  With samples from old and r = pi / old: `approx_kl` = mean(r - 1 - log r)
  estimates KL(old || pi), `approx_kl_rev` = mean(r log r - r + 1) estimates
  KL(pi || old).
  """
  lr = stop(log_ratio(logp, old_logp, mask))
  forth, back = KL_ESTIMATORS['k3'](-lr), KL_ESTIMATORS['forward'](-lr)
  return {
    **weight_metrics(
      LEVELS[ratio](lr, mask), mask, denominators, prefix='ratio'
    ),
    'approx_kl': token_share(forth, mask, denominators),
    'approx_kl_rev': token_share(back, mask, denominators),
  }


def clip_metrics(
  logp, old_logp, adv, mask, denominators, *, ratio, clip_low, clip_high
):
  """Share of tokens past the low clip with A < 0, the high one with A > 0."""
  adv = rows_to_tokens(adv, mask)
  r = stop(importance_ratio(logp, old_logp, mask, ratio=ratio))
  low = (r < 1 - clip_low) & (adv < 0)
  high = (r > 1 + clip_high) & (adv > 0)
  return {
    'clip_low': token_share(low, mask, denominators),
    'clip_high': token_share(high, mask, denominators),
  }


def gap_metrics(logp, sampler_logp, mask, denominators):
  """|log pi - log sampler|, and the negative log-likelihood under both."""
  gap = jnp.abs(stop(log_ratio(logp, sampler_logp, mask)))
  return {
    'gap_mean': token_share(gap, mask, denominators),
    'gap_max': gap.max(initial=0.0),
    'nll_sampler': token_share(-as_float(sampler_logp), mask, denominators),
  }


def dead_rows(adv, mask, denominators):
  """Share of the rows whose advantage is 0 everywhere: no signal in them."""
  if adv.ndim == 1:
    live = (as_float(adv) != 0) & as_mask(mask).any(-1)
  else:
    live = (rows_to_tokens(adv, mask) != 0).any(-1)
  rows = safe_divide(as_float(~live).sum(), denominators['rows'])
  return {'dead_rows': stop(rows)}


def summarize(metrics):
  """Turns sums into what they are for: 'ess', 'weight_ess', 'ppl'.

  ess = mean(w)^2 / mean(w^2), the share of the tokens that count; perplexities
  are exp of the mean negative log-likelihood. Squares are dropped.
  """
  out = dict(metrics)
  for prefix, name in (('ratio', 'ess'), ('weight', 'weight_ess')):
    if f'{prefix}_sq_mean' in out:
      square = out.pop(f'{prefix}_sq_mean')
      out[name] = safe_divide(jnp.square(out[f'{prefix}_mean']), square)
  for nll, name in (('nll', 'ppl'), ('nll_sampler', 'ppl_sampler')):
    if nll in out:
      out[name] = safe_exp(out[nll])
  return out


def combine(metrics):
  """Adds up stacked metrics [K] over micro-batches (`_max`: the max)."""
  return {
    k: v.max(0) if k.endswith('_max') else v.sum(0) for k, v in metrics.items()
  }
