"""Computes advantages, the loss and its metrics from arrays.

Index t of a [N, T] array is about token t: logp[:, t] = log p(token_t |
tokens_<t). `mask` is 1 where the policy sampled the token and it is trained on.

  rewards [N] (- KL) --advantage--> adv [N] or [N, T] --shaping--> adv

The loss of a token is

  weight * policy(..) + kl_coef * kl - entropy_coef * entropy + sft_coef * nll
    + distill_coef * divergence from a teacher

where `weight` is the product of token weights, sampler correction, rejection
and token selection. The terms have the same named divisors, except for the nll
term, which has its own tokens. Statistics of the whole batch (`denominators`,
`select_tokens`) are computed once and passed to every micro-batch or device.
Their losses, gradients and metrics then add up to those of the batch.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason.losses import diagnostics, groups
from jaxrl_reason.losses.aggregation import counts
from jaxrl_reason.losses.arrays import (
  Array,
  Arrays,
  Divisors,
  as_float,
  as_mask,
  checked,
  keep,
  possible,
  required,
  row_count,
  row_sum,
  stop,
)
from jaxrl_reason.losses.length import drop_rows
from jaxrl_reason.losses.objective_record import Objective
from jaxrl_reason.losses.selection import top_entropy_tokens
from jaxrl_reason.losses.settings import resolve
from jaxrl_reason.losses.shaping import Whiten

# Tokens with log-prob -inf under one of these policies are masked.
LOGPS = ('logp', 'old_logp', 'ref_logp', 'sampler_logp', 'teacher_logp')

Settings = Objective | Mapping[str, Any] | str
Metrics = dict[str, jax.Array]


def objective_of(settings: Settings) -> Objective:
  """Returns the objective itself, or the one that the settings describe."""
  return settings if isinstance(settings, Objective) else resolve(settings)


def loss_mask(
  settings: Settings,
  mask: Array,
  *,
  truncated: Array | None = None,
  is_offpolicy: Array | None = None,
  reward_valid: Array | None = None,
) -> jax.Array:
  """Chooses the tokens to train on, [N, T] bool, before `denominators`.

  Drops truncated rows (`drop_truncated`) and tokens that the policy did not
  sample (`offpolicy='drop'`: forced prefixes, demonstrations). A row with a
  failed verifier has no target for 'tbrm' and 'rover' and is dropped there; for
  other losses its advantage is 0, and its KL and entropy count.
  """
  o, arrays = objective_of(settings), checked(locals())
  mask = as_mask(mask)
  if o.drop_truncated:
    mask = drop_rows(mask, required(arrays, 'truncated'))
  if o.drop_offpolicy:
    mask &= ~as_mask(required(arrays, 'is_offpolicy'))
  if o.takes_logits and reward_valid is not None:
    mask &= as_mask(reward_valid)[:, None]
  return mask


def advantages(
  settings: Settings,
  reward: Array,
  group: Array,
  *,
  mask: Array,
  reward_valid: Array | None = None,
  reward_parts: Array | None = None,
  greedy_reward: Array | None = None,
  logp: Array | None = None,
  old_logp: Array | None = None,
  ref_logp: Array | None = None,
  teacher_logp: Array | None = None,
  entropy: Array | None = None,
  values: Array | None = None,
  process_reward: Array | None = None,
  segment_reward: Array | None = None,
  segment_ids: Array | None = None,
  node_ids: Array | None = None,
  pass_rate: Array | None = None,
  sampler_logp: Array | None = None,
  sum_p_squared: Array | None = None,
  token_weight: Array | None = None,
  is_offpolicy: Array | None = None,
  key: Array | None = None,
) -> jax.Array:
  """Computes advantages [N] or [N, T], float32, without gradient.

  Args:
    settings: an `Objective`, or see `resolve`.
    reward: [N].
    group: [N] int, rows with the same id are samples of the same prompt.
    mask: [N, T].
    reward_valid: [N], 0 if the verifier failed: such rows get 0 and are in no
      statistic, as rows with a reward that is not finite.
    logp: [N, T], replaces `old_logp` if the policy was not updated.
    token_weight: [N, T], for 'optimal_token' with samples of another policy;
      None: the weights of the settings' correction, if they have one, which
      are 0 for tokens with a loss of their own (`is_offpolicy`).
    key: for advantages with random choices; the built-in ones have none.
    others: arrays that some settings need; `needs` names them.
  """
  o, arrays = objective_of(settings), checked(locals())
  valid = groups.valid_rows(reward, reward_valid)
  if o.skip_empty:
    valid &= row_count(mask) > 0
  reward = as_float(reward) if o.reward is None else o.reward(arrays)
  arrays |= dict(reward=reward, valid=valid, key=key)
  arrays['old_logp'] = logp if old_logp is None else old_logp
  weighs = 'token_weight' in o.advantage.also and token_weight is None
  if weighs and o.correction:
    own = {**arrays, 'mask': _sampled(o, mask, is_offpolicy)}
    arrays['token_weight'] = o.correction.of_batch(own)
  if o.kl is not None and o.kl.where == 'reward':
    arrays |= charge_kl(o, arrays, o.advantage)
  adv = o.advantage(arrays)
  for part in o.shaping:
    shaped = part({**arrays, 'adv': adv})
    if isinstance(part, Whiten) and 'group' in o.advantage.reads:
      shaped = _keep_dead(shaped, adv, group)
    adv = shaped
  return stop(adv)


def charge_kl(
  o: Objective, arrays: Arrays, advantage: Any
) -> dict[str, jax.Array]:
  """Computes the rewards minus kl_coef * KL, per token if the advantage reads
  that.
  """
  old_logp, ref_logp = (required(arrays, k) for k in ('old_logp', 'ref_logp'))
  mask = possible(arrays['mask'], old_logp, ref_logp)
  cost = o.kl.cost(old_logp, ref_logp, mask)
  if 'process_reward' in (*advantage.reads, *advantage.also):
    given = arrays['process_reward']
    dense = -cost if given is None else keep(mask, given) - cost
    return {'process_reward': dense}
  return {'reward': as_float(arrays['reward']) - row_sum(cost, mask)}


def _keep_dead(shaped, adv, group):
  """Sets rows of groups without signal to 0, because whitening shifts them."""
  size = jnp.abs(adv) if adv.ndim == 1 else jnp.abs(adv).sum(-1)
  live = groups.over_group(size, groups.segment_ids(group)) > 0
  return jnp.where(live if shaped.ndim == 1 else live[:, None], shaped, 0.0)


def denominators(
  settings: Settings,
  mask: Array,
  *,
  old_logp: Array | None = None,
  sampler_logp: Array | None = None,
  sft_mask: Array | None = None,
  is_offpolicy: Array | None = None,
  axis_name: Any = None,
) -> dict[str, jax.Array]:
  """Computes the divisors of the whole batch, once, before micro-batching.

  A dict of scalars: 'tokens', 'rows', 'nonempty', 'length', and if the settings
  need them 'weights' and 'weight_tokens' (sum and number of the correction
  weights), 'sft_tokens', and 'sampled', the tokens without a loss of their own
  (`is_offpolicy`); the others have no weight. Inside `shard_map`, `axis_name`
  adds over the mesh axis.
  """
  o, arrays = objective_of(settings), checked(locals())
  arrays['at_sampling'] = old_logp
  sampled = _sampled(o, mask, is_offpolicy)
  own = {**arrays, 'mask': sampled}
  sums = [part.sums(own) for part in o.weights]
  if sampled is not mask:
    sums.append({'sampled': row_count(sampled).sum()})
  sums += [part.sums(arrays) for part in o.terms.values()]
  sums = {name: x for more in sums for name, x in more.items()}
  length = o.aggregation.length
  return counts(mask, length=length, axis_name=axis_name, sums=sums)


def select_tokens(
  settings: Settings,
  logp: Array,
  adv: Array,
  mask: Array,
  *,
  group: Array | None = None,
  entropy: Array | None = None,
  key: Array | None = None,
  old_logp: Array | None = None,
  ref_logp: Array | None = None,
  sampler_logp: Array | None = None,
  teacher_kl: Array | None = None,
  is_offpolicy: Array | None = None,
) -> dict[str, jax.Array]:
  """Makes the token choices that depend on the whole batch: dict of [N, T]
  bool. Tokens with a loss of their own (`is_offpolicy`) are in no choice for
  the policy's loss.

  Pass slices of it to `policy_loss(selected=..)`; otherwise each call selects
  among its own rows. Empty unless `needs` has 'selected'. The arrays are those
  of `policy_loss`.
  """
  o, arrays = objective_of(settings), checked(locals())
  reads = {name for p in o.select.values() for name in (*p.reads, *p.also)}
  arrays |= _anchors(o, arrays, 'old_logp' in reads)
  arrays |= dict(key=key, entropy=stop(entropy))
  own = {**arrays, 'mask': _sampled(o, arrays['mask'], is_offpolicy)}
  out = {name: part(own) for name, part in o.select.items()}
  if o.entropy is not None and o.entropy.share is not None:
    entropy, share = required(arrays, 'entropy'), o.entropy.share
    out['entropy_bonus'] = top_entropy_tokens(
      entropy, mask, entropy_share=share
    )
  return out


def policy_loss(
  settings: Settings,
  logp: Array,
  adv: Array,
  mask: Array,
  *,
  old_logp: Array | None = None,
  ref_logp: Array | None = None,
  sampler_logp: Array | None = None,
  teacher_logp: Array | None = None,
  teacher_kl: Array | None = None,
  old_divergence: Array | None = None,
  entropy: Array | None = None,
  token_weight: Array | None = None,
  is_offpolicy: Array | None = None,
  sft_mask: Array | None = None,
  selected: Mapping[str, Array] | None = None,
  coefs: Mapping[str, Array] | None = None,
  key: Array | None = None,
  group: Array | None = None,
  denominators: Mapping[str, Array] | None = None,
) -> tuple[jax.Array, Metrics]:
  """Computes the loss of one (micro-)batch, a scalar, and its metrics.

  With the whole batch's `denominators` (and `selected`), the sum of this over
  slices of rows is the whole batch's loss, gradient and metrics. Metrics that
  end in `_max` reduce by the maximum.

  Args:
    settings: an `Objective`, or see `resolve`.
    logp: [N, T] of the current policy, with gradient.
    adv: [N] or [N, T], from `advantages`. One dimension means rows, also where
      N = T.
    mask: [N, T], from `loss_mask`.
    old_logp: [N, T]; None if the policy was not updated: the ratio is 1.
    ref_logp, sampler_logp, teacher_logp, entropy: [N, T], if `needs` has them.
    teacher_kl: [N, T], `distillation.divergence` of each token, with gradient.
    old_divergence: [N, T], `DPPOTopK.compare` of each token.
    token_weight: [N, T], multiplies the policy term; not in any divisor.
    is_offpolicy: [N, T], tokens of another policy (`offpolicy`).
    sft_mask: [N, T], tokens of the likelihood term (`sft_coef`).
    selected: from `select_tokens`.
    coefs: from `init_coefs`; they replace the settings' coefficients.
    key: for settings that select random tokens, if `selected` is None.
    group: [N] int, for settings that compare prompts (`max_prompt_tv`), when
      `selected` is None.
  """
  o, arrays = objective_of(settings), checked(locals())
  if o.takes_logits:
    raise ValueError(
      f'losses: policy={o["policy"]!r} takes full logits: call '
      'losses.bellman_loss instead of losses.policy_loss.'
    )
  if denominators is None:
    denominators = whole_batch(o, arrays)
  d = Divisors(denominators)
  if selected is None and 'selected' in o.needs:
    chosen = dict(entropy=entropy, key=key, group=group, old_logp=old_logp)
    chosen |= dict(ref_logp=ref_logp, sampler_logp=sampler_logp)
    chosen |= dict(teacher_kl=teacher_kl, is_offpolicy=is_offpolicy)
    selected = select_tokens(o, logp, adv, mask, **chosen)
  arrays |= _ratio_arrays(o, arrays) | (selected or {})
  if o.offpolicy is None:
    own = arrays
    per_token, metrics = _weighted(o, o.policy(own), own, d)
  else:
    own, per_token, metrics = _with_others(o, arrays, d)
  if token_weight is not None:
    per_token *= keep(mask, token_weight)
  pg_loss = loss = o.aggregation(per_token, mask, d)
  metrics['nonfinite_tokens'] = diagnostics.impossible(mask, arrays['mask'], d)
  metrics |= diagnostics.policy_metrics(o, own, d)
  if entropy is not None:
    sampled = _sampled(o, mask, is_offpolicy)
    metrics['entropy'] = diagnostics.sampled_share(entropy, sampled, d)
  if teacher_logp is not None:  # the k1 estimate
    gap = keep(arrays['mask'], logp) - keep(arrays['mask'], teacher_logp)
    metrics['teacher_kl'] = diagnostics.token_share(gap, arrays['mask'], d)
  for name, term in o.terms.items():
    value, more = term.term(arrays, o.aggregation, d)
    loss, metrics = loss + (coefs or o.coefs)[name] * value, metrics | more
  return loss, {'loss': stop(loss), 'pg_loss': stop(pg_loss), **metrics}


def whole_batch(o: Objective, arrays: Arrays) -> dict[str, jax.Array]:
  """Computes the divisors if the arrays are the whole batch."""
  old_logp, logp = arrays['old_logp'], arrays['logp']
  return denominators(
    o,
    arrays['mask'],
    old_logp=stop(logp) if old_logp is None else old_logp,
    sampler_logp=arrays['sampler_logp'],
    sft_mask=arrays['sft_mask'],
    is_offpolicy=arrays['is_offpolicy'],
  )


def _ratio_arrays(o, arrays):
  """Returns the derived arrays that parts read, and the denominator of the
  ratio.
  """
  out = _anchors(o, arrays, True)
  if arrays['sft_mask'] is not None:
    out['sft_mask'] = possible(arrays['sft_mask'], arrays['logp'])
  if o.row_entropy is not None:
    out['high_entropy'] = o.row_entropy({**arrays, **out})
  return out


def _anchors(o, arrays, reads_old):
  """Returns the mask of possible tokens, and the log-probs to compare with.

  Args:
    reads_old: whether a part reads the ratio's denominator.
  """
  old_logp = arrays['old_logp']
  at_sampling = stop(arrays['logp']) if old_logp is None else old_logp
  logps = [arrays.get(k) for k in LOGPS]
  out = {'mask': possible(arrays['mask'], *logps), 'at_sampling': at_sampling}
  if reads_old and o.ratio_to != 'old':
    out['old_logp'] = required(arrays, o.ratio_to + '_logp')
  return out


def _sampled(o, mask, is_offpolicy):
  """Returns the mask of the tokens without a loss of their own."""
  if o.offpolicy is None or is_offpolicy is None:
    return mask
  return as_mask(mask) & ~as_mask(is_offpolicy)


def _with_others(o, arrays, d):
  """Replaces the loss of off-policy tokens by their own loss."""
  mask = arrays['mask']
  others = mask & as_mask(required(arrays, 'is_offpolicy'))
  own = {**arrays, 'mask': mask & ~others}
  loss, metrics = _weighted(o, o.policy(own), own, d)
  loss += o.offpolicy({**arrays, 'is_offpolicy': others})
  return own, loss, metrics


def _weighted(o, loss, arrays, d):
  """Multiplies the policy loss [N, T] by its weights; returns their metrics."""
  metrics = {}
  for part in o.weights:
    weight, more = part.weight(arrays, d)
    loss, metrics = loss * weight, metrics | more
  return loss, metrics
