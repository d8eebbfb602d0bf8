"""Losses of critics and verifiers: value functions, outcome classifiers."""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Array,
  as_float,
  check_shapes,
  hard_clip,
  keep,
  required,
  row_sum,
  stop,
)
from jaxrl_reason.losses.groups import valid_rows
from jaxrl_reason.losses.objective_part import part
from jaxrl_reason.losses.token_advantage import implicit_reward


def value_loss(
  values: Array,
  targets: Array,
  mask: Array,
  *,
  old_values: Array | None = None,
  value_clip: float | None = None,
) -> jax.Array:
  """Computes max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2 per
  token: PPO.

  https://arxiv.org/abs/1707.06347; the half is a convention. Without
  `value_clip` it is the squared error. [N, T] each.
  """
  check_shapes(mask=mask, values=values, targets=targets, old_values=old_values)
  v, r = keep(mask, values), stop(keep(mask, targets))
  error = jnp.square(v - r)
  if value_clip is not None:
    old = stop(keep(mask, required({'old_values': old_values}, 'old_values')))
    near = hard_clip(v, old - value_clip, old + value_clip)
    clipped = jnp.square(near - r)
    error = jnp.where(clipped > error, clipped, error)
  return 0.5 * error


ValueLoss = part('ValueLoss', value_loss)


def binary_cross_entropy(
  logit: Array, label: Array, *, valid: Array | None = None
) -> jax.Array:
  """Computes -y log sigmoid(z) - (1 - y) log sigmoid(-z), any shape: verifiers.

  Labels in [0, 1]; https://arxiv.org/abs/2110.14168. 0 where not `valid`, or
  where the label is not finite.
  """
  ok = valid_rows(label, valid)
  z, y = keep(ok, logit), keep(ok, label)
  loss = -y * jax.nn.log_sigmoid(z) - (1 - y) * jax.nn.log_sigmoid(-z)
  return keep(ok, loss)


def implicit_prm(
  logp: Array,
  ref_logp: Array,
  label: Array,
  mask: Array,
  *,
  valid: Array | None = None,
  prm_beta: float = 0.05,
) -> jax.Array:
  """Computes cross-entropy of sigmoid(sum_t beta log pi / ref) with the
  outcome: [N].

  https://arxiv.org/abs/2412.01981: trained on outcomes, log pi / ref becomes a
  process reward (`token_advantage.implicit_reward`).
  """
  reward = implicit_reward(
    logp, stop(as_float(ref_logp)), mask, prm_beta=prm_beta
  )
  return binary_cross_entropy(row_sum(reward, mask), label, valid=valid)
