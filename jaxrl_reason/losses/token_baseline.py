"""The baseline of least variance at every token: OTB, [N, T]."""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses import groups
from jaxrl_reason.losses.arrays import (
  Array,
  as_float,
  as_mask,
  check_shapes,
  choose,
  keep,
  row_count,
  safe_divide,
  safe_exp,
)
from jaxrl_reason.losses.baselines import Advantage
from jaxrl_reason.losses.objective_part import part
from jaxrl_reason.losses.token_advantage import suffix_scan, token_rewards

# Whether tokens are compared by their index within the row, without gaps.
OTB_PLACES = {'column': False, 'token': True}


def _baseline(togo, energy, there, segment):
  """Computes the group's weighted mean return in each column, and its rows."""
  weight = keep(there, energy)
  total = groups.over_group(weight, segment)
  rows = groups.over_group(as_float(there), segment)
  return safe_divide(groups.over_group(weight * togo, segment), total), rows


def optimal_token(
  reward: Array,
  group: Array,
  old_logp: Array,
  sum_p_squared: Array,
  mask: Array,
  *,
  valid: Array | None = None,
  process_reward: Array | None = None,
  token_weight: Array | None = None,
  otb_places: str = 'column',
  singleton: str = 'zero',
) -> jax.Array:
  """Computes A_t = G_t - sum_i G_it W_it / sum_i W_it over the group, G the
  return: OTB.

  https://arxiv.org/abs/2602.07078. W_t = sum_{s <= t} (1 - 2 p_s + sum_v p_v^2)
  is the squared norm of the score by the logits, summed up to t: rows with a
  higher entropy so far have a larger weight. At a token that no other row of
  the group reaches, the advantage is 0, or with `singleton='reward'` the
  return.

  Args:
    old_logp: [N, T], of the policy that sampled.
    sum_p_squared: [N, T], `entropy.sum_p_squared` of its logits.
    token_weight: [N, T], of `correction_weight`: samples of another policy. The
      norm of a token is multiplied by its square, as in verl.
    otb_places: 'column' compares the tokens of one column; 'token' compares the
      k-th tokens of rows, for rows of several turns with different gaps.
  """
  check_shapes(mask=mask, old_logp=old_logp, sum_p_squared=sum_p_squared)
  g = groups.group_of(reward, group, valid)
  packed = choose('otb_places', otb_places, OTB_PLACES)
  there = as_mask(mask) & g.valid[:, None]
  r = token_rewards(reward, mask, valid=valid, process_reward=process_reward)
  togo = keep(there, suffix_scan(r, jnp.ones_like(r)))
  p = safe_exp(keep(there, old_logp))
  norm = keep(there, 1 - 2 * p + keep(there, sum_p_squared))
  if token_weight is not None:
    norm *= jnp.square(keep(there, token_weight))
  energy = jnp.cumsum(norm, -1)
  if packed:  # the row's own tokens first, in their order
    order = jnp.argsort(~there, axis=-1, stable=True)
    place = jnp.argsort(order, axis=-1)
    arrays = [jnp.take_along_axis(x, order, -1) for x in (togo, energy, there)]
    baseline, rows = (
      jnp.take_along_axis(x, place, -1) for x in _baseline(*arrays, g.segment)
    )
  else:
    baseline, rows = _baseline(togo, energy, there, g.segment)
  alone = choose('singleton', singleton, {'zero': 0.0, 'reward': togo})
  return keep(there, jnp.where(rows > 1, togo - baseline, alone))


OptimalToken = part('OptimalToken', optimal_token, Advantage)


def length_preference(
  mask: Array,
  group: Array,
  *,
  length_lambda: float = 1.0,
  length_spread: float = 1 / 9,
) -> jax.Array:
  """Computes weights of rows by their length within the group, of mean 1: [N].

  Lambda-GRPO, https://arxiv.org/abs/2510.06870: n softmax(h^lambda) over the n
  rows of a group, h = 1 + spread z, z the standardised length. 0 weighs all
  rows the same, above 0 prefers long ones, below 0 short ones. Differentiable
  in lambda, which the paper learns. With spread = 1/9, h is positive in groups
  of up to 82 rows; rows without a token get 0.
  """
  n = row_count(mask)
  g = groups.group_of(n, group, n > 0)
  z = safe_divide(groups.centred(g), groups.group_std_of(g, ddof=0))
  log_h = jnp.log(jnp.maximum(1 + length_spread * z, 1e-3))
  # e^80 and the softmax of a difference are finite for any lambda.
  h = jnp.exp(jnp.minimum(length_lambda * log_h, 80.0))
  top = groups.over_group(keep(g.valid, h), g.segment, jax.ops.segment_max)
  weight = keep(g.valid, jnp.exp(keep(g.valid, h - top)))
  return safe_divide(g.n * weight, groups.over_group(weight, g.segment))


def prefer_lengths(
  adv: Array,
  mask: Array,
  group: Array,
  *,
  length_lambda: float = 1.0,
  length_spread: float = 1 / 9,
) -> jax.Array:
  """Multiplies A by `length_preference`, [N] or [N, T]: lambda held
  constant.
  """
  options = dict(length_lambda=length_lambda, length_spread=length_spread)
  weight = length_preference(mask, group, **options)
  return adv * (weight if jnp.ndim(adv) == 1 else weight[:, None])


LengthPreference = part('LengthPreference', prefer_lengths)
