"""Entropy of the policy, and coefficients that control it.

A bonus is a term of the loss, -coef * aggregate(entropy, ..), over all tokens
or over selected ones (`selection.top_entropy_tokens` gives such a mask).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Array,
  Arrays,
  Metrics,
  Sums,
  as_float,
  keep,
  stop,
)
from jaxrl_reason.losses.kl import at_tokens, over_tokens
from jaxrl_reason.losses.objective_part import Part, flat_names


def entropy_from_logits(
  logits: Array, *, mask: Array | None = None, chunk: int | None = None
) -> jax.Array:
  """Computes H = log sum exp(z) - sum softmax(z) z: [.., V] -> [..].

  `chunk` tokens at a time when given, so that float32 copies of [N, T, V] never
  exist; the backward pass recomputes them. Outside the `mask`, if one is given,
  it is a constant (log V) without gradient.
  """

  def one(z):
    logp = jax.nn.log_softmax(as_float(z))
    p = jnp.exp(logp)
    # A token masked by a -inf logit has p = 0 and adds 0, not NaN.
    return -(p * jnp.where(p > 0, logp, 0.0)).sum(-1)

  return over_tokens(one, at_tokens(mask, logits), chunk=chunk)


def sum_p_squared(
  logits: Array, *, mask: Array | None = None, chunk: int | None = None
) -> jax.Array:
  """Computes sum_v p_v^2, p the softmax: [.., V] -> [..]; see
  `optimal_token`.
  """

  def one(z):
    return jnp.square(jax.nn.softmax(as_float(z))).sum(-1)

  return over_tokens(one, at_tokens(mask, logits), chunk=chunk)


def adaptive_entropy(
  coef: Array,
  entropy: Array,
  *,
  target: float,
  step: float = 1e-3,
  low: float = 0.0,
  high: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
  """Computes the next (coefficient, coefficient in force): Skywork-OR1.

  https://arxiv.org/abs/2505.22312: c goes up by `step` while the entropy is
  below the target and down while it is above, clipped to [low, high]. It is
  applied only while the entropy is at or below the target.
  """
  entropy = stop(as_float(entropy))
  up = jnp.where(entropy < target, step, -step)
  coef = jnp.clip(coef + up, low, high)
  return coef, jnp.where(entropy <= target, coef, 0.0)


@dataclasses.dataclass(frozen=True)
class EntropyBonus(Part):
  """A bonus of `coef` per nat of entropy, subtracted from the loss.

  Attributes:
    share: only on this share of the batch's tokens, by entropy.
    target, step, coef_min, coef_max: of `adaptive_entropy`; None: constant.
  """

  coef: float = 0.0
  share: float | None = None
  target: float | None = None
  step: float = 1e-3
  coef_min: float = 0.0
  coef_max: float = 1.0
  reads = ('entropy',)
  names = (
    ('share', 'share', 'entropy_bonus_share'),
    *flat_names('entropy', 'coef target step coef_min coef_max'),
  )

  @property
  def keys_read(self) -> set[str]:
    adaptive = {'entropy_step', 'entropy_coef_min', 'entropy_coef_max'}
    return super().keys_read - (adaptive if self.target is None else set())

  def sums(self, arrays: Arrays) -> dict[str, jax.Array]:
    """Returns {}: no sums over the batch are needed."""
    return {}

  def term(
    self, arrays: Arrays, mean: Callable, denominators: Sums
  ) -> tuple[jax.Array, Metrics]:
    """Computes minus the mean entropy; every loss has the metric already."""
    mask, (entropy,) = arrays['mask'], self.take(arrays)
    chosen = keep(mask, keep(arrays.get('entropy_bonus', mask), entropy))
    return -mean(chosen, mask, denominators), {}
