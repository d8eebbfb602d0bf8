"""What decoding remembers, keys and values of prompts and of completions, and
attention to it.

  prompts  [B,K,P,H]   one copy for all the samples of a prompt
  own      [S,K,R,H]   of S rows that are generated at a time

R columns, of which every step of the loop over tokens writes one, the same for
all rows: one slice written in place, where a column per row would be a
scatter. R grows with the loop (`grow`), so that what is not written yet is not
read either. At R = C, room for a whole completion, columns are a ring: a row at
index t reads the t + 1 written last, whatever earlier rows left in the others.

A layer with a window keeps no more than that: the last W - 1 columns of prompts
and a ring of R = min(W, C), with the same rule. In bytes, of keys and values:

  2 * sum over layers of K H (B min(P, W - 1) + S min(C, W)) * bytes of a number

A layer of the delta rule keeps a State of its prompts, and one of every row,
however many tokens they have (`parts.delta`).

A cache of several turns (`gapped`) has no ring: tokens of one call lie in the
same columns of all rows, a row that has fewer, or waits, leaves gaps, and `at`
says of every column which token of the row it is. R is then as long for a layer
with a window, since what is within the window of one row may lie far back.
Where each row goes on at a time of its own (`rollouts.hosted`), a token's
column is its index in its completion: a scatter then, but R = C columns are
enough, and there are no gaps.

An int8 cache holds round(x / scale) with scale = max |x| / 127 for each (row,
head, position): off by at most scale / 2.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding
from jaxrl_reason.models.parts.delta import State
from jaxrl_reason.models.stretches import mapped

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
  """Keys and values, one pair per entry (`stretches`), laid out [row, head,
  position, H] so that a head's keys are contiguous for the decode step's
  products. An entry of several layers has an axis of layers before these.
  """

  # (keys, values), Kept of [B,K,P,H]; of latent layers, one row for both; of
  # layers of the delta rule, State of B.
  prompt: tuple
  # (keys, values), Kept of [S,K,R,H], or State of S; P and R within windows
  own: tuple
  prompt_mask: jax.Array  # bool [B,P]
  # Tokens a row may have, P + C: rotary tables may depend on it.
  room: int = struct.field(pytree_node=False)
  # Of each entry: its layers; its window in tokens, 0: none.
  layers: tuple[range, ...] = struct.field(pytree_node=False)
  windows: tuple[int, ...] = struct.field(pytree_node=False)
  # Read by the kernel of `parts.cached`, from as many columns as it ever has.
  by_kernel: bool = struct.field(pytree_node=False)
  # Experts used, int: prompts [B,P,L,k], the tokens decoded last [S,L,k].
  routes: tuple | None = None
  # i32 [S,R], the position in its row of the token in a column, prompt
  # included; -1: a gap. None: columns are a ring, without gaps.
  at: jax.Array | None = None

  @property
  def rows(self) -> int:
    """Counts the rows S that are generated at a time."""
    return jax.tree.leaves(self.own)[0].shape[-4]

  def keys(self, of: str) -> dict[int, Kept]:
    """Returns by window the keys ('prompt' or 'own') of layers that have it."""
    entries = zip(self.windows, getattr(self, of))
    return {w: kv[0] for w, kv in entries if not isinstance(kv, State)}


def keep(x: jax.Array, dtype: str) -> Kept:
  """Returns x [...,H] as a cache of that dtype ('model': as it is) holds it."""
  if dtype != 'int8':
    return Kept(x if dtype == 'model' else x.astype(dtype))
  x = x.astype(jnp.float32)
  scale = jnp.max(jnp.abs(x), axis=-1) / 127
  unit = jnp.where(scale > 0, scale, 1)[..., None]
  return Kept(jnp.round(x / unit).astype(jnp.int8), scale)


def empty(rows: int, heads: int, columns: int, width: int, dtype) -> Kept:
  """Makes room for keys or values; dtype that of `keep`'s values."""
  values = sharding.rows(jnp.zeros((rows, heads, columns, width), dtype))
  if values.dtype != jnp.int8:
    return Kept(values)
  scale = jnp.zeros((rows, heads, columns), jnp.float32)
  return Kept(values, sharding.rows(scale))


def within(columns: int, window: int) -> int:
  """Columns of a layer: no more than its window (0: none) has tokens."""
  return min(columns, window or columns)


