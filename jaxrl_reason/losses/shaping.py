"""Transformations of estimated advantages.

Arguments and results are [N] or [N, T]; rows and tokens outside the mask do not
change.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Array,
  as_float,
  as_mask,
  check_shapes,
  choose,
  keep,
  masked_mean,
  masked_var,
  rows_to_tokens,
  safe_divide,
  safe_sqrt,
  stop,
)
from jaxrl_reason.losses.objective_part import part


def whiten(
  adv: Array,
  mask: Array,
  *,
  valid: Array | None = None,
  by: str = 'rows',
  whiten_ddof: int = 1,
  whiten_eps: float = 1e-8,
) -> jax.Array:
  """Computes (A - mean) / sqrt(var + eps) over the batch's rows or tokens.

  REINFORCE++ (https://arxiv.org/abs/2501.03262) takes the tokens of the batch,
  its baseline form and GDPO (https://arxiv.org/abs/2601.05242) its rows.

  Args:
    adv: [N] for 'rows'; [N] or [N, T] for 'tokens', which returns [N, T].
    mask: [N, T].
    valid: [N], rows that count; the others are 0.
    by: 'rows' or 'tokens'.
  """
  check_shapes(mask=mask, adv=adv, valid=valid)
  adv = as_float(adv)
  where = jnp.ones(adv.shape[0], bool) if valid is None else as_mask(valid)
  if choose('by', by, {'tokens': True, 'rows': False}):
    adv, where = rows_to_tokens(adv, mask), as_mask(mask) & where[:, None]
  var = masked_var(adv, where, ddof=whiten_ddof)
  centred = adv - masked_mean(adv, where)
  return keep(where, safe_divide(centred, safe_sqrt(var + whiten_eps)))


Whiten = part('Whiten', whiten, flat={'by': 'whiten'})


def entropy_shape(
  adv: Array,
  entropy: Array,
  mask: Array,
  *,
  entropy_alpha: float = 0.4,
  entropy_kappa: float = 2.0,
) -> jax.Array:
  """Computes A + min(alpha H, |A| / kappa): more credit for tokens of high
  entropy.

  https://arxiv.org/abs/2506.14758 (alpha 0.4 with GRPO, 0.1 with PPO). The
  bonus has no gradient. It flips no sign, because kappa >= 1, and A = 0
  stays 0.
  """
  check_shapes(mask=mask, entropy=entropy)
  adv = rows_to_tokens(adv, mask)
  bonus = entropy_alpha * stop(keep(mask, entropy))
  return keep(mask, adv + jnp.minimum(bonus, jnp.abs(adv) / entropy_kappa))


EntropyShape = part('EntropyShape', entropy_shape)


def weigh_signs(
  adv: Array, *, pos_weight: float = 1.0, neg_weight: float = 1.0
) -> jax.Array:
  """Multiplies positive and negative advantages by weights: PSR / NSR.

  https://arxiv.org/abs/2506.01347: (1, 0) trains on successes only, (0, 1) on
  failures only, (0.1, 1) is its Weighted-REINFORCE.
  """
  return jnp.where(adv > 0, pos_weight, neg_weight) * adv


WeighSigns = part('WeighSigns', weigh_signs)


def clip_advantage(adv: Array, *, adv_max: float) -> jax.Array:
  """Clips A to +-adv_max."""
  return jnp.clip(adv, -adv_max, adv_max)


ClipAdvantage = part('ClipAdvantage', clip_advantage)


def clip_reward(
  reward: Array,
  *,
  reward_low: float | None = None,
  reward_high: float | None = None,
) -> jax.Array:
  """Clips rewards [N] to [low, high]; None: no bound. NaN stays NaN."""
  return jnp.clip(as_float(reward), reward_low, reward_high)


ClipReward = part('ClipReward', clip_reward)
