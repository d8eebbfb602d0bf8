"""Rows drawn again by their rewards, after advantages are known: PF-PPO.

https://arxiv.org/abs/2409.06957, with the weights of verl: rewards at the ends
of the range are more reliable, and their rows are drawn more often.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses import groups
from jaxrl_reason.losses.arrays import Array, as_float, choose
from jaxrl_reason.losses.objective_part import part


def _power(reward, top, bottom, power):
  return jnp.abs(reward) ** power


def _max_min(reward, top, bottom, power):
  return as_float((reward == top) | (reward == bottom))


def _max_random(reward, top, bottom, power):
  return jnp.where(reward == top, 0.4, 0.1)


RESAMPLE = {'power': _power, 'max_min': _max_min, 'max_random': _max_random}


def resampling_weights(
  reward: Array,
  *,
  valid: Array | None = None,
  resample: str = 'power',
  resample_power: float = 2.0,
) -> jax.Array:
  """Computes the weights [N] with which rows are drawn, not normalised.

  'power' is |r|^power, 'max_min' 1 for the largest and smallest reward of the
  batch and 0 elsewhere, 'max_random' 0.4 for the largest and 0.1 elsewhere. As
  in verl, 1e-8 is added, so that a batch of zeros is drawn evenly. Rows whose
  verifier failed have weight 0.
  """
  ok = groups.valid_rows(reward, valid)
  r = jnp.where(ok, as_float(reward), 0.0)
  top = jnp.where(ok, r, -jnp.inf).max()
  bottom = jnp.where(ok, r, jnp.inf).min()
  weight = choose('resample', resample, RESAMPLE)(
    r, top, bottom, resample_power
  )
  return jnp.where(ok, weight + 1e-8, 0.0)


class Resample(part('Resample', resampling_weights)):
  """`resampling_weights` as a part."""

  @property
  def keys_read(self) -> set[str]:
    unread = set() if self.resample == 'power' else {'resample_power'}
    return super().keys_read - unread

  def draw(self, arrays: dict, key: jax.Array) -> jax.Array:
    """Draws as many rows as there are, with replacement: int [N]."""
    weight = self(arrays)
    return jax.random.categorical(key, jnp.log(weight), shape=weight.shape)
