"""Padding that costs nothing: the update at the smallest shape that holds it.

Lengths are known when a batch is, not when its program is compiled. So the
program holds the update of a (micro-)batch at a handful of static sizes and
runs one of them (`fit`): nothing is compiled later, whatever the lengths.

  Packing   sequences lie one behind the other in rows of `length` tokens,
            placed by first fit in order of falling length; sizes are numbers
            of such rows
  Lengths   rows stay rows, sorted by length so that micro-batches hold equal
            ones; sizes are numbers of columns
  Shared    rows of one prompt attend to one copy of it (`models.shared`), and
            are sorted so that micro-batches hold whole groups; sizes are
            numbers of prompts and columns of completions
  Chunked   rows are the chunks of a completion, packed as Packing packs rows
            (`update.chunked`)

All of it is between tokens and log-probs only. Both ends are [N,T]: losses,
advantages and micro-batches know nothing of it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Batch
from jaxrl_reason.config.training import Training
from jaxrl_reason.models import shared
from jaxrl_reason.models.cache import spaced
from jaxrl_reason.models.config import sized_choice


@struct.dataclass
class Packed:
  """The positions of the tokens of rows [N,T] in packed rows [R,L]."""

  source: jax.Array  # i32 [R,L], index into the N*T tokens; N*T: nothing
  segments: jax.Array  # i32 [R,L], numbered from 1 along a row; 0: nothing
  place: jax.Array  # i32 [N,T], index into the R*L tokens; R*L: nowhere

  def pack(self, x: jax.Array) -> jax.Array:
    """Packs [N,T,...] -> [R,L,...], 0 where there is nothing."""
    return sharding.rows(_take(x, self.source))

  def unpack(self, x: jax.Array) -> jax.Array:
    """Unpacks [R,L,...] -> [N,T,...], 0 at padding."""
    return sharding.rows(_take(x, self.place))


def _take(x: jax.Array, index: jax.Array) -> jax.Array:
  flat = x.reshape(-1, *x.shape[2:])
  return jnp.take(flat, index, axis=0, mode='fill', fill_value=0)


def first_fit(
  lengths: jax.Array, room: int, n_rows: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Packs sequences into rows, the longest first, each into the first that
  holds it.

  Args:
    lengths: int [N], at most `room`, the tokens of a row.
    n_rows: of the rows; `Packing.most` are always enough.

  Returns:
    (row, offset in it, place among its sequences from 0), i32 [N] each.
  """

  def put(state, length):
    used, count = state
    row = jnp.argmax(used + length <= room)
    at = row, used[row], count[row]
    return (used.at[row].add(length), count.at[row].add(1)), at

  order = jnp.argsort(-lengths)
  empty = jnp.zeros(n_rows, jnp.int32)
  lengths = lengths.astype(jnp.int32)[order]
  _, at = jax.lax.scan(put, (empty, empty), lengths)
  return tuple(jnp.zeros_like(x).at[order].set(x) for x in at)


