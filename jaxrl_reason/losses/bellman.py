"""Value-free Bellman losses: the policy's own logits are the action values.

`logits` is [N, T, V]; entry t is the distribution that token t was sampled
from.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Array,
  as_float,
  as_mask,
  check_shapes,
  keep,
  row_sum,
  stop,
)
from jaxrl_reason.losses.kl import at_tokens
from jaxrl_reason.losses.objective_part import part
from jaxrl_reason.losses.token_advantage import next_token


def token_logp(logits: Array, tokens: Array) -> jax.Array:
  """Computes log softmax(logits) at the tokens: [N, T, V], [N, T] -> [N, T]."""
  z = as_float(logits)
  picked = jnp.take_along_axis(z, tokens[..., None], -1)[..., 0]
  return picked - jax.nn.logsumexp(z, -1)


def mean_logp(logits: Array) -> jax.Array:
  """Computes the mean of log softmax over the vocabulary: [N, T, V] -> [N,
  T].
  """
  z = as_float(logits)
  return z.mean(-1) - jax.nn.logsumexp(z, -1)


def tbrm(
  logits: Array,
  tokens: Array,
  ref_logp: Array,
  reward: Array,
  mask: Array,
  *,
  tbrm_beta: float = 0.002,
) -> jax.Array:
  """Computes (V(s_1) + sum_t log (pi / ref)(y_t) - R / beta)^2 per row, [N]:
  TBRM.

  https://arxiv.org/abs/2505.15311. With Q = logit - log ref and V = logsumexp
  of the logits, the soft Bellman residuals Q - r / beta - V' of a row add up to
  this, because the V of inner states cancel. One sample per prompt of any
  policy is enough. Rows without a token, or with a reward that is not finite,
  give 0.
  """
  check_shapes(
    mask=mask, logits=logits, tokens=tokens, reward=reward, ref_logp=ref_logp
  )
  m, reward = as_mask(mask), as_float(reward)
  ok = m.any(-1) & jnp.isfinite(reward)
  first = jnp.argmax(m, -1)[:, None]
  z = jnp.take_along_axis(as_float(logits), first[..., None], 1)[:, 0]
  start = jax.nn.logsumexp(jnp.where(ok[:, None], z, 0.0), -1)
  gap = token_logp(at_tokens(m, logits), tokens)
  path = row_sum(gap - stop(keep(m, ref_logp)), m)
  residual = start + path - jnp.where(ok, reward, 0.0) / tbrm_beta
  return jnp.where(ok, jnp.square(residual), 0.0)


TBRM = part('TBRM', tbrm, per_row=True, any_policy=True)


def rover(
  logits: Array,
  tokens: Array,
  old_logp: Array,
  old_mean_logp: Array,
  adv: Array,
  mask: Array,
  *,
  rover_rho: float = 1.0,
) -> jax.Array:
  """Computes (Q - sg(r + mean over the vocabulary of Q'))^2 per token, [N, T]:
  ROVER.

  https://arxiv.org/abs/2509.24981: Q = rho (log pi - log old) values the
  uniform policy, whose backup is the plain mean over next tokens; 0 after the
  last.

  Args:
    old_logp, old_mean_logp: [N, T], `token_logp` and `mean_logp` of the policy
      that sampled.
    adv: [N] the centred reward (`group_mean`), the same for every token.
  """
  check_shapes(
    mask=mask,
    logits=logits,
    tokens=tokens,
    old_logp=old_logp,
    old_mean_logp=old_mean_logp,
    reward=adv,
  )
  z = at_tokens(mask, as_float(logits))
  q = rover_rho * (token_logp(z, tokens) - stop(keep(mask, old_logp)))
  backup = rover_rho * (stop(mean_logp(z)) - stop(keep(mask, old_mean_logp)))
  target = as_float(adv)[:, None] + next_token(backup, mask)
  return keep(mask, jnp.square(q - stop(target)))


ROVER = part('ROVER', rover, any_policy=True)


BELLMAN = {'tbrm': TBRM, 'rover': ROVER}
