"""Numbers inside an answer: digit runs -> values, by masks alone."""

import jax
import jax.numpy as jnp

from jaxrl_reason.verifiers.tasks import problem


def shift(x: jax.Array, by: int) -> jax.Array:
  """Shifts columns, x[:, i - by], zero outside."""
  pad = ((0, 0), (max(by, 0), max(-by, 0)))
  x = jnp.pad(x, pad)
  return x[:, : x.shape[1] - by] if by >= 0 else x[:, -by:]


def ends(digit: jax.Array, text: jax.Array):
  """Returns the ends of digit runs, the numbers that end there, and whether a
  run is too long: bool, i32, bool, all [N,W].
  """
  run, place, value = digit, 1, jnp.zeros(text.shape, jnp.int32)
  for back in range(problem.MAX_DIGITS):
    d = shift(text, back).astype(jnp.int32) - ord('0')
    value += jnp.where(run, place * d, 0)
    place *= 10
    run &= shift(digit, back + 1)
  return digit & ~shift(digit, -1), value, run


def nth(flags: jax.Array, n: int) -> jax.Array:
  """Finds the positions of the first n flags, i32[N,n]; W where there are
  fewer.
  """
  count = jnp.cumsum(flags, axis=1)  # [N,W]
  return (count[:, None, :] <= jnp.arange(n)[:, None]).sum(-1)
