"""Stores one process's part of a state in a file; joins such files to states.

  8 bytes       length of the head
  head          JSON: step, record, of each piece path, bounds, dtype, place and
                CRC-32 of its bytes, and a sum of the head itself
  bytes         of the pieces, one after the other

A piece is the part of an array on one device, with bounds [[first, last],...]
in each axis. Two pieces of one layout are equal or disjoint, so any other
layout can be built from them.
"""

import json
import math
import os
import pathlib
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.checkpoints import sums
from jaxrl_reason.checkpoints.described import Damaged

LENGTH = 8  # bytes of a head's length
Bounds = tuple[tuple[int, int], ...]
# (first, n) -> n bytes of a file.
Read = Callable[[int, int], bytes]


class Piece(NamedTuple):
  """Attributes: first, size: of its bytes in the file; sum: their CRC-32."""

  path: str
  bounds: Bounds
  dtype: str
  first: int
  size: int
  sum: int


def bounds_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Bounds:
  """Returns the bounds of an index of a sharding."""
  return tuple(s.indices(n)[:2] for s, n in zip(index, shape))


def on_host(arrays: dict[str, jax.Array]) -> list[tuple]:
  """Copies the parts of arrays on this process's devices, each part once.

  Returns:
    [(path, bounds, values)]; the arrays may be donated afterwards.
  """
  held = []
  for path, x in arrays.items():
    own = {bounds_of(s.index, x.shape): s.data for s in x.addressable_shards}
    held += [(path, bounds, data) for bounds, data in own.items()]
  for _, _, data in held:
    data.copy_to_host_async()
  # A copy, because on a CPU the next step overwrites the buffer itself.
  return [(path, bounds, np.array(data)) for path, bounds, data in held]


def write(path: pathlib.Path, step: int, record: dict, held: list) -> None:
  """Writes the result of `on_host` atomically.

  The file is not flushed to the disk. It survives the death of the process; if
  the host loses its power, another host has a copy.
  """
  blocks = [
    np.ascontiguousarray(x).reshape(-1).view(np.uint8) for *_, x in held
  ]
  pieces, first = [], 0
  for (name, bounds, x), block in zip(held, blocks):
    total = zlib.crc32(block)
    pieces.append(Piece(name, bounds, str(x.dtype), first, x.nbytes, total))
    first += x.nbytes
  head = {'step': step, 'record': record, 'pieces': pieces}
  text = json.dumps(head | {'sum': sums.of_json(head)}).encode()
  path.parent.mkdir(parents=True, exist_ok=True)
  aside = path.with_name(f'.{path.name}.{os.getpid()}')
  try:
    with aside.open('wb') as f:
      f.write(len(text).to_bytes(LENGTH, 'little') + text)
      for block in blocks:
        f.write(block)
    os.replace(aside, path)
  finally:
    aside.unlink(missing_ok=True)


class File:
  """A file of pieces.

  Args:
    read: returns its bytes, from this host's disk or another's.

  Attributes:
    step, record: of the state; pieces: of its arrays.
  """

  def __init__(self, read: Read):
    try:
      n = int.from_bytes(read(0, LENGTH), 'little')
      head = json.loads(read(LENGTH, n))
      rest = {k: v for k, v in head.items() if k != 'sum'}
      whole = head['sum'] == sums.of_json(rest)
    except (ValueError, KeyError, TypeError, AttributeError, MemoryError) as e:
      raise Damaged(f'its head is damaged ({type(e).__name__})') from e
    if not whole:
      raise Damaged('its head has another checksum')
    self._read, self._begin = read, LENGTH + n
    self.step, self.record = head['step'], head['record']
    self.pieces = []
    for path, bounds, *facts in head['pieces']:
      bounds = tuple(map(tuple, bounds))
      self.pieces.append(Piece(path, bounds, *facts))

  def values(self, piece: Piece) -> np.ndarray:
    """Returns the values of a piece.

    Raises:
      Damaged: they differ from the written values.
    """
    data = self._read(self._begin + piece.first, piece.size)
    if zlib.crc32(data) != piece.sum:
      raise Damaged(f'{piece.path} {list(piece.bounds)} has another checksum')
    shape = [last - first for first, last in piece.bounds]
    return np.frombuffer(data, jnp.dtype(piece.dtype)).reshape(shape)

  def check(self) -> None:
    """Reads and checks all pieces.

    Raises:
      Damaged: a piece differs from the written piece.
    """
    for piece in self.pieces:
      self.values(piece)


def reader(path: pathlib.Path) -> Read:
  """Returns a reader of the bytes of a file on this host."""

  def read(first: int, n: int) -> bytes:
    with path.open('rb') as f:
      # Limited, because a damaged head may have any number.
      if first + n > os.fstat(f.fileno()).st_size:
        raise Damaged('it has been cut off')
      f.seek(first)
      return f.read(n)

  return read


class _Part:
  """The requested part of an array, filled piece by piece."""

  def __init__(self, bounds: Bounds, dtype):
    self._bounds = bounds
    self.values = np.empty([b - a for a, b in bounds], dtype)
    self._seen, self._missing = set(), self.values.size

  def lacks(self, piece: Piece) -> bool:
    """Returns True if a piece has elements that are still missing."""
    if not self._missing or piece.bounds in self._seen:
      return False
    return all(a < b for a, b in self._over(piece))

  def _over(self, piece: Piece) -> list[tuple[int, int]]:
    """Returns the intersection of two bounds."""
    both = zip(self._bounds, piece.bounds)
    return [(max(a, c), min(b, d)) for (a, b), (c, d) in both]

  def take(self, piece: Piece, values: np.ndarray) -> None:
    """Copies the overlap with a piece."""
    over = self._over(piece)
    here = [slice(a - o, b - o) for (a, b), (o, _) in zip(over, self._bounds)]
    there = [slice(a - o, b - o) for (a, b), (o, _) in zip(over, piece.bounds)]
    self.values[tuple(here)] = values[tuple(there)]
    self._seen.add(piece.bounds)
    self._missing -= math.prod(b - a for a, b in over)

  @property
  def whole(self) -> bool:
    return not self._missing


def arrays(
  files: Iterable[File], template: dict[str, Any], shardings: dict[str, Any]
) -> dict[str, jax.Array]:
  """Builds arrays from pieces of any layout.

  Args:
    files: read in this order, until all elements are found.
    template: shapes by path; shardings: of the results.

  Raises:
    Damaged: a piece is damaged, or something is missing.
  """
  parts = {}
  for path, x in template.items():
    where = shardings[path].addressable_devices_indices_map(x.shape)
    own = {bounds_of(index, x.shape) for index in where.values()}
    parts[path] = {bounds: _Part(bounds, x.dtype) for bounds in own}
  wanted = [p for own in parts.values() for p in own.values()]
  for file in files:
    for piece in file.pieces:
      lacking = [
        p for p in parts.get(piece.path, {}).values() if p.lacks(piece)
      ]
      if lacking:
        values = file.values(piece)
        for part in lacking:
          part.take(piece, values)
    if all(p.whole for p in wanted):
      break
  else:
    raise Damaged('its files do not make a whole state')
  return {
    path: _placed(x, shardings[path], parts[path])
    for path, x in template.items()
  }


def _placed(x, sharding, own: dict[Bounds, _Part]) -> jax.Array:
  def values(index):
    return own[bounds_of(index, x.shape)].values

  return jax.make_array_from_callback(x.shape, sharding, values)
