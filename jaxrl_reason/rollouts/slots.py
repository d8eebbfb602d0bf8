"""The slots of a sampler: rows that are decoded at the same time."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import trees
from jaxrl_reason.rollouts.draw import Past


@struct.dataclass
class Slots:
  """The state of the S = B*I slots between two steps."""

  step: jax.Array  # steps done, which determines the next column
  t: jax.Array  # int [] or [S], index in its completion of `token`
  token: jax.Array  # int [S], to decode next
  over: jax.Array  # bool [S], there is no token to decode
  cache: Any
  out: dict[str, jax.Array]  # [N,C,...]; tokens are NONE until sampled
  past: Past
  # With fewer slots than rows; None if every row has its own slot.
  row: jax.Array | None = None  # int [B,I], the sample of its prompt in a slot
  taken: jax.Array | None = None  # int [B], samples assigned so far
  # int [S], tokens of a completion that the cache has beside its prompt; None:
  # all are the row's own (`rollouts.tree`).
  shared: jax.Array | None = None
  # f32 [N,D], of `Draw.states`; None: nothing reads hidden states.
  states: jax.Array | None = None


def rows_of(slots: Slots) -> Callable:
  """Returns a function that selects the slots' rows: x [N,...] -> [S,...]."""
  if slots.row is None:
    return trees.identity
  b, n_slots = slots.row.shape

  def pick(x):
    taken = jax.vmap(operator.getitem)(x.reshape(b, -1), slots.row)
    return taken.reshape(b * n_slots)

  return pick


def write(all_, x, slots: Slots, t):
  """Writes x [S,...] into all_ [N,C,...] at index t of the slots' rows."""
  if slots.row is None and jnp.ndim(t):
    return all_.at[jnp.arange(len(t)), t].set(x, mode='drop')
  if slots.row is None:
    return jax.lax.dynamic_update_index_in_dim(all_, x, t, axis=1)
  b, n_slots = slots.row.shape

  def split(x, n):
    return x.reshape(b, n, *x.shape[1:])

  # Slots that are over may have run past C.
  put = jax.vmap(lambda a, i, j, x: a.at[i, j].set(x, mode='drop'))
  grouped = split(all_, all_.shape[0] // b)
  new = put(grouped, slots.row, split(t, n_slots), split(x, n_slots))
  return new.reshape(all_.shape)
