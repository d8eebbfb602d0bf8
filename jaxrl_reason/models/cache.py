"""The key-value cache of decoding, for prompts and for completions.

  prompts  [B,K,P,H]   one copy for all samples of a prompt
  own      [S,K,R,H]   completions of the S rows that are generated at a time

Each step of the decoding loop writes one of the R columns, the same column for
all rows. This is one slice written in place; a column per row would be a
scatter. R grows with the loop (`grow`), so that columns which are not written
yet are not read either. When R = C, the size of a whole completion, the columns
are a ring: a row at index t reads the last t + 1 columns written, so contents
that an earlier row left in the others do not matter.

A layer with a window of W tokens keeps only the last W - 1 columns of prompts
and a ring of R = min(W, C) columns. Bytes of keys and values:

  2 * sum over layers of K H (B min(P, W - 1) + S min(C, W)) * bytes per number

A layer of the delta rule keeps one State per prompt and one per row, whatever
the number of tokens (`parts.delta`). A layer with attention and a state keeps
(keys, values, State), and a layer that is an mlp alone keeps ().

The cache of an episode with several turns (`gapped`) has no ring. The tokens of
one call are written to the same columns of all rows, and a row with fewer
tokens, or one that waits, leaves gaps there. `at` is the token index of every
column. R is then as long for a layer with a window, because the tokens within
one row's window may be spread over many columns. If each row advances
independently (`rollouts.host_episodes`), a token's column is its index in its
completion. The write is then a scatter, but R = C columns are enough and there
are no gaps.

Keys and values are stored in the format of `parts.stored`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding
from jaxrl_reason.models.parts import delta, windows
from jaxrl_reason.models.parts.stored import Stored, store
from jaxrl_reason.models.stretches import mapped

# A growth step of the cache, in columns. A bfloat16 tile of a TPU has 16 rows;
# below 32 columns another loop costs more to compile than it saves.
TILE = 32
# Columns of the first part of a cache that grows by factors of GROWTH.
FIRST, GROWTH = 512, 4


@struct.dataclass
class Cache:
  """Keys and values, one pair per entry (`stretches`), laid out [row, head,
  position, H], so that a head's keys are contiguous for the products of a
  decode step. An entry of several layers has a leading axis of layers.
  """

  # (keys, values), Stored of [B,K,P,H]; for latent layers one array for both,
  # and the keys of an indexer; for the delta rule a State of B prompts.
  prompt: tuple
  # (keys, values), Stored of [S,K,R,H], or a State of S rows. P and R are no
  # more than a layer's window.
  own: tuple
  prompt_mask: jax.Array  # bool [B,1 or I,P], for all or each of I rows
  # Maximum tokens of a row, P + C. Some rotary tables depend on it.
  max_tokens: int = struct.field(pytree_node=False)
  # For each entry, its layers and its window in tokens; 0: no window.
  layers: tuple[range, ...] = struct.field(pytree_node=False)
  windows: tuple[int, ...] = struct.field(pytree_node=False)
  # True: the kernel of `parts.cached` reads it, with all columns from the
  # start.
  by_kernel: bool = struct.field(pytree_node=False)
  # Experts used, int: prompts [B,P,L,k], most recent decoded tokens [S,L,k].
  routes: tuple | None = None
  # i32 [S,R], the row position of the token in each column, counted from the
  # prompt's start; -1: a gap. None: the columns are a ring without gaps.
  at: jax.Array | None = None

  @property
  def rows(self) -> int:
    """Returns the number of rows S that are generated at a time."""
    return jax.tree.leaves(self.own)[0].shape[-4]

  def keys(self, of: str) -> dict[int, Stored]:
    """Returns the keys ('prompt' or 'own') of one entry per distinct window."""
    entries = zip(self.windows, getattr(self, of))
    return {
      w: kv[0] for w, kv in entries if kv and not isinstance(kv, delta.State)
    }


def within(columns: int, window: int) -> int:
  """Returns a layer's number of columns, at most its window (0: no window)."""
  return min(columns, abs(window) or columns)


def seen_of_prompt(x: jax.Array, window: int) -> jax.Array:
  """Returns the columns of x [B,...,P,H or 1] that completions attend to: the
  last window - 1 of the left-padded prompts.
  """
  most = max(abs(window) - 1, 1)  # at least one: no array is empty
  return x[..., -most:, :] if window else x


def with_states(entry: delta.State, new: delta.State, at) -> delta.State:
  """Returns an entry with the state of its at-th layer replaced."""
  if at is None:
    return new
  return jax.tree.map(lambda all_, x: all_.at[at].set(x), entry, new)


