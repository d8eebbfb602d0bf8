"""Shared code of the games: a move is a few bytes and `;`."""

import jax
import jax.numpy as jnp

from jaxrl_reason.envs import row_bytes as text_lib

STOP = b';'


def end_of(text: jax.Array, length: jax.Array) -> jax.Array:
  """Finds where the move ends, its `;` left out; past the text where that was
  cut, so that nothing in it is a move.
  """
  closed = text_lib.byte(text, length - 1) == STOP[0]
  cut = length > text.shape[0]
  return jnp.where(cut, text.shape[0] + 1, length - closed)


def place_of(letters: str, code: jax.Array) -> jax.Array:
  """Finds which of the letters a byte is; -1: none."""
  same = code == jnp.asarray([ord(x) for x in letters])
  return text_lib.first(same, -1)
