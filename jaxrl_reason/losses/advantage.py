"""Settings, rewards and groups in, advantages out.

  rewards [N] (- KL) --ADVANTAGES--> adv [N] or [N, T] --whiten, entropy_shape,
  clip_advantage, weigh_signs--> adv

Index t of a [N, T] array is about token t; `mask` is 1 where the policy sampled
the token and it is trained on.
"""

import jax.numpy as jnp

from jaxrl_reason.losses import groups
from jaxrl_reason.losses.arrays import as_float, keep, row_count, row_sum, stop
from jaxrl_reason.losses.baselines import filter_metric
from jaxrl_reason.losses.kl import kl_penalty
from jaxrl_reason.losses.settings import (
  call,
  parameters,
  parts,
  required,
  resolve,
  uses_kl,
)
from jaxrl_reason.losses.token_advantage import gae, value_targets


def advantages(
  settings,
  reward,
  group,
  *,
  mask,
  reward_valid=None,
  reward_parts=None,
  greedy_reward=None,
  logp=None,
  old_logp=None,
  ref_logp=None,
  entropy=None,
  values=None,
  process_reward=None,
  segment_reward=None,
  segment_ids=None,
  node_ids=None,
  key=None,
):
  """Rewards [N] -> advantages [N] or [N, T], float32, without gradient.

  Args:
    settings: see `resolve`.
    reward: [N].
    group: [N] int, rows with the same id are samples of the same prompt.
    mask: [N, T].
    reward_valid: [N], 0 where the verifier failed: such rows get 0 and are in
      no statistic, like rows whose reward is not finite.
    others: arrays some settings need; `needs` names them. `key` is for
      advantages that draw; none here does.
  """
  del key
  s = resolve(settings)
  use = parts(s)
  reward = as_float(reward)
  valid = groups.valid_rows(reward, reward_valid)
  if s['skip_empty']:
    valid &= row_count(mask) > 0
  pool = dict(s, reward=reward, group=group, mask=mask, valid=valid)
  pool.update(reward_parts=reward_parts, greedy_reward=greedy_reward)
  pool.update(entropy=entropy, values=values, process_reward=process_reward)
  pool.update(segment_reward=segment_reward, segment_ids=segment_ids)
  pool.update(node_ids=node_ids, by=s['whiten'])
  if s['advantage'] == 'gfpo':
    pool['metric'] = filter_metric(reward, mask, keep_by=s['keep_by'])
  if uses_kl(s) and s['kl_in'] == 'reward':
    sampled = logp if old_logp is None else old_logp
    pool = _charge_kl(s, pool, use['advantage'], sampled, ref_logp)
  adv = call(use['advantage'], pool)
  for stage in ('whiten', 'entropy_shape', 'clip_advantage', 'weigh_signs'):
    if stage in use:
      shaped = call(use[stage], {**pool, 'adv': adv})
      if stage == 'whiten' and 'group' in parameters(use['advantage']):
        shaped = _keep_dead(shaped, adv, group)
      adv = shaped
  return stop(adv)


def _charge_kl(s, pool, advantage, sampled, ref_logp):
  """Subtracts kl_coef * KL from the rewards, per token where those exist."""
  arrays = {'old_logp': sampled, 'ref_logp': ref_logp}
  sampled, ref_logp = (required(arrays, name) for name in arrays)
  kl = kl_penalty(
    sampled, ref_logp, s['kl'], mask=pool['mask'], kl_max=s['kl_max']
  )
  cost = s['kl_coef'] * stop(kl)
  if 'process_reward' in parameters(advantage):
    given = pool['process_reward']
    process = -cost if given is None else keep(pool['mask'], given) - cost
    return {**pool, 'process_reward': process}
  return {**pool, 'reward': pool['reward'] - row_sum(cost, pool['mask'])}


def _keep_dead(shaped, adv, group):
  """Whitening shifts every row; rows of groups without signal stay 0."""
  size = jnp.abs(adv) if adv.ndim == 1 else jnp.abs(adv).sum(-1)
  live = groups.over_group(size, groups.segment_ids(group)) > 0
  return jnp.where(live if shaped.ndim == 1 else live[:, None], shaped, 0.0)


def critic_targets(
  settings,
  reward,
  values,
  mask,
  *,
  reward_valid=None,
  old_logp=None,
  ref_logp=None,
  process_reward=None,
):
  """Regression targets of a critic, [N, T], for `critic_loss`.

  The reward, KL included where the settings put it there, is the one
  `advantages` sees; lambda is `value_lambda`.
  """
  s = resolve(settings)
  valid = groups.valid_rows(reward, reward_valid)
  pool = dict(s, reward=reward, values=values, mask=mask, valid=valid)
  pool['process_reward'] = process_reward
  if uses_kl(s) and s['kl_in'] == 'reward':
    pool = _charge_kl(s, pool, gae, old_logp, ref_logp)
  return call(value_targets, pool)
