"""Losses of critics, and of policies whose logits are action values."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxrl_reason.losses import diagnostics, groups
from jaxrl_reason.losses.aggregation import aggregate, counts
from jaxrl_reason.losses.arrays import (
  Array,
  Divisors,
  checked,
  possible,
  required,
  stop,
)
from jaxrl_reason.losses.objective import (
  Metrics,
  Settings,
  charge_kl,
  objective_of,
)
from jaxrl_reason.losses.objective import (
  denominators as divisors_of,
)
from jaxrl_reason.losses.token_advantage import ValueTargets
from jaxrl_reason.losses.value import ValueLoss


def critic_targets(
  settings: Settings,
  reward: Array,
  values: Array,
  mask: Array,
  *,
  reward_valid: Array | None = None,
  old_logp: Array | None = None,
  ref_logp: Array | None = None,
  process_reward: Array | None = None,
) -> jax.Array:
  """Computes regression targets of a critic, [N, T], for `critic_loss`.

  The reward is that of `advantages`, with the KL if kl_in='reward'; lambda is
  `value_lambda`.
  """
  o, arrays = objective_of(settings), checked(locals())
  valid = groups.valid_rows(reward, reward_valid)
  arrays['valid'] = valid
  if o.reward is not None:
    arrays['reward'] = o.reward(arrays)
  part = o.critic[0] if o.critic else ValueTargets.read(o.settings)
  if o.kl is not None and o.kl.where == 'reward':
    arrays |= charge_kl(o, arrays, part)
  return part(arrays)


def critic_loss(
  settings: Settings,
  values: Array,
  targets: Array,
  mask: Array,
  *,
  old_values: Array | None = None,
  denominators: Mapping[str, Array] | None = None,
) -> tuple[jax.Array, Metrics]:
  """Computes the mean over tokens of the (clipped) squared error of a critic.

  `targets` from `critic_targets`. Adds up over micro-batches.
  """
  o, arrays = objective_of(settings), checked(locals())
  part = o.critic[1] if o.critic else ValueLoss.read(o.settings)
  per_token = part(arrays)
  d = counts(mask) if denominators is None else denominators
  loss = aggregate(per_token, mask, 'token_mean', denominators=d)
  return loss, {'value_loss': stop(loss)}


def bellman_loss(
  settings: Settings,
  logits: Array,
  tokens: Array,
  adv: Array,
  mask: Array,
  *,
  ref_logp: Array | None = None,
  old_logp: Array | None = None,
  old_mean_logp: Array | None = None,
  denominators: Mapping[str, Array] | None = None,
) -> tuple[jax.Array, Metrics]:
  """Computes the loss of policy='tbrm' or 'rover', which takes full logits [N,
  T, V].

  `adv` is the result of `advantages`; TBRM reads it as the reward.
  Adds up over micro-batches like `policy_loss`.
  """
  o, arrays = objective_of(settings), checked(locals())
  for name in set(o.policy.reads) & set(arrays):
    required(arrays, name)
  if denominators is None:
    denominators = divisors_of(o, mask)
  d = Divisors(denominators)
  drawn = jnp.take_along_axis(
    jnp.asarray(logits), jnp.asarray(tokens)[..., None], -1
  )[..., 0]
  all_tokens = mask
  mask = possible(mask, drawn, ref_logp, old_logp, old_mean_logp)
  loss = o.policy({**arrays, 'mask': mask, 'reward': adv})
  loss = o.aggregation(loss, all_tokens, d)
  lost = diagnostics.impossible(all_tokens, mask, d)
  return loss, {'loss': stop(loss), 'nonfinite_tokens': lost}
