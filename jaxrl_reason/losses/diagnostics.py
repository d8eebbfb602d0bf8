"""Diagnostics of a loss: scalars without gradients.

Every metric is a sum divided by a named divisor of the whole batch, so the
values of micro-batches add up, except names ending in `_max`, which reduce by
max. Ratios of such sums (effective sample size, perplexity) are not additive;
`summarize` forms them at the end from the added-up metrics.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  LEVELS,
  Array,
  Arrays,
  Metrics,
  Sums,
  absolute,
  as_float,
  as_mask,
  choose,
  exp_minus_1_minus,
  keep,
  log_ratio,
  rows_to_tokens,
  safe_divide,
  safe_exp,
  stop,
)

# Metrics of sampled tokens alone, for `over_updates`.
OF_SAMPLED = 'entropy', 'kl'


def token_share(x: Array, mask: Array, denominators: Sums) -> jax.Array:
  """Computes the sum over the mask / the batch's tokens: a mean, or the share
  of a flag.
  """
  total = keep(mask, stop(as_float(x))).sum()
  return safe_divide(total, denominators['tokens'])


def sampled_share(x: Array, mask: Array, denominators: Sums) -> jax.Array:
  """Computes the sum over the mask / the batch's tokens that the policy
  sampled: a mean without demonstrations.

  Args:
    mask: [N, T], without tokens of another policy.
  """
  sampled = denominators.get('sampled', denominators['tokens'])
  return token_share(x, mask, {'tokens': sampled})


def shares(mask: Array, denominators: Sums, **values: Array) -> Metrics:
  """Computes `token_share` of every value, by its name."""
  return {k: token_share(x, mask, denominators) for k, x in values.items()}


def impossible(mask: Array, kept: Array, denominators: Sums) -> jax.Array:
  """Computes the share of the mask's tokens that `arrays.possible` left out."""
  lost = as_mask(mask) & ~kept
  return token_share(lost, mask, denominators)


def moments(
  w: Array, mask: Array, denominators: Sums, *, prefix: str
) -> Metrics:
  """Computes mean, mean square and max of weights; the square is for
  `summarize`.
  """
  w = keep(mask, stop(w))
  # Squares of e^40 summed over a batch overflow float32: e^20 at most here.
  sums = {'_mean': w, '_sq_mean': jnp.square(jnp.minimum(w, 4.8e8))}
  out = shares(mask, denominators, **{prefix + k: x for k, x in sums.items()})
  return {**out, f'{prefix}_max': w.max(initial=0.0)}


def ratio_metrics(
  logp: Array,
  old_logp: Array | None,
  mask: Array,
  denominators: Sums,
  *,
  ratio: str = 'token',
) -> Metrics:
  """Computes mean and max of the ratio, and the KL between the two policies.

  With samples from old and r = pi / old: `approx_kl` = mean(r - 1 - log r)
  estimates KL(old || pi), `approx_kl_rev` = mean(r log r - r + 1) estimates
  KL(pi || old).
  """
  lr = stop(log_ratio(logp, old_logp, mask))
  r = safe_exp(choose('ratio', ratio, LEVELS)(lr, mask))
  # With x = log r: r x - r + 1 = r (e^-x - 1 + x), no cancellation.
  forth, back = exp_minus_1_minus(lr), safe_exp(lr) * exp_minus_1_minus(-lr)
  kl = shares(mask, denominators, approx_kl=forth, approx_kl_rev=back)
  return moments(r, mask, denominators, prefix='ratio') | kl


def clip_metrics(policy: Any, arrays: Arrays, denominators: Sums) -> Metrics:
  """Computes the share of tokens past each bound of the policy's loss.

  `PolicyLoss.clipped` defines the bounds of a loss: GMPO's is at e^+-c,
  Archer's is wider on high-entropy tokens, `clip_dual` is the cap of negative
  advantages.
  """
  past = policy.clipped(arrays) if hasattr(policy, 'clipped') else {}
  return shares(arrays['mask'], denominators, **past)