def put(buffer: Stored, x: jax.Array, step, dtype: str, at=None) -> Stored:
  """Writes the keys or values of new tokens to a buffer.

  Args:
    x: [S,K,H], or O tokens per row [S,O,K,H].
    step: int [], the first column, equal for all rows; or [S,O], a column per
      token, -1: the token is dropped.
    at: index of the layer if the buffer has several; None: it has one.
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

  return jax.tree.map(write, buffer, store(x, dtype))


def _scattered(buffer: Stored, x: jax.Array, columns, dtype: str, at) -> Stored:
  """Scatters x [S,O,K,H] to columns [S,O] of its rows; -1: dropped."""
  lead = () if at is None else (at,)

  def write(all_, new):
    s, _, r = all_.shape[len(lead) : len(lead) + 3]
    where = *lead, jnp.arange(s)[:, None], slice(None)
    to = jnp.where(columns < 0, r, columns)
    return all_.at[*where, to].set(new, mode='drop')

  return jax.tree.map(write, buffer, store(x, dtype))


def grow(cache: Cache, n: int) -> Cache:
  """Pads the cache to at least n columns, or a layer's window if that is less.
  Existing columns do not move.
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


def put_places(all_: Any, new: Any, at: jax.Array, m: int) -> Any:
  """Writes arrays [b*k,...] to the places at int [b] of arrays [m*k,...]."""

  def put(x, y):
    k = x.shape[0] // m
    places = x.reshape(m, k, *x.shape[1:])
    y = y.reshape(len(at), k, *y.shape[1:])
    return sharding.rows(places.at[at].set(y).reshape(x.shape))

  return jax.tree.map(put, all_, new)


def renew(cache: Cache, new: Cache, at: jax.Array, t=None, step=None) -> Cache:
  """Replaces some prompts. Their rows begin anew, or continue with t tokens.

  Args:
    new: of b prompts with as many rows each; gapped if the rows continue, with
      each token in the column of its index.
    at: int [b], the places of the new prompts among the prompts of `cache`.
    t: int [b*I], number of decoded tokens of each row in `new`; None: the rows
      begin anew.
    step: int [], number of calls of `decode` before the next one.
  """
  put = functools.partial(put_places, at=at, m=len(cache.prompt_mask))

  def each(f, *entries):
    return tuple(mapped(f, n)(*x) for n, *x in zip(cache.layers, *entries))

  cache = cache.replace(
    prompt=each(put, cache.prompt, new.prompt),
    prompt_mask=put(cache.prompt_mask, new.prompt_mask),
  )
  if t is None:
    return cache

  def put_rows(old, x):
    moved = functools.partial(_in_ring, t=t, step=step)
    return put(old, delta.outside(moved, old, x))

  return cache.replace(own=each(put_rows, cache.own, new.own))


def _in_ring(ring: jax.Array, x: jax.Array, t, step) -> jax.Array:
  """Moves tokens from columns at their indices to those of a ring.

  Args:
    ring: [S,K,R,...], for its number of columns; x: [s,K,C,...].
    t: int [s], tokens of each row; step: int [], the next column.
  """
  r = ring.shape[2]
  age = (step - jnp.arange(r)) % r  # 0: the column of the next token
  index = (t[:, None] - age)[:, None]
  index = index.reshape(*index.shape, *[1] * (x.ndim - 3))
  index = jnp.clip(index, 0, x.shape[2] - 1)
  return jnp.take_along_axis(x, index, axis=2)


def _of_keys(f: Callable, layers: range, *kv):
  """Applies f to the keys and values of entries; states are those of the last
  entry.
  """
  return mapped(functools.partial(delta.outside, f), layers)(*kv)


def _each(f: Callable, cache: Cache, *entries) -> tuple:
  """Applies `_of_keys` to every entry."""
  return tuple(_of_keys(f, *part) for part in zip(cache.layers, *entries))


def gapped(cache: Cache, columns: int) -> Cache:
  """Converts a cache without decoded tokens to one for episodes of several
  turns.

  Args:
    columns: number of columns for completions.
  """

  def blank(x):
    shape = *x.shape[:2], columns, *x.shape[3:]
    return sharding.rows(jnp.zeros(shape, x.dtype))

  at = sharding.rows(jnp.full((cache.rows, columns), -1, jnp.int32))
  return cache.replace(own=_each(blank, cache, cache.own), at=at)


