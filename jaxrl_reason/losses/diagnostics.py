"""What to watch beside a loss. Scalars without gradients.

Every metric is a sum divided by a named divisor of the whole batch, so the
values of micro-batches add up, except names ending in `_max`, which reduce by
max. Ratios of such sums (effective sample size, perplexity) are not additive;
`summarize` forms them at the end from the added-up metrics.
"""

import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  LEVELS,
  absolute,
  as_float,
  as_mask,
  check_shapes,
  choose,
  exp_minus_1_minus,
  keep,
  log_ratio,
  rows_to_tokens,
  safe_divide,
  safe_exp,
  stop,
)


def token_share(x, mask, denominators):
  """Sum over the mask / the batch's tokens: a mean, or the share of a flag."""
  return safe_divide(
    keep(mask, stop(as_float(x))).sum(), denominators['tokens']
  )


def moments(w, mask, denominators, *, prefix):
  """Mean, mean square and max of weights; the square is for `summarize`."""
  w = keep(mask, stop(w))
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
  r = safe_exp(choose('ratio', ratio, LEVELS)(lr, mask))
  # With x = log r: r x - r + 1 = r (e^-x - 1 + x), no cancellation.
  back = safe_exp(lr) * exp_minus_1_minus(-lr)
  return {
    **moments(r, mask, denominators, prefix='ratio'),
    'approx_kl': token_share(exp_minus_1_minus(lr), mask, denominators),
    'approx_kl_rev': token_share(back, mask, denominators),
  }


def clip_metrics(policy, arrays, denominators):
  """The share of tokens past each bound of the policy's loss.

  What a bound is, the loss says itself (`PolicyLoss.clipped`): GMPO's lies at
  e^+-c, Archer's is wider on high-entropy tokens, `clip_dual` is the cap of
  negative advantages.
  """
  past = getattr(policy, 'clipped', lambda _: {})(arrays)
  mask = arrays['mask']
  return {k: token_share(x, mask, denominators) for k, x in past.items()}


def policy_metrics(objective, arrays, denominators):
  """The metrics that every loss returns."""
  d, logp, mask = denominators, arrays['logp'], arrays['mask']
  metrics = dead_rows(arrays['adv'], mask, d)
  metrics['nll'] = token_share(-as_float(logp), mask, d)
  level = getattr(objective.policy, 'ratio', 'token')
  metrics |= ratio_metrics(logp, arrays['old_logp'], mask, d, ratio=level)
  metrics |= clip_metrics(objective.policy, arrays, d)
  if arrays['sampler_logp'] is not None:
    at_sampling, sampler_logp = arrays['at_sampling'], arrays['sampler_logp']
    metrics |= gap_metrics(at_sampling, sampler_logp, mask, d)
  return metrics


def gap_metrics(logp, sampler_logp, mask, denominators):
  """|log pi - log sampler|, and the negative log-likelihood under both."""
  gap = absolute(stop(log_ratio(logp, sampler_logp, mask)))
  return {
    'gap_mean': token_share(gap, mask, denominators),
    'gap_max': gap.max(initial=0.0),
    'nll_sampler': token_share(-as_float(sampler_logp), mask, denominators),
  }


def dead_rows(adv, mask, denominators):
  """Share of the rows whose advantage is 0 everywhere: no signal in them."""
  check_shapes(mask=mask, adv=adv)
  if jnp.ndim(adv) == 1:
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
