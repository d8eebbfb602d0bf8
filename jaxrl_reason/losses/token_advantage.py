"""Advantages per token, [N, T], 0 outside the mask.

Gaps in a mask (tool output between two turns) are skipped: the token after a
gap is the next token, and a gap is not discounted.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses import groups
from jaxrl_reason.losses.arrays import (
  Array,
  as_float,
  as_mask,
  check_shapes,
  keep,
  row_count,
  row_mean,
  rows_to_tokens,
  stop,
)
from jaxrl_reason.losses.baselines import Advantage, leave_one_out
from jaxrl_reason.losses.objective_part import part


def suffix_scan(x: jax.Array, g: Array) -> jax.Array:
  """Computes y_t = x_t + g_t y_{t+1} along the last axis, in log2(T) parallel
  steps.
  """

  def join(later, earlier):
    return later[0] * earlier[0], earlier[1] + earlier[0] * later[1]

  g = jnp.broadcast_to(g, x.shape)
  return jax.lax.associative_scan(join, (g, x), reverse=True, axis=x.ndim - 1)[
    1
  ]


def next_token(x: Array, mask: Array) -> jax.Array:
  """Computes x at the next set token, 0 after the last."""
  m = as_float(as_mask(mask))
  seen = suffix_scan(keep(mask, x), 1 - m)
  return jnp.pad(seen[:, 1:], ((0, 0), (0, 1)))


def last_token(mask: Array) -> jax.Array:
  """Marks the last set token of each row, bool [N, T]."""
  m = as_mask(mask)
  return m & (jnp.flip(jnp.cumsum(jnp.flip(m, -1), -1), -1) == 1)


def token_rewards(
  reward: Array,
  mask: Array,
  *,
  valid: Array | None = None,
  process_reward: Array | None = None,
) -> jax.Array:
  """Adds rewards [N] to the last token, and rewards [N, T] if given; invalid
  rows get 0.
  """
  check_shapes(
    mask=mask, reward=reward, valid=valid, process_reward=process_reward
  )
  ok = groups.valid_rows(reward, valid)
  outcome = jnp.where(ok, as_float(reward), 0.0)[:, None]
  r = jnp.where(last_token(mask), outcome, 0.0)
  if process_reward is not None:
    r = r + keep(as_mask(mask) & ok[:, None], process_reward)
  return r


def returns(
  reward: Array,
  mask: Array,
  *,
  valid: Array | None = None,
  process_reward: Array | None = None,
  gamma: float = 1.0,
) -> jax.Array:
  """Computes A_t = sum_{s >= t} gamma^(s-t) r_s: REINFORCE++ before its
  whitening.

  https://arxiv.org/abs/2501.03262: r is the reward on the last token, and with
  `kl_in='reward'` minus beta times the k1 KL on every token.
  """
  r = token_rewards(reward, mask, valid=valid, process_reward=process_reward)
  g = jnp.where(as_mask(mask), gamma, 1.0)
  return keep(mask, suffix_scan(r, g))


Returns = part('Returns', returns, Advantage)


def _lambdas(mask, gae_lambda, lambda_alpha):
  if lambda_alpha is None:
    return gae_lambda
  # VAPO: lambda = 1 - 1 / (alpha l), so that a reward reaches a fixed share of
  # a row whatever its length l. Rows shorter than 1 / alpha tokens get 0.
  length = jnp.maximum(row_count(mask), 1.0)
  return jnp.clip(1 - 1 / (lambda_alpha * length), 0.0, 1.0)[:, None]


def gae(
  reward: Array,
  values: Array,
  mask: Array,
  *,
  valid: Array | None = None,
  process_reward: Array | None = None,
  gamma: float = 1.0,
  gae_lambda: float = 0.95,
  lambda_alpha: float | None = None,
) -> jax.Array:
  """Computes A_t = sum_l (gamma lambda)^l delta_{t+l}, delta = r + gamma V' -
  V: GAE.

  https://arxiv.org/abs/1506.02438; in PPO https://arxiv.org/abs/1707.06347.
  The value after the last token is 0. `lambda_alpha` makes lambda adapt to the
  length (VAPO, https://arxiv.org/abs/2504.05118, alpha = 0.05). The critic's
  own lambda (VC-PPO, https://arxiv.org/abs/2503.01491) is in `value_targets`.
  """
  check_shapes(mask=mask, values=values, reward=reward)
  ok = groups.valid_rows(reward, valid)[:, None] & as_mask(mask)
  v = keep(ok, values)
  r = token_rewards(reward, mask, valid=valid, process_reward=process_reward)
  delta = keep(ok, r + gamma * next_token(v, mask) - v)
  lam = _lambdas(mask, gae_lambda, lambda_alpha)
  g = jnp.where(as_mask(mask), gamma * lam, 1.0)
  return keep(ok, suffix_scan(delta, g))


class GAE(part('GAE', gae, Advantage)):
  """`gae` as a part."""

  @property
  def keys_read(self) -> set[str]:
    unread = set() if self.lambda_alpha is None else {'gae_lambda'}
    return super().keys_read - unread


def value_targets(
  reward: Array,
  values: Array,
  mask: Array,
  *,
  valid: Array | None = None,
  process_reward: Array | None = None,
  gamma: float = 1.0,
  value_lambda: float = 1.0,
) -> jax.Array:
  """Computes V + GAE at the critic's own lambda (VC-PPO: 1, the plain return):
  [N, T].

  https://arxiv.org/abs/2503.01491
  """
  adv = gae(
    reward,
    values,
    mask,
    valid=valid,
    process_reward=process_reward,
    gamma=gamma,
    gae_lambda=value_lambda,
  )
  return stop(keep(mask, adv + keep(mask, values)))


ValueTargets = part('ValueTargets', value_targets, Advantage)


def implicit_reward(
  prm_logp: Array, ref_logp: Array, mask: Array, *, prm_beta: float = 0.05
) -> jax.Array:
  """Computes beta (log pi_prm - log pi_ref) per token: an implicit process
  reward.

  https://arxiv.org/abs/2412.01981.
  """
  return prm_beta * (keep(mask, prm_logp) - keep(mask, ref_logp))


def prime(
  reward: Array,
  group: Array,
  process_reward: Array,
  mask: Array,
  *,
  valid: Array | None = None,
  gamma: float = 1.0,
) -> jax.Array:
  """Computes PRIME: RLOO on process rewards, discounted, plus RLOO on the
  outcome.

  https://arxiv.org/abs/2502.01456 eq. 5, q_j the mean process reward of row j:
    A_it = sum_{s >= t} gamma^(s-t) (q_is - mean_{j != i} q_j)
           + r_i - mean_{j != i} r_j
  A row alone in its group gets 0.
  """
  g = groups.group_of(reward, group, valid)
  ok = g.valid & (g.n > 1)
  q = keep(as_mask(mask) & ok[:, None], process_reward)
  mean = row_mean(q, mask)
  others = mean - leave_one_out(mean, group, valid=ok)
  dense = keep(mask, q - others[:, None])
  togo = suffix_scan(dense, jnp.where(as_mask(mask), gamma, 1.0))
  outcome = leave_one_out(reward, group, valid=ok)
  where = ok[:, None] & as_mask(mask)
  return keep(where, togo) + rows_to_tokens(outcome, where)


PRIME = part('PRIME', prime, Advantage)