def policy_metrics(
  objective: Any, arrays: Arrays, denominators: Sums
) -> Metrics:
  """Computes the metrics that every loss returns."""
  d, logp, mask = denominators, arrays['logp'], arrays['mask']
  level = getattr(objective.policy, 'ratio', 'token')
  metrics = dead_rows(arrays['adv'], mask, d)
  metrics |= shares(mask, d, nll=-as_float(logp))
  metrics |= ratio_metrics(logp, arrays['old_logp'], mask, d, ratio=level)
  metrics |= clip_metrics(objective.policy, arrays, d)
  metrics |= objective.policy.metrics(arrays, d)
  if arrays['sampler_logp'] is not None:
    both = arrays['at_sampling'], arrays['sampler_logp']
    metrics |= gap_metrics(*both, mask, d)
  return metrics


def gap_metrics(
  logp: Array, sampler_logp: Array, mask: Array, denominators: Sums
) -> Metrics:
  """Computes |log pi - log sampler|, and the negative log-likelihood under
  both.
  """
  gap = absolute(stop(log_ratio(logp, sampler_logp, mask)))
  means = dict(gap_mean=gap, nll_sampler=-as_float(sampler_logp))
  return shares(mask, denominators, **means) | {'gap_max': gap.max(initial=0)}


def dead_rows(adv: Array, mask: Array, denominators: Sums) -> Metrics:
  """Computes the share of the rows whose advantage is 0 everywhere: no signal
  in them.
  """
  # A row without a token gives no signal, for any advantage.
  live = (rows_to_tokens(adv, mask) != 0).any(-1)
  rows = safe_divide(as_float(~live).sum(), denominators['rows'])
  return {'dead_rows': stop(rows)}


def summarize(metrics: Metrics) -> Metrics:
  """Computes the ratios of sums: 'ess', 'weight_ess', 'ppl'.

  ess = mean(w)^2 / mean(w^2), the effective share of the tokens; perplexities
  are exp of the mean negative log-likelihood. Squares are dropped.
  """
  out = {k: x for k, x in metrics.items() if not k.endswith('_sq_mean')}
  for prefix, name in (('ratio', 'ess'), ('weight', 'weight_ess')):
    if f'{prefix}_sq_mean' in metrics:
      square = jnp.square(metrics[f'{prefix}_mean'])
      out[name] = safe_divide(square, metrics[f'{prefix}_sq_mean'])
  names = {k: k.replace('nll', 'ppl') for k in ('nll', 'nll_sampler')}
  exps = {name: safe_exp(out[k]) for k, name in names.items() if k in out}
  return out | exps


def over_updates(
  metrics: Metrics,
  trained: Array,
  sampled: Array | None = None,
  weights: Metrics | None = None,
) -> Metrics:
  """Averages stacked metrics over the updates that trained (`_max`: the max);
  0 if none did.

  Args:
    metrics: [..] each, by the updates.
    trained: bool [..], whether an update has a token with a gradient.
    sampled: bool [..], whether it has a token that the policy sampled: the mean
      of the metrics OF_SAMPLED is over these updates. None: as `trained`.
    weights: weights of the updates, [..] each, for metrics with a weighted
      mean, by the name of the metric.
  """
  sampled = trained if sampled is None else sampled

  def over(name, x):
    if name.endswith('_max'):
      return x.max()
    counts = sampled if name in OF_SAMPLED else trained
    if weights and name in weights:
      counts = trained * weights[name]
    total = counts.sum()
    return (x * counts).sum() / jnp.where(total > 0, total, 1)

  return {name: over(name, x) for name, x in metrics.items()}


def combine(metrics: Metrics) -> Metrics:
  """Adds up stacked metrics [K] over micro-batches (`_max`: the max)."""
  return {
    k: v.max(0) if k.endswith('_max') else v.sum(0) for k, v in metrics.items()
  }
