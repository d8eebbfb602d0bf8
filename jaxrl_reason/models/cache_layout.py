"""The arrays that each kind of layer adds to a cache.

A layer with attention keeps keys and values, a layer with a state keeps the
state, and a layer that reads the keys of an earlier one keeps nothing.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.models.config import DELTAS, Config
from jaxrl_reason.models.parts import delta, stored


def blank(c: Config, stack: str, rows: int, columns: int):
  """Returns zeroed keys, values and states [layers of the stack,rows,...] of a
  stack, in the compute dtype.
  """
  shapes = [(rows, heads, columns, width) for heads, width in c.cached(stack)]
  one = tuple(jax.ShapeDtypeStruct(shape, c.dtype) for shape in shapes)
  if stack in DELTAS or c.delta_beside:
    state = delta.empty(rows, c)
    one = (*one, state) if one else state
  n = len(c.stacks[stack])
  return jax.tree.map(
    lambda x: sharding.rows(jnp.zeros((n, *x.shape), x.dtype), axis=1), one
  )


def order(cache: cache_lib.Cache, own: stored.Stored, step) -> jax.Array:
  """Returns the place of every column of `own`, int [R], in the order of the
  positions of tokens, while the tokens of call `step` are written.
  """
  at = jnp.arange(own.values.shape[-2])
  return at if cache.at is not None else (at - step - 1) % len(at)


def empty(
  rows: int, heads: int, columns: int, width: int, dtype
) -> stored.Stored:
  """Returns zeroed keys or values; dtype: of the stored numbers."""
  values = sharding.rows(jnp.zeros((rows, heads, columns, width), dtype))
  if values.dtype != jnp.int8:
    return stored.Stored(values)
  scale = jnp.zeros((rows, heads, columns), jnp.float32)
  return stored.Stored(values, sharding.rows(scale))


def allocated(c: Config, kept, *, rows: int, columns: int, window: int):
  """Returns (a layer's cache of prompts, that of its rows: the prompt's states,
  and keys without tokens).

  Args:
    kept: keys and values [B,K,P,H] of the prompts, and states; () of a layer
      without any.
  """
  if isinstance(kept, delta.State):
    return kept, delta.begun(kept, rows)
  states = tuple(x for x in kept if isinstance(x, delta.State))
  # Gathered over columns, because a decode step reads all keys of a prompt.
  keys = kept[: len(kept) - len(states)]
  gathered = (sharding.gathered(x, axis=2) for x in keys)
  seen = (cache_lib.seen_of_prompt(x, window) for x in gathered)
  prompt = tuple(stored.store(x, c.cache_dtype) for x in seen)
  width = cache_lib.within(columns, window)
  own = [
    empty(rows, x.shape[1], width, x.shape[3], to.values.dtype)
    for x, to in zip(keys, prompt)
  ]
  own += [delta.begun(x, rows) for x in states]
  return (*prompt, *states), tuple(own)