def _of_rows(x: jax.Array, s: int) -> jax.Array:
  """Repeats x [B,1 or I,...] for the s = B*I rows: [S,...]."""
  b, _, *shape = x.shape
  return jnp.broadcast_to(x, (b, s // b, *shape)).reshape(s, *shape)


def place(cache: Cache, t: jax.Array, column):
  """Assigns columns of a gapped cache to new tokens.

  Args:
    t: int [S,O], the index of each token in its completion; -1: no token.
    column: int [], the column of the first token; or [S,O], of each token, -1:
      none.

  Returns:
    (cache, positions [S,O], masks by window: (of prompt bool [B,I*O,P], of
    own columns bool [S,O,R])).
  """
  b, (s, o) = len(cache.prompt_mask), t.shape
  first = _of_rows(cache.prompt_mask.sum(axis=2), s)
  positions = jnp.where(t < 0, -1, first[:, None] + t)
  if jnp.ndim(column):
    to = jnp.where(column < 0, cache.at.shape[1], column)
    at = cache.at.at[jnp.arange(s)[:, None], to].set(positions, mode='drop')
  else:
    at = jax.lax.dynamic_update_slice_in_dim(
      cache.at, positions, column, axis=1
    )
  queries, masks = positions.reshape(b, -1, 1), {}
  of_prompt = jnp.cumsum(cache.prompt_mask, axis=2) - 1

  def of_tokens(x):
    return jnp.repeat(_of_rows(x, s), o, axis=0).reshape(b, s // b * o, -1)

  for window, keys in cache.keys('prompt').items():
    prompt = of_tokens(cache.prompt_mask)
    own = (at >= 0)[:, None] & (at[:, None] <= positions[..., None])
    if window:
      most = windows.reach(window, positions)[..., None]
      near = queries - of_tokens(of_prompt) < most.reshape(queries.shape)
      prompt = prompt & near
      own = own & (positions[..., None] - at[:, None] < most)
    masks[window] = prompt[..., -keys.values.shape[-2] :], own
  return cache.replace(at=at), jnp.maximum(positions, 0), masks


def fork(cache: Cache, t: jax.Array, n: int) -> Cache:
  """Copies every row of a gapped cache to n children that share its keys.

  The row's keys become part of the prompt's, and the children's own columns
  begin empty.

  Args:
    t: int [S], or [S,n] for each child, the index in the row's completion of
      the last token that the child shares; -1: only the prompt.
    n: children of a row, adjacent. Index 0 of their completions follows the
      last shared token.
  """
  s, at = len(cache.at), cache.at[:, None]
  first = _of_rows(cache.prompt_mask.sum(axis=2), s)
  last = first[:, None] + t.reshape(s, -1)
  kept = (at >= 0) & (at <= last[..., None])  # [S,1 or n,R]
  before = _of_rows(cache.prompt_mask, s)[:, None]
  before = jnp.broadcast_to(before, (*last.shape, before.shape[2]))

  def of_row(x):
    return _of_rows(x[:, None], s)

  def joined(prompt, own):
    return jnp.concatenate([of_row(prompt), own], axis=2)

  def blank(x):
    return jnp.repeat(jnp.zeros_like(x), n, axis=0)

  routes = cache.routes
  if routes is not None:
    own = jnp.repeat(routes[1], n, axis=0)
    padding = ((0, 0), (0, kept.shape[2]), (0, 0), (0, 0))
    routes = jnp.pad(of_row(routes[0]), padding, constant_values=-1), own
  return cache.replace(
    prompt=_each(joined, cache, cache.prompt, cache.own),
    own=_each(blank, cache, cache.own),
    prompt_mask=jnp.concatenate([before, kept], axis=2),
    routes=routes,
    at=jnp.repeat(jnp.full_like(cache.at, -1), n, axis=0),
  )


def spaced(most: int, n: int) -> list[int]:
  """Returns at most n evenly spaced sizes up to `most`, in rising order."""
  return sorted({-(-most * i // n) for i in range(1, n + 1)})


def rooms(max_new: int, segments: int) -> tuple[int, ...]:
  """Returns the column counts of a cache that grows to max_new.

  Args:
    segments: number of equal parts; short caches have fewer, of at least TILE
      columns. 0: each part is GROWTH times as long as the one before, so that
      a step reads at most GROWTH times the columns that are written, whatever
      max_new is.
  """
  if not segments:
    n = math.ceil(math.log(max(max_new / FIRST, 1), GROWTH))
    return (*(FIRST * GROWTH**i for i in range(n)), max_new)
  part = math.ceil(max_new / segments / TILE) * TILE
  return (*range(part, max_new, part), max_new)


def context(cache: Cache, t, step) -> tuple[jax.Array, dict[int, tuple]]:
  """Computes the positions and attention masks of one decode step.

  Args:
    t: int [] or [S], the index of each row's token in its completion.
    step: int [], number of calls of `decode` before this one. Keys are written
      at column step % R of a layer.

  Returns:
    (positions [S], masks by window: (of prompt bool [B,1 or S/B,P], of own
    columns bool [1 or S,1,R])).
  """
  b, s = len(cache.prompt_mask), cache.rows
  by_prompt = jnp.reshape(t, (b, -1) if jnp.ndim(t) else (1, 1))
  positions = cache.prompt_mask.sum(axis=2) + by_prompt
  # The position of a prompt token, from which distances are measured.
  at = jnp.cumsum(cache.prompt_mask, axis=2) - 1
  masks = {}
  for window, keys in cache.keys('own').items():
    r = keys.values.shape[-2]
    prompt = cache.prompt_mask
    # R is at most the window, so no own token is outside it.
    seen = (step - jnp.arange(r)) % r <= jnp.reshape(t, (-1, 1, 1))
    if window:
      most = windows.reach(window, positions)[..., None]
      prompt = prompt & (positions[..., None] - at < most)
      prompt = seen_of_prompt(prompt[..., None], window)[..., 0]
    if window < 0:  # own tokens may be outside the chunk of the query
      most = jnp.broadcast_to(most, (b, s // b, 1)).reshape(s, 1, 1)
      seen = seen & ((step - jnp.arange(r)) % r < most)
    masks[window] = prompt, seen
  return _of_rows(positions, s), masks
