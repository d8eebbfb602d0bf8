"""Settings and arrays in, a loss and its metrics out.

Index t of a [N, T] array is about token t: logp[:, t] = log p(token_t |
tokens_<t). `mask` is 1 where the policy sampled the token and it is trained on.

The loss of a token is

  weight * policy(..) + kl_coef * kl - entropy_coef * entropy + sft_coef * nll

where `weight` collects token weights, sampler correction, rejection and token
selection. All of it is divided by the same named divisors, but for the last
term, which has its own tokens.
"""

import functools

import jax.numpy as jnp

from jaxrl_reason.losses import diagnostics, imitation, whole_batch
from jaxrl_reason.losses.aggregation import aggregate, counts
from jaxrl_reason.losses.arrays import (
  as_float,
  as_mask,
  keep,
  rows_to_tokens,
  safe_divide,
  stop,
)
from jaxrl_reason.losses.correction import normalise
from jaxrl_reason.losses.kl import kl_penalty
from jaxrl_reason.losses.ratio import importance_ratio
from jaxrl_reason.losses.settings import (
  BELLMAN,
  call,
  parts,
  required,
  resolve,
  uses_entropy_bonus,
  uses_kl,
)
from jaxrl_reason.losses.value import value_loss

SFT_LOSSES = {'sft': imitation.sft, 'dft': imitation.dft}


def policy_loss(
  settings,
  logp,
  adv,
  mask,
  *,
  old_logp=None,
  ref_logp=None,
  sampler_logp=None,
  entropy=None,
  token_weight=None,
  is_offpolicy=None,
  sft_mask=None,
  selected=None,
  coefs=None,
  key=None,
  denominators=None,
):
  """The loss of one (micro-)batch, a scalar, and its metrics.

  With the whole batch's `denominators` (and `selected`), the sum of this over
  slices of rows is the whole batch's loss, gradient and metrics, but for
  metrics ending in `_max`: take the max.

  Args:
    settings: see `resolve`.
    logp: [N, T] of the current policy, with gradient.
    adv: [N] or [N, T], from `advantages`.
    mask: [N, T], from `loss_mask`.
    old_logp: [N, T], None where the policy has not moved since: the ratio is 1.
    ref_logp, sampler_logp, entropy: [N, T], where `needs` asks for them.
    token_weight: [N, T], multiplies the policy term; not in any divisor.
    is_offpolicy: [N, T], tokens another policy wrote (`offpolicy`).
    sft_mask: [N, T], tokens of the likelihood term (`sft_coef`).
    selected: from `select_tokens`.
    coefs: from `control`, in place of the settings' coefficients.
    key: for settings that draw tokens, when `selected` is None.
  """
  s = resolve(settings)
  if s['policy'] in BELLMAN:
    raise ValueError(
      f'losses: policy={s["policy"]!r} takes full logits: call '
      'losses.bellman_loss instead of losses.policy_loss.'
    )
  mask = as_mask(mask)
  if selected is None:
    selected = whole_batch.select_tokens(
      s, logp, adv, mask, entropy=entropy, key=key, old_logp=old_logp
    )
  at_sampling = stop(logp) if old_logp is None else old_logp
  d = denominators or whole_batch.denominators(
    s,
    mask,
    old_logp=at_sampling,
    sampler_logp=sampler_logp,
    sft_mask=sft_mask,
  )
  off = _off_policy(s, mask, is_offpolicy)
  pool = dict(s, logp=logp, adv=adv, mask=mask, entropy=entropy, **selected)
  pool.update(old_logp=_anchor(s, old_logp, sampler_logp, ref_logp))
  pool.update(sampler_logp=sampler_logp, denominators=d)
  use = parts(s)
  if 'row_entropy' in use:
    pool['high_entropy'] = call(use['row_entropy'], pool)

  own = {**pool, 'mask': mask & ~off, 'at_sampling': at_sampling}
  weight, metrics = _weights(use, own)
  per_token = _policy_term(use, own) * weight + _others_term(pool, off)
  if token_weight is not None:
    per_token = per_token * keep(mask, token_weight)
  mean = functools.partial(
    aggregate,
    mask=mask,
    how=s['aggregation'],
    denominators=d,
    count_empty=s['count_empty'],
  )
  pg_loss = mean(per_token)
  extra, more = _regularisers(pool, coefs or s, mean, ref_logp, at_sampling)
  nll, more_still = _sft_term(pool, coefs or s, sft_mask)
  loss = pg_loss + extra + nll
  metrics = {'loss': stop(loss), 'pg_loss': stop(pg_loss), **metrics}
  metrics.update(**more, **more_still, **_diagnostics(own))
  return loss, metrics


def _anchor(s, old_logp, sampler_logp, ref_logp):
  """The log-probabilities the ratio divides by; None: on-policy."""
  if s['ratio_to'] == 'old':
    return old_logp
  arrays = {'sampler_logp': sampler_logp, 'ref_logp': ref_logp}
  return required(arrays, s['ratio_to'] + '_logp')


def _off_policy(s, mask, is_offpolicy):
  """bool [N, T]: tokens with a loss of their own."""
  if is_offpolicy is None or s['offpolicy'] not in ('luffy', 'sft'):
    return jnp.zeros_like(mask)
  return mask & as_mask(is_offpolicy)


