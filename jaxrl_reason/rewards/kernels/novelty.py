"""Bonuses for completions whose hidden states differ from those of the group.

  views: {'hidden': f32 [B,G,D], a state of each sample of a prompt}, see
  `rollouts.hidden_states`

  novelty_neighbours   mean distance to the k nearest other samples
  novelty_volume       x^T (ridge I + sum_j x_j x_j^T)^-1 x, in [0, 1): RepExp,
                       https://arxiv.org/abs/2510.11686

x is the state minus the mean of its group, divided by the root of the group's
mean squared length. So a bonus depends neither on the scale of the states nor
on what all samples of a prompt have in common. Each of m equal samples has a
volume of about 1 / (1 + m) with a ridge of 1, like a bonus by counts.

RepExp reads the mean state of a completion's tokens after the last layer of the
initial policy; here the layer, the tokens and the policy are those of
`rl.views.hidden`. A bonus does not depend on correctness: it rewards any text
that is unusual.
"""

import jax
import jax.numpy as jnp

# Smallest root mean square of the differences in a group, relative to that of
# the states: rounding errors between equal samples are no novelty.
LEAST = 1e-3


def scaled(states: jax.Array) -> jax.Array:
  """Returns states [B,G,D] relative to their group: of mean 0 and mean squared
  length 1; about 0 if all samples are equal.
  """

  def length(x):
    return jnp.sqrt(jnp.sum(x**2, axis=2).mean(axis=1))[:, None, None]

  x = states.astype(jnp.float32)
  centred = x - x.mean(axis=1, keepdims=True)
  size = jnp.maximum(length(centred), LEAST * length(x))
  return centred / jnp.where(size > 0, size, 1)


def products(x: jax.Array) -> jax.Array:
  """Computes the inner products [B,G,G] of the samples of a prompt."""
  highest = jax.lax.Precision.HIGHEST  # TPUs would multiply in bf16
  return jnp.einsum('bid,bjd->bij', x, x, precision=highest)


def neighbours(text, length, answer, views, *, k: int = 1) -> jax.Array:
  """Computes the mean distance [N] to the k nearest other samples of a prompt;
  to all others if there are fewer, and 0 without any.

  Raises:
    ValueError: k is not a whole number of at least 1.
  """
  del text, length, answer
  if isinstance(k, bool) or not isinstance(k, int) or k < 1:
    raise ValueError(f'novelty_neighbours: k={k!r} must be at least 1')
  x = scaled(views['hidden'])
  inner, n = products(x), x.shape[1]
  own = jnp.diagonal(inner, axis1=1, axis2=2)
  squared = own[:, :, None] + own[:, None] - 2 * inner
  distance = jnp.sqrt(jnp.maximum(squared, 0))
  distance = jnp.where(jnp.eye(n, dtype=bool), jnp.inf, distance)
  nearest = jnp.sort(distance, axis=2)[:, :, : min(k, n - 1)]
  total = nearest.sum(axis=2).reshape(-1)
  return total / max(min(k, n - 1), 1)


def volume(text, length, answer, views, *, ridge: float = 1.0) -> jax.Array:
  """Computes x^T (ridge I + sum_j x_j x_j^T)^-1 x [N] over the samples of a
  prompt.

  Raises:
    ValueError: ridge is not above 0.
  """
  del text, length, answer
  if not ridge > 0:
    raise ValueError(f'novelty_volume: ridge={ridge!r} must be above 0')
  inner = products(scaled(views['hidden']))
  # The inverse of size D equals K (K + ridge I)^-1 of size G, of which
  # 1 - ridge (K + ridge I)^-1 is the same.
  matrix = inner + ridge * jnp.eye(inner.shape[1])
  inverse = jnp.linalg.inv(matrix)
  diagonal = jnp.diagonal(inverse, axis1=1, axis2=2)
  return (1 - ridge * diagonal).reshape(-1)