def seen_of_prompt(x: jax.Array, window: int) -> jax.Array:
  """Returns the columns of x [B,...,P,H or 1] that completions see: the last
  window - 1 of prompts, which are left-padded.
  """
  most = max(window - 1, 1)  # one at least: no array is empty
  return x[..., -most:, :] if window else x


def with_states(entry: State, new: State, at) -> State:
  """Returns an entry with another state of its at-th layer."""
  if at is None:
    return new
  return jax.tree.map(lambda all_, x: all_.at[at].set(x), entry, new)


def put(buffer: Kept, x: jax.Array, step, dtype: str, at=None) -> Kept:
  """Writes x [S,K,H], or O tokens of each row [S,O,K,H], from the column of a
  step on, of every row; or at columns [S,O] of each row, -1: nowhere.

  Args:
    at: of a buffer of several layers, which of them; None: it is of one.
  """
  if jnp.ndim(step):
    x = x.reshape(*step.shape, *x.shape[-2:])
    return _scattered(buffer, x, step, dtype, at)
  column = step % buffer.values.shape[-2]
  x = x.swapaxes(1, 2) if x.ndim == 4 else x[:, :, None]  # [S,K,O,H]

  def write(all_, new):
    if at is None:
      return jax.lax.dynamic_update_slice_in_dim(all_, new, column, axis=2)
    start = (at, 0, 0, column, 0)[: all_.ndim]
    return jax.lax.dynamic_update_slice(all_, new[None], start)

  return jax.tree.map(write, buffer, keep(x, dtype))


def _scattered(buffer: Kept, x: jax.Array, columns, dtype: str, at) -> Kept:
  """Writes x [S,O,K,H] at columns [S,O] of its rows; -1: nowhere."""
  lead = () if at is None else (at,)

  def write(all_, new):
    s, _, r = all_.shape[len(lead) : len(lead) + 3]
    where = *lead, jnp.arange(s)[:, None], slice(None)
    to = jnp.where(columns < 0, r, columns)
    return all_.at[*where, to].set(new, mode='drop')

  return jax.tree.map(write, buffer, keep(x, dtype))


def grow(cache: Cache, n: int) -> Cache:
  """Gives the cache n columns at least, or as many as a layer's window; those
  it has stay where they are.
  """

  def pad(x, columns, axis=2, fill=0):
    width = [(0, 0)] * x.ndim
    width[axis] = (0, max(columns - x.shape[axis], 0))
    if not width[axis][1]:
      return x
    return sharding.rows(jnp.pad(x, width, constant_values=fill))

  if cache.at is not None:
    own = _each(functools.partial(pad, columns=n), cache, cache.own)
    return cache.replace(own=own, at=pad(cache.at, n, axis=1, fill=-1))
  own = (
    _of_keys(functools.partial(pad, columns=within(n, window)), layers, kv)
    for window, layers, kv in zip(cache.windows, cache.layers, cache.own)
  )
  return cache.replace(own=tuple(own))


def _of_keys(f: Callable, layers: range, *kv):
  """What an entry keeps, f of the arrays of its layers' keys and values; states
  as they are.
  """
  if isinstance(kv[0], State):
    return kv[0]
  return mapped(functools.partial(jax.tree.map, f), layers)(*kv)


def _each(f: Callable, cache: Cache, *entries) -> tuple:
  """Maps `_of_keys` over entries."""
  return tuple(_of_keys(f, *part) for part in zip(cache.layers, *entries))


def gapped(cache: Cache, columns: int) -> Cache:
  """Gives a cache into which nothing was decoded yet as one of several turns,
  with room for so many columns.
  """

  def blank(x):
    shape = *x.shape[:2], columns, *x.shape[3:]
    return sharding.rows(jnp.zeros(shape, x.dtype))

  at = sharding.rows(jnp.full((cache.rows, columns), -1, jnp.int32))
  return cache.replace(own=_each(blank, cache, cache.own), at=at)