def _weights(use, pool):
  """[N, T] factor on the policy term, and its metrics."""
  mask, d = pool['mask'], pool['denominators']
  between = {**pool, 'old_logp': pool['at_sampling']}
  weight, metrics = keep(mask, 1.0), {}
  if 'correction' in use:
    w = call(use['correction'], between)
    if pool['correction_normalise']:
      w = normalise(w, mask, total=d['weights'], tokens=d['tokens'])
    square = diagnostics.token_share(jnp.square(w), mask, d)
    metrics['weight_mean'] = diagnostics.token_share(w, mask, d)
    metrics.update(weight_sq_mean=square, weight_max=w.max(initial=0.0))
    weight = weight * w
  if 'rejection' in use:
    w = call(use['rejection'], between)
    metrics['rejected'] = diagnostics.token_share(1 - w, mask, d)
    weight = weight * w
  if 'drift' in use and pool['old_logp'] is not None:
    weight = weight * call(use['drift'], pool)
  if 'top_entropy' in use:
    weight = keep(pool['top_entropy'], weight)
  return weight, metrics


def _policy_term(use, pool):
  """[N, T] over the policy's own tokens."""
  if pool['clip_high_entropy'] is None:
    return call(use['policy'], pool)
  at, wide = pool['high_entropy'], pool['clip_high_entropy']
  low = jnp.where(at, wide, pool['clip_low'])
  high = jnp.where(at, wide, pool['clip_high'])
  return call(use['policy'], {**pool, 'clip_low': low, 'clip_high': high})


def _others_term(pool, off):
  """[N, T] over the tokens another policy wrote; no ratio, no correction."""
  if pool['offpolicy'] == 'luffy':
    adv = rows_to_tokens(pool['adv'], off)
    return call(imitation.luffy, {**pool, 'adv': adv, 'mask': off})
  if pool['offpolicy'] == 'sft':
    return call(SFT_LOSSES[pool['sft_loss']], {**pool, 'mask': off})
  return 0.0


def _regularisers(pool, coefs, mean, ref_logp, at_sampling):
  """KL and entropy terms, and their metrics."""
  mask, d, logp = pool['mask'], pool['denominators'], pool['logp']
  total, metrics = 0.0, {}
  if uses_kl(pool) and pool['kl_in'] == 'loss':
    arrays = {'ref_logp': ref_logp, 'old_logp': at_sampling}
    other = required(arrays, pool['kl_to'] + '_logp')
    kl = kl_penalty(logp, other, pool['kl'], mask=mask, kl_max=pool['kl_max'])
    metrics['kl'] = diagnostics.token_share(kl, mask, d)
    if pool['kl_weighted']:
      kl = kl * importance_ratio(logp, pool['old_logp'], mask)
    if pool['kl_high_entropy'] != 1:
      kl = kl * jnp.where(pool['high_entropy'], pool['kl_high_entropy'], 1.0)
    total = total + coefs['kl_coef'] * mean(kl)
  if pool['entropy'] is not None:
    entropy = keep(mask, pool['entropy'])
    metrics['entropy'] = diagnostics.token_share(entropy, mask, d)
  if uses_entropy_bonus(pool):
    entropy = keep(pool.get('entropy_bonus', mask), required(pool, 'entropy'))
    total = total - coefs['entropy_coef'] * mean(keep(mask, entropy))
  return total, metrics


def _sft_term(pool, coefs, sft_mask):
  """sft_coef * mean over the `sft_mask` tokens of their loss."""
  if not pool['sft_coef'] or sft_mask is None:
    return 0.0, {}
  per_token = call(SFT_LOSSES[pool['sft_loss']], {**pool, 'mask': sft_mask})
  nll = safe_divide(per_token.sum(), pool['denominators']['sft_tokens'])
  return coefs['sft_coef'] * nll, {'sft_loss': stop(nll)}


def _diagnostics(pool):
  """Metrics every loss returns."""
  mask, d = pool['mask'], pool['denominators']
  metrics = diagnostics.dead_rows(pool['adv'], mask, d)
  metrics['nll'] = diagnostics.token_share(-as_float(pool['logp']), mask, d)
  metrics.update(call(diagnostics.ratio_metrics, pool))
  if pool['clip_low'] is not None:
    metrics.update(call(diagnostics.clip_metrics, pool))
  if pool['sampler_logp'] is not None:
    between = {**pool, 'logp': pool['at_sampling']}
    metrics.update(call(diagnostics.gap_metrics, between))
  return metrics


def bellman_loss(
  settings,
  logits,
  tokens,
  adv,
  mask,
  *,
  ref_logp=None,
  old_logp=None,
  old_mean_logp=None,
  denominators=None,
):
  """The loss of policy='tbrm' or 'rover', which takes full logits [N, T, V].

  `adv` is what `advantages` gives for the recipe: TBRM reads it as the reward.
  Adds up over micro-batches like `policy_loss`.
  """
  s = resolve(settings)
  mask = as_mask(mask)
  d = denominators or whole_batch.denominators(s, mask)
  pool = dict(s, logits=logits, tokens=tokens, adv=adv, reward=adv, mask=mask)
  pool.update(ref_logp=ref_logp, old_logp=old_logp, old_mean_logp=old_mean_logp)
  loss = call(BELLMAN[s['policy']], pool)
  if loss.ndim == 1:  # one number per row
    rows = d['rows'] if s['count_empty'] else d['nonempty']
    loss = safe_divide(loss.sum(), rows)
  else:
    loss = aggregate(
      loss, mask, s['aggregation'], denominators=d, count_empty=s['count_empty']
    )
  return loss, {'loss': stop(loss)}


def critic_loss(
  settings, values, targets, mask, *, old_values=None, denominators=None
):
  """The mean over tokens of the (clipped) squared error of a critic.

  `targets` from `critic_targets`. Adds up over micro-batches.
  """
  s = resolve(settings)
  pool = dict(s, values=values, targets=targets, mask=mask)
  per_token = call(value_loss, {**pool, 'old_values': old_values})
  d = denominators or counts(mask)
  loss = aggregate(per_token, mask, 'token_mean', denominators=d)
  return loss, {'value_loss': stop(loss)}
