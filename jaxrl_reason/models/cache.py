"""What decoding remembers: keys and values of prompts and of completions.

  prompts  [B,K,P,H]   one copy for all the samples of a prompt
  own      [S,K,R,H]   of S rows that are generated at a time

R columns, of which every trip of the loop over tokens writes one, the same for
all rows: one slice written in place, where a column per row would be a
scatter. R grows with the loop (`grow`), so that what is not written yet is not
read either. At R = C, room for a whole completion, columns are a ring: a row at
index t reads the t + 1 written last, whatever earlier rows left in the others.

An int8 cache holds round(x / scale) with scale = max |x| / 127 for each (row,
head, position): off by at most scale / 2.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding

# Columns: rows of a TPU's bfloat16 tile are 16, and of fewer than 32 columns
# less is saved than another loop costs to compile.
TILE = 32


@struct.dataclass
class Kept:
  """Keys or values as a cache holds them."""

  values: jax.Array  # [rows, head, position, H]
  scale: jax.Array | None = None  # f32 [rows, head, position], for int8


@struct.dataclass
class Cache:
  """Keys and values, one pair per layer, laid out [row, head, position, H] so
  that a head's keys are contiguous for the decode step's products.
  """

  prompt: tuple  # L x (keys, values), Kept of [B,K,P,H]
  own: tuple  # L x (keys, values), Kept of [S,K,R,H]
  prompt_mask: jax.Array  # bool [B,P]
  # Tokens a row may have, P + C: rotary tables may depend on it.
  room: int = struct.field(pytree_node=False)
  # Experts used, int: prompts [B,P,L,k], the tokens decoded last [S,L,k].
  routes: tuple | None = None


def keep(x: jax.Array, dtype: str) -> Kept:
  """x [...,H] as a cache of that dtype ('model': as it is) holds it."""
  if dtype != 'int8':
    return Kept(x if dtype == 'model' else x.astype(dtype))
  x = x.astype(jnp.float32)
  scale = jnp.max(jnp.abs(x), axis=-1) / 127
  unit = jnp.where(scale > 0, scale, 1)[..., None]
  return Kept(jnp.round(x / unit).astype(jnp.int8), scale)


def empty(rows: int, heads: int, columns: int, width: int, dtype) -> Kept:
  """Room for keys or values; dtype that of `keep`'s values."""
  zeros = lambda *shape: jnp.zeros(shape, dtype)
  values = sharding.rows(zeros(rows, heads, columns, width))
  if values.dtype != jnp.int8:
    return Kept(values)
  return Kept(
    values, sharding.rows(jnp.zeros((rows, heads, columns), jnp.float32))
  )


def put(buffer: Kept, x: jax.Array, column, dtype: str) -> Kept:
  """Writes x [S,K,H] at one column of every row."""
  write = lambda all_, new: jax.lax.dynamic_update_slice_in_dim(
    all_, new[:, :, None], column, axis=2
  )
  return jax.tree.map(write, buffer, keep(x, dtype))


def columns(cache: Cache) -> int:
  """R, the columns there are."""
  return cache.own[0][0].values.shape[2]


def grow(cache: Cache, n: int) -> Cache:
  """The cache with n columns; those it has stay where they are."""
  more = n - columns(cache)

  def pad(x):
    width = [(0, 0)] * x.ndim
    width[2] = (0, more)
    return sharding.rows(jnp.pad(x, width))

  return cache.replace(own=jax.tree.map(pad, cache.own)) if more else cache


def spaced(most: int, n: int) -> list[int]:
  """At most n sizes up to `most`, evenly spaced, rising."""
  return sorted({-(-most * i // n) for i in range(1, n + 1)})


def rooms(max_new: int, segments: int) -> tuple[int, ...]:
  """Columns of a cache that grows in so many equal parts up to max_new; in
  fewer where it is short.
  """
  part = math.ceil(max_new / segments / TILE) * TILE
  return (*range(part, max_new, part), max_new)


def context(cache: Cache, t, column, windows) -> tuple[jax.Array, Any]:
  """Where rows stand and what they may look at.

  Args:
    t: int [] or [S], the index in its completion of each row's token.
    column: int [], where this trip's keys are written.
    windows: sizes of attention windows, 0 for none.

  Returns:
    (positions [S], masks by window: (of prompt bool [B,1 or S/B,P], of own
    columns bool [1 or S,R])).
  """
  b, _ = cache.prompt_mask.shape
  s, r = cache.own[0][0].values.shape[0], columns(cache)
  t = jnp.asarray(t)
  by_prompt = t.reshape(b, -1) if t.ndim else t[None, None]
  positions = cache.prompt_mask.sum(axis=1)[:, None] + by_prompt
  age = (column - jnp.arange(r)) % r
  prompt, own = cache.prompt_mask[:, None], age <= t.reshape(-1, 1)
  # A prompt token's position, and with it its distance, is its own.
  at = (jnp.cumsum(cache.prompt_mask, axis=1) - 1)[:, None]
  masks = {}
  for window in set(windows):
    masks[window] = prompt, own
    if window:
      near = positions[..., None] - at < window
      masks[window] = prompt & near, own & (age < window)
  return jnp.broadcast_to(positions, (b, s // b)).reshape(s), masks
