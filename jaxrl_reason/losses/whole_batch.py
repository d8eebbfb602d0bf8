"""What has to be known of the whole batch before it is split.

Computed once, then handed to every micro-batch or device: their losses,
gradients and metrics add up to those of the whole.
"""

from jaxrl_reason.losses.aggregation import counts
from jaxrl_reason.losses.arrays import as_float, as_mask, keep, stop
from jaxrl_reason.losses.length import drop_rows
from jaxrl_reason.losses.selection import top_entropy_tokens
from jaxrl_reason.losses.settings import BELLMAN, call, parts, resolve


def loss_mask(
  settings, mask, *, truncated=None, is_offpolicy=None, reward_valid=None
):
  """The tokens to train on, [N, T] bool; make it before `denominators`.

  Leaves out rows cut off at the limit (`drop_truncated`) and tokens the policy
  did not sample (`offpolicy='drop'`: forced prefixes, demonstrations). A row
  whose verifier failed has no target for 'tbrm' and 'rover' and is left out;
  elsewhere its advantage is 0 and its KL and entropy still count.
  """
  s = resolve(settings)
  mask = as_mask(mask)
  if s['drop_truncated']:
    mask = drop_rows(mask, truncated)
  if s['offpolicy'] == 'drop':
    mask &= ~as_mask(is_offpolicy)
  if s['policy'] in BELLMAN and reward_valid is not None:
    mask &= as_mask(reward_valid)[:, None]
  return mask


def denominators(
  settings,
  mask,
  *,
  old_logp=None,
  sampler_logp=None,
  sft_mask=None,
  axis_name=None,
):
  """The divisors of the whole batch, computed once before micro-batching.

  A dict of float32 scalars: 'tokens', 'rows', 'nonempty', 'length', and where
  the settings ask for them 'weights' (sum of the correction weights) and
  'sft_tokens'. Inside `shard_map`, `axis_name` adds over the mesh axis.
  """
  s = resolve(settings)
  sums = {}
  if s['correction_normalise']:
    pool = dict(s, mask=mask, old_logp=old_logp, sampler_logp=sampler_logp)
    weight = call(parts(s)['correction'], pool)
    sums['weights'] = keep(mask, weight).sum()
  if s['sft_coef'] > 0 and sft_mask is not None:
    sums['sft_tokens'] = as_float(as_mask(sft_mask)).sum()
  return counts(mask, length=s['fixed_length'], axis_name=axis_name, sums=sums)


def select_tokens(
  settings, logp, adv, mask, *, entropy=None, key=None, old_logp=None
):
  """The token choices that depend on the whole batch: dict of [N, T] bool.

  Hand slices of it to `policy_loss(selected=..)`; without it each call chooses
  among its own rows. Empty unless `needs` has 'selected'.
  """
  s = resolve(settings)
  use = parts(s)
  pool = dict(s, logp=logp, adv=adv, mask=mask, key=key)
  pool.update(old_logp=old_logp, entropy=stop(entropy))
  out = {
    k: call(use[k], pool) for k in ('cov_tokens', 'top_entropy') if k in use
  }
  if s['entropy_bonus_share'] is not None:
    out['entropy_bonus'] = top_entropy_tokens(
      stop(entropy), mask, entropy_share=s['entropy_bonus_share']
    )
  return out