def place(cache: Cache, t: jax.Array, column):
  """Notes where tokens go in a gapped cache.

  Args:
    t: int [S,O], the index in its completion of each row's tokens; -1: none.
    column: int [], of the first of them; or [S,O], of each, -1: none.

  Returns:
    (cache, positions [S,O], masks by window: (of prompt bool [B,I*O,P], of
    own columns bool [S,O,R])).
  """
  b, (s, o) = cache.prompt_mask.shape[0], t.shape
  first = jnp.repeat(cache.prompt_mask.sum(axis=1), s // b)
  positions = jnp.where(t < 0, -1, first[:, None] + t)
  if jnp.ndim(column):
    to = jnp.where(column < 0, cache.at.shape[1], column)
    at = cache.at.at[jnp.arange(s)[:, None], to].set(positions, mode='drop')
  else:
    at = jax.lax.dynamic_update_slice_in_dim(
      cache.at, positions, column, axis=1
    )
  of_prompt = (jnp.cumsum(cache.prompt_mask, axis=1) - 1)[:, None]
  queries, masks = positions.reshape(b, -1, 1), {}
  for window, keys in cache.keys('prompt').items():
    prompt = jnp.broadcast_to(
      cache.prompt_mask[:, None], (b, s // b * o, of_prompt.shape[2])
    )
    own = (at >= 0)[:, None] & (at[:, None] <= positions[..., None])
    if window:
      prompt = prompt & (queries - of_prompt < window)
      own = own & (positions[..., None] - at[:, None] < window)
    masks[window] = prompt[..., -keys.values.shape[-2] :], own
  return cache.replace(at=at), jnp.maximum(positions, 0), masks


def fork(cache: Cache, t: jax.Array, n: int) -> Cache:
  """Gives every row of a gapped cache n children, which share its keys: they
  become the prompt's, and the children's own columns begin empty.

  Args:
    t: int [S], the index in its completion of the last token that the children
      have in common; -1: the prompt alone.
    n: children of a row, adjacent; index 0 of their completions comes after
      that token.
  """
  b, s = cache.prompt_mask.shape[0], cache.at.shape[0]
  first = jnp.repeat(cache.prompt_mask.sum(axis=1), s // b)
  kept = (cache.at >= 0) & (cache.at <= (first + t)[:, None])

  def of_row(x):
    return jnp.repeat(x, s // b, axis=0)

  def joined(prompt, own):
    return jnp.concatenate([of_row(prompt), own], axis=2)

  def blank(x):
    return jnp.repeat(jnp.zeros_like(x), n, axis=0)

  mask = jnp.concatenate([of_row(cache.prompt_mask), kept], axis=1)
  routes = cache.routes
  if routes is not None:
    own = jnp.repeat(routes[1], n, axis=0)
    room = ((0, 0), (0, kept.shape[1]), (0, 0), (0, 0))
    routes = jnp.pad(of_row(routes[0]), room, constant_values=-1), own
  return cache.replace(
    prompt=_each(joined, cache, cache.prompt, cache.own),
    own=_each(blank, cache, cache.own),
    prompt_mask=mask,
    routes=routes,
    at=jnp.repeat(jnp.full_like(cache.at, -1), n, axis=0),
  )


def spaced(most: int, n: int) -> list[int]:
  """Lists at most n sizes up to `most`, evenly spaced, rising."""
  return sorted({-(-most * i // n) for i in range(1, n + 1)})


def rooms(max_new: int, segments: int) -> tuple[int, ...]:
  """Columns of a cache that grows in so many equal parts up to max_new; in
  fewer where it is short.
  """
  part = math.ceil(max_new / segments / TILE) * TILE
  return (*range(part, max_new, part), max_new)


def context(cache: Cache, t, step) -> tuple[jax.Array, dict[int, tuple]]:
  """Says where rows stand and what they may look at.

  Args:
    t: int [] or [S], the index in its completion of each row's token.
    step: int [], calls of `decode` before this one: keys are written at the
      column step % R of a layer.

  Returns:
    (positions [S], masks by window: (of prompt bool [B,1 or S/B,P], of own
    columns bool [1 or S,1,R])).
  """
  b, s = len(cache.prompt_mask), cache.rows
  by_prompt = jnp.reshape(t, (b, -1) if jnp.ndim(t) else (1, 1))
  positions = cache.prompt_mask.sum(axis=1)[:, None] + by_prompt
  # A prompt token's position, and with it its distance, is its own.
  at = (jnp.cumsum(cache.prompt_mask, axis=1) - 1)[:, None]
  masks = {}
  for window, keys in cache.keys('own').items():
    r = keys.values.shape[-2]
    prompt = cache.prompt_mask[:, None]
    if window:
      prompt = prompt & (positions[..., None] - at < window)
      prompt = seen_of_prompt(prompt[..., None], window)[..., 0]
    # Of the window's own tokens none is too far: R is no more than it.
    seen = (step - jnp.arange(r)) % r <= jnp.reshape(t, (-1, 1, 1))
    masks[window] = prompt, seen
  return jnp.broadcast_to(positions, (b, s // b)).reshape(s), masks