@dataclasses.dataclass(frozen=True)
class Packing:
  """Sequences packed into rows.

  Attributes:
    length: L, tokens of a packed row, at least those of a whole sequence.
    sizes: static numbers of rows, evenly spaced; a batch runs at most 1/sizes
      of what it would cost padded above what it needs.
  """

  length: int
  sizes: int = 4

  def most(self, n: int, t: int) -> int:
    """Counts the rows that n sequences of at most t tokens never exceed: every
    row but the last holds as many sequences as fit of whole ones.
    """
    if self.length < t:
      raise ValueError(
        f'packed rows of {self.length} tokens do not hold a sequence of {t}'
      )
    return -(-n // (self.length // t))

  def options(self, batch: Batch) -> tuple[jax.Array, list[Callable]]:
    """Returns (which to take, rows -> (rows, Packed) at every size)."""
    valid, (n, t) = batch.valid, batch.valid.shape
    which, options = self.placed(valid)
    which = trees.shared_max(which)
    source = jnp.arange(n * t).reshape(n, t)

    def at(option: Callable, x: Any) -> tuple[Any, Packed]:
      put, to, ids = option()
      return x, Packed(put(n * t, source), put(0, ids), to)

    return which, [functools.partial(at, option) for option in options]

  def placed(self, valid: jax.Array) -> tuple[jax.Array, list[Callable]]:
    """Places sequences bool [S,t], those without a token nowhere.

    Returns:
      (which to take, at every size () -> (what puts numbers [S,t] into packed
      rows [R,L] around a fill, places [S,t], segments [S,t])).
    """
    n, t = valid.shape
    most, shards = self.most(n, t), sharding.n_row_shards()
    # Whole multiples of the devices, or every one would hold all rows.
    blocks = -(-most // shards)
    sizes = [shards * rows for rows in spaced(blocks, self.sizes)]
    row, offset, rank = first_fit(valid.sum(axis=1), self.length, sizes[-1])
    start = row * self.length + offset
    # Holes within a sequence close up: a token goes by its place among the
    # valid ones, as its position does.
    place = start[:, None] + jnp.cumsum(valid, axis=1) - 1

    def at(rows: int):
      nowhere = rows * self.length
      to = jnp.where(valid, place, nowhere)

      def put(fill, x):
        return (
          jnp.full(nowhere, fill, jnp.int32)
          .at[to.reshape(-1)]
          .set(x.reshape(-1), mode='drop')
          .reshape(rows, self.length)
        )

      return put, to, jnp.broadcast_to(rank[:, None] + 1, (n, t))

    which = jnp.searchsorted(jnp.asarray(sizes), row.max() + 1)
    return which, [functools.partial(at, rows) for rows in sizes]

  def order(self, batch: Batch, parts: int) -> None:
    """Returns None: any part of the rows packs as well as another."""
    del batch, parts


@dataclasses.dataclass(frozen=True)
class Lengths:
  """Rows cut behind the longest of them.

  Attributes:
    start: columns before it are never cut off.
    sizes: static numbers of columns from there, evenly spaced.
  """

  start: int
  sizes: int

  def options(self, batch: Batch) -> tuple[jax.Array, list[Callable]]:
    """Returns (which to take, rows -> (rows, None) at every size)."""
    t = batch.valid.shape[1]
    sizes = self.columns(t)
    which = jnp.searchsorted(jnp.asarray(sizes), _ends(batch.valid).max())

    def at(size: int, rows: Any) -> tuple[Any, None]:
      return _cut(rows, t, size), None

    which = trees.shared_max(which)
    return which, [functools.partial(at, size) for size in sizes]

  def columns(self, t: int) -> list[int]:
    """Lists the numbers of columns that rows of t may be cut to."""
    return [self.start + n for n in spaced(t - self.start, self.sizes)]

  def order(self, batch: Batch, parts: int) -> jax.Array:
    """Orders rows [N] such that strided parts (`batch.split`) have like
    lengths.
    """
    return _dealt(jnp.argsort(_ends(batch.valid))[None], parts)


@dataclasses.dataclass(frozen=True)
class Shared:
  """Rows that attend to one copy of their prompt.

  Attributes:
    start: P, columns of prompts.
    sizes: static numbers of columns that completions are cut to, as Lengths.
    samples: G, rows of a prompt in a batch, adjacent.
    prompts: of a whole batch.
    shuffled: rows come in another order (minibatches), so that a part of them
      may have more prompts than there are groups in it.
  """

  start: int
  sizes: int
  samples: int
  prompts: int
  shuffled: bool = False

  def most(self, n: int) -> list[int]:
    """Lists the numbers of prompts that n rows of a slab are laid out for; the
    last of them holds any such rows.
    """
    whole = n % self.samples == 0 or self.samples % n == 0
    least = -(-n // self.samples) if whole else (n - 2) // self.samples + 2
    if not self.shuffled:
      return [min(n, least)]
    most = min(n, self.prompts)
    return sorted({min(least, most), *spaced(most, 2)})

  def options(self, batch: Batch) -> tuple[jax.Array, list[Callable]]:
    """Returns (which to take, rows -> (rows, Layout) at every size)."""
    n, t = batch.valid.shape
    slabs = _slabs(n)
    which, layouts = shared.layout(
      batch.prompt_index, self.start, slabs, self.most(n // slabs)
    )
    cuts = Lengths(self.start, self.sizes)
    columns, _ = cuts.options(batch)

    def at(layout: shared.Layout, size: int, rows: Any):
      return _cut(rows, t, size), layout

    sizes = cuts.columns(t)
    options = [
      functools.partial(at, x, size) for x in layouts for size in sizes
    ]
    return which * len(sizes) + columns, options

  def order(self, batch: Batch, parts: int) -> jax.Array | None:
    """Orders rows [N] such that strided parts (`batch.split`) hold the rows of
    few prompts, and no row leaves its device; None: there is one part.
    """
    if parts == 1:
      return None
    n = batch.prompt_index.shape[0]
    index = batch.prompt_index.reshape(_slabs(n // parts), -1)
    first = jnp.arange(len(index))[:, None] * index.shape[1]
    return _dealt(jnp.argsort(index, axis=1) + first, parts)


def _slabs(n: int) -> int:
  """Counts the devices that have their own of n rows; 1 where these do not
  divide over them.
  """
  shards = sharding.n_row_shards()
  return 1 if n % shards else shards


def _dealt(order: jax.Array, parts: int) -> jax.Array:
  """[S,n], of each slab an order in which its parts follow one another, as that
  of rows [S*n] in which they are strided.
  """
  order = order.reshape(len(order), parts, -1)
  return order.swapaxes(1, 2).reshape(-1)


def _cut(rows: Any, t: int, size: int) -> Any:
  """Rows of t columns cut to some: by shape, since what an update reads of
  [N,T] is per token.
  """

  def leaf(x):
    return x[:, :size] if x.ndim > 1 and x.shape[1] == t else x

  return jax.tree.map(leaf, rows)


def _ends(valid: jax.Array) -> jax.Array:
  """i32 [N], columns up to the last real token of every row."""
  return jnp.max(jnp.where(valid, jnp.arange(1, valid.shape[1] + 1), 0), axis=1)


How = Packing | Lengths | Shared  # or chunked.Chunked
KINDS = 'packed', 'buckets', 'shared'  # of `rl.padding`, besides whole


def choose(c: Training, start: int, key: str = 'rl.padding') -> How | None:
  """Reads the padding of a stage.

  Args:
    c: the section of the stage.
    start: columns that no row does without: those of the prompt.
    key: of the padding. Only rows of the rl stage share prompts.

  Raises:
    ValueError: names the key and what it may be.
  """
  kinds = KINDS if key == 'rl.padding' else KINDS[:2]
  kind, size = sized_choice(key, c.padding, kinds)
  if kind == 'packed':
    return Packing(size)
  if kind == 'shared':
    groups = c.prompts + c.replay.rows // c.samples + c.extra.groups
    mixed = c.epochs * c.minibatches > 1
    return Shared(start, size, c.samples, groups, mixed)
  return Lengths(start, size) if kind == 'buckets' else None


def arranged(
  how: How | None, batch: Batch, rows: Any, parts: int
) -> tuple[Any, jax.Array | None]:
  """Returns (rows in the order in which their parts are alike, that order; or
  as they are, None).

  Args:
    batch: what is read of them.
  """
  order = how and how.order(batch, parts)
  if order is None:
    return rows, None
  return trees.take(rows, order), order


def fit(how: How | None, batch: Batch, rows: Any, f: Callable) -> Any:
  """Runs f(rows, Packed, Layout or None) at the smallest size that holds them.

  Args:
    how: None: as they are.
    batch: what is read of them.
    rows: tree of [N,...].
    f: gives arrays of the same shapes whatever the size. A gradient belongs
      inside it: taken of the switch it would keep what every size saves.
  """
  if how is None:
    return f(rows, None)
  which, options = how.options(batch)
  if len(options) == 1:
    return f(*options[0](rows))

  def branch(option, rows):
    return f(*option(rows))

  branches = [functools.partial(branch, option) for option in options]
  return jax.lax.switch(which, branches, rows)
