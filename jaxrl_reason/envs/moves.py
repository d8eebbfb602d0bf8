"""Shared code of the games. A move is a few bytes and `;`."""

import jax
import jax.numpy as jnp

from jaxrl_reason.envs import row_bytes as text_lib

STOP = b';'


def end_of(text: jax.Array, length: jax.Array) -> jax.Array:
  """Returns the length of the move without its `;`, or an index after the text
  if the text was cut: then it has no valid move.
  """
  closed = text_lib.byte(text, length - 1) == STOP[0]
  cut = length > text.shape[0]
  return jnp.where(cut, text.shape[0] + 1, length - closed)


def place_of(letters: str, code: jax.Array) -> jax.Array:
  """Returns the index of a byte among letters, or -1."""
  same = code == jnp.asarray([ord(x) for x in letters])
  return text_lib.first(same, -1)
