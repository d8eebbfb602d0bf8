"""Saves padding: computes the update at the smallest sufficient static shape.

Lengths are known at run time, not at compile time. So the program contains the
update of a (micro-)batch at a few static sizes, and runs one of them (`fit`).
Nothing is compiled later, for any lengths.

  Packing   several sequences share a row of `length` tokens, placed by first
            fit, longest first; sizes are numbers of such rows
  Lengths   rows are sorted by length, so that micro-batches have rows of
            similar length; sizes are numbers of columns
  Shared    rows of one prompt attend to one copy of it (`models.shared`), and
            are sorted so that micro-batches have whole groups; sizes are
            numbers of prompts and columns of completions
  Tree      as Shared, and rows share the beginnings that they have in common;
            sizes are numbers of prompts and of distinct tokens
  Chunked   rows are the chunks of a completion, packed as Packing packs rows
            (`update.chunked`)

Only the computation from tokens to log-probs is packed. Losses, advantages and
micro-batches have arrays [N,T].
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Batch
from jaxrl_reason.config.training import Training
from jaxrl_reason.models import shared
from jaxrl_reason.models.cache import spaced
from jaxrl_reason.names import sized_choice


@struct.dataclass
class Packed:
  """The positions of the tokens of rows [N,T] in packed rows [R,L]."""

  source: jax.Array  # i32 [R,L], index into the N*T tokens; N*T: empty
  segments: jax.Array  # i32 [R,L], numbered from 1 along a row; 0: empty
  place: jax.Array  # i32 [N,T], index into the R*L tokens; R*L: not packed

  def pack(self, x: jax.Array) -> jax.Array:
    """Packs [N,T,...] -> [R,L,...], 0 at empty places."""
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
  """Packs sequences into rows, the longest first, each into the first row with
  enough space.

  Args:
    lengths: int [N], at most `room`, the tokens of a row.
    n_rows: number of rows; `Packing.most` is always enough.

  Returns:
    (row, offset in the row, index among its sequences from 0), i32 [N] each.
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
    sizes: number of static row counts, evenly spaced; the excess is at most
      1/sizes of the cost of padded rows.
  """

  length: int
  sizes: int = 4

  def most(self, n: int, t: int) -> int:
    """Returns an upper bound of the rows for n sequences of at most t tokens:
    every row but the last has as many sequences as fit at full length.
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
    """Places sequences bool [S,t]; sequences without a token are dropped.

    Returns:
      (the index of the size, a function per size: () -> (a function that
      scatters numbers [S,t] into packed rows [R,L] with a fill value, places
      [S,t], segments [S,t])).
    """
    n, t = valid.shape
    most, shards = self.most(n, t), sharding.n_row_shards()
    # Multiples of the number of devices; otherwise every device has all rows.
    blocks = -(-most // shards)
    sizes = [shards * rows for rows in spaced(blocks, self.sizes)]
    row, offset, rank = first_fit(valid.sum(axis=1), self.length, sizes[-1])
    start = row * self.length + offset
    # Gaps within a sequence are removed: the place of a token is its index
    # among the valid tokens, as its position is.
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
    """Returns None: packing does not depend on the order of rows."""
    del batch, parts


@dataclasses.dataclass(frozen=True)
class Lengths:
  """Rows that are cut at the end of the longest row.

  Attributes:
    start: number of columns that are never cut.
    sizes: number of static column counts from there, evenly spaced.
  """

  start: int
  sizes: int

  def options(self, batch: Batch) -> tuple[jax.Array, list[Callable]]:
    """Returns (the index of the size, a function rows -> (rows, None) per
    size).
    """
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
    """Orders rows [N] so that strided parts (`batch.split`) have similar
    lengths.
    """
    return _dealt(jnp.argsort(_ends(batch.valid))[None], parts)


@dataclasses.dataclass(frozen=True)
class Shared:
  """Rows that attend to one copy of their prompt.

  Attributes:
    start: P, columns of prompts.
    sizes: number of static column counts of completions, as in Lengths.
    samples: G, rows of a prompt in a batch, adjacent.
    prompts: of a whole batch.
    shuffled: rows are in another order (minibatches), so a part of them may
      have more prompts than the same number of rows in whole groups.
  """

  start: int
  sizes: int
  samples: int
  prompts: int
  shuffled: bool = False

  def most(self, n: int) -> list[int]:
    """Lists the static numbers of prompts for n rows of a slab; the last number
    is always enough.
    """
    whole = n % self.samples == 0 or self.samples % n == 0
    least = -(-n // self.samples) if whole else (n - 2) // self.samples + 2
    if not self.shuffled:
      return [min(n, least)]
    most = min(n, self.prompts)
    return sorted({min(least, most), *spaced(most, 2)})

  def options(self, batch: Batch) -> tuple[jax.Array, list[Callable]]:
    """Returns (the index of the size, a function rows -> (rows, Layout) per
    size).
    """
    n = batch.valid.shape[0]
    slabs = _slabs(n)
    which, layouts = shared.layout(
      batch.prompt_index, self.start, slabs, self.most(n // slabs)
    )
    size, cuts = self.cuts(batch, slabs)

    def at(layout: shared.Layout, cut: Callable, rows: Any):
      return cut(layout, rows)

    options = [functools.partial(at, x, cut) for x in layouts for cut in cuts]
    return trees.shared_max(which) * len(cuts) + size, options

  def cuts(self, batch: Batch, slabs: int) -> tuple[jax.Array, list[Callable]]:
    """Returns (the index of the size of completions, a function (Layout, rows)
    -> (rows, Layout) per size).
    """
    del slabs
    how, t = Lengths(self.start, self.sizes), batch.valid.shape[1]
    which, _ = how.options(batch)

    def at(size: int, layout: shared.Layout, rows: Any):
      return _cut(rows, t, size), layout

    return which, [functools.partial(at, size) for size in how.columns(t)]

  def order(self, batch: Batch, parts: int) -> jax.Array | None:
    """Orders rows [N] so that strided parts (`batch.split`) have rows of few
    prompts, and no row leaves its device; None: there is one part.
    """
    if parts == 1:
      return None
    n = batch.prompt_index.shape[0]
    index = batch.prompt_index.reshape(_slabs(n // parts), -1)
    first = jnp.arange(len(index))[:, None] * index.shape[1]
    return _dealt(jnp.argsort(index, axis=1) + first, parts)


@dataclasses.dataclass(frozen=True)
class Tree(Shared):
  """Rows that attend to one copy of their prompt, and of the tokens before the
  first in which they differ. Columns are not cut.

  Attributes:
    sizes: number of static counts of distinct tokens, evenly spaced.
  """

  def cuts(self, batch: Batch, slabs: int) -> tuple[jax.Array, list[Callable]]:
    """Returns (the index of the size of completions, a function (Layout, rows)
    -> (rows, Layout) per size).
    """
    n, t = batch.valid.shape
    sizes = spaced(n // slabs * (t - self.start), self.sizes)
    tokens, valid = batch.tokens[:, self.start :], batch.valid[:, self.start :]
    # A token of several rows has one distribution, so one temperature.
    same = batch.prompt_index, jnp.broadcast_to(batch.temperature, n)
    which, distinct = shared.beginnings(tokens, valid, same, slabs, sizes)

    def at(own: shared.Distinct, layout: shared.Layout, rows: Any):
      return rows, layout.replace(own=own)

    which = trees.shared_max(which)
    return which, [functools.partial(at, own) for own in distinct]


def _slabs(n: int) -> int:
  """Counts the devices over which n rows are split; 1 if they do not divide."""
  shards = sharding.n_row_shards()
  return 1 if n % shards else shards


def _dealt(order: jax.Array, parts: int) -> jax.Array:
  """Converts an order of consecutive parts in each slab, [S,n], to an order of
  the rows [S*n] in which the parts are strided.
  """
  order = order.reshape(len(order), parts, -1)
  return order.swapaxes(1, 2).reshape(-1)


def _cut(rows: Any, t: int, size: int) -> Any:
  """Cuts the arrays of rows of t columns, recognised by their shape. Fields of
  a batch with other columns are not cut, also if there are t of them.
  """

  def leaf(path, x):
    names = {getattr(key, 'name', None) for key in path}
    if names & batch_lib.OTHER_AXES or x.ndim < 2 or x.shape[1] != t:
      return x
    return x[:, :size]

  return jax.tree_util.tree_map_with_path(leaf, rows)


def _ends(valid: jax.Array) -> jax.Array:
  """Counts the columns up to the last real token of every row, i32 [N]."""
  return jnp.max(jnp.where(valid, jnp.arange(1, valid.shape[1] + 1), 0), axis=1)


How = Packing | Lengths | Shared  # or chunked.Chunked
SHARING = {'shared': Shared, 'tree': Tree}
KINDS = 'packed', 'buckets', *SHARING  # of `rl.padding`, besides whole


def choose(c: Training, start: int, key: str = 'rl.padding') -> How | None:
  """Reads the padding of a stage.

  Args:
    c: the section of the stage.
    start: columns of the prompt, which every row has.
    key: of the padding. Only rows of the rl stage share prompts.

  Raises:
    ValueError: names the key and what it may be.
  """
  kinds = KINDS if key == 'rl.padding' else KINDS[:2]
  kind, size = sized_choice(key, c.padding, kinds)
  if kind == 'packed':
    return Packing(size)
  if kind in SHARING:
    groups = c.prompts + c.replay.rows // c.samples + c.extra.groups
    mixed = c.epochs * c.minibatches > 1
    return SHARING[kind](start, size, c.samples, groups, mixed)
  return Lengths(start, size) if kind == 'buckets' else None


def arranged(
  how: How | None, batch: Batch, rows: Any, parts: int
) -> tuple[Any, jax.Array | None]:
  """Returns (the rows in an order with similar parts, the order), or (rows,
  None) if the order does not matter.

  Args:
    batch: the fields that determine the order.
  """
  order = how and how.order(batch, parts)
  if order is None:
    return rows, None
  return trees.take(rows, order), order


def fit(how: How | None, batch: Batch, rows: Any, f: Callable) -> Any:
  """Runs f(rows, Packed, Layout or None) at the smallest sufficient size.

  Args:
    how: the packing; None runs f on padded rows.
    batch: the fields that determine the size.
    rows: tree of [N,...].
    f: returns arrays of the same shapes for every size. A gradient has to be
      computed inside f: the gradient of the switch would store the residuals of
      every size.
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
