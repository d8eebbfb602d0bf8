"""Layouts of tensors on disk, and reading them directly into shards.

Our weights [in..., out...] and tensors on disk [out, in] differ by a
transposition and by flattened dimensions; a layout describes both. A shard is
then a rectangle of rows and columns on disk, read a few megabytes at a time.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.models.adapters import frozen
from jaxrl_reason.models.spec import is_spec

# name -> number of leading input dimensions of our weight; the others are
# outputs, and the tensor on disk is [outputs, inputs].
INPUTS = {'linear': 1, 'output': -1}
LAYOUTS = (
  'vector',  # any dimensions, flat on disk: norms, biases
  'table',  # unchanged: embeddings
  'depthwise',  # [..., taps] <-> [features, 1, taps]
  'linear',  # [in, out...] <-> [out, in], or [in] <-> [1, in]
  'output',  # [in..., out] <-> [out, in]: the attention's output
  'stacked',  # unchanged, all experts in one tensor
  'interleaved',  # the same, last dimension interleaved with another weight's
  'adjoined',  # the same, weights concatenated along the last dimension
  'experts',  # [expert, in, out] <-> [expert, out, in], in one tensor
)
WHOLE = 'stacked', 'interleaved', 'adjoined', 'experts'
CHUNK_BYTES = 8 << 20  # bytes read at once
ALIGNMENT = 64  # bytes; jax on CPU uses such a buffer without a copy


def disk_shape(layout: str, shape: tuple[int, ...]) -> tuple[int, ...]:
  """Returns the shape on disk of one of our weights."""
  if layout == 'vector':
    return (math.prod(shape),)
  if layout == 'experts':
    return (shape[0], shape[2], shape[1])
  if layout == 'table' or layout in WHOLE:
    return shape
  if layout == 'depthwise':
    return math.prod(shape[:-1]), 1, shape[-1]
  n = INPUTS[layout]
  return math.prod(shape[n:]), math.prod(shape[:n])


def joined(layout: str, shapes: list) -> tuple[tuple[int, ...], list[int]]:
  """Returns the shape of a tensor on disk with weights of these shapes, and the
  start of each: a row, a column, or its index among interleaved rows.
  """
  if layout == 'interleaved':
    shape = (*shapes[0][:-1], len(shapes) * shapes[0][-1])
    return shape, list(range(len(shapes)))
  axis = {'experts': 1, 'adjoined': 2}.get(layout, 0)
  ends = [int(x) for x in np.cumsum([0, *(shape[axis] for shape in shapes)])]
  first = shapes[0]
  return (*first[:axis], ends[-1], *first[axis + 1 :]), ends[:-1]


def to_disk(layout: str, ours: np.ndarray) -> np.ndarray:
  """Converts a weight to its form on disk (a view if possible)."""
  shape = disk_shape(layout, ours.shape)
  if layout in INPUTS:
    return ours.reshape(shape[::-1]).T
  return ours.reshape(shape)


def _range(shape: tuple[int, ...], index: tuple[slice, ...]) -> tuple[int, int]:
  """Returns the rows [first, last) of flattened dimensions that an index
  selects, one row if there are none. Only the first dimension may be split, as
  by shardings of heads.
  """
  if not shape:
    return 0, 1
  bounds = [s.indices(n)[:2] for s, n in zip(index, shape)]
  if any(b != (0, n) for b, n in zip(bounds[1:], shape[1:])):
    raise ValueError(f'{shape} is split at {index}: not only in its first axis')
  rest = math.prod(shape[1:])
  return bounds[0][0] * rest, bounds[0][1] * rest


def _rectangle(layout, shape, index) -> list[tuple[int, int]]:
  """Returns the ranges on disk, rows first, of an index into our weight."""
  if layout == 'vector':
    return [_range(shape, index)]
  if layout == 'depthwise':
    ends = _range(shape[:-1], index[:-1]), _range(shape[-1:], index[-1:])
    return [ends[0], (0, 1), ends[1]]
  n = 1 if layout == 'table' else INPUTS[layout]
  first, second = _range(shape[:n], index[:n]), _range(shape[n:], index[n:])
  return [first, second] if layout == 'table' else [second, first]


def read_into(out: np.ndarray, source, piece, index: tuple[slice, ...]) -> None:
  """Reads the part `index` of a piece into `out`, a few megabytes at a time.

  Args:
    out: contiguous, of the part's shape; values are cast to its dtype.
    source: safetensors slice of the tensor on disk.
  """
  if piece.layout in WHOLE:
    return _read_whole(out, source, piece, index)
  (top, bottom), *columns = _rectangle(piece.layout, piece.shape, index)
  flat = out.reshape(disk_shape(piece.layout, out.shape)[:: _step(piece)])
  flat = flat.T if piece.layout in INPUTS else flat
  width = max(math.prod(b - a for a, b in columns), 1)
  step = max(CHUNK_BYTES // (4 * width), 1)
  for row in range(top, bottom, step):
    end = min(row + step, bottom)
    where = slice(piece.start + row, piece.start + end)
    flat[row - top : end - top] = source[
      (where, *[slice(a, b) for a, b in columns])
    ]


def _read_whole(out, source, piece, index: tuple[slice, ...]) -> None:
  """Runs `read_into` for a tensor of all experts, one expert at a time."""
  bounds = [s.indices(n)[:2] for s, n in zip(index, piece.shape)]
  if piece.layout == 'experts':
    columns, rows = (slice(*b) for b in bounds[1:])
    rows = slice(piece.start + rows.start, piece.start + rows.stop)
    for i, expert in enumerate(range(*bounds[0])):
      out[i] = source[(slice(expert, expert + 1), rows, columns)][0].T
    return
  *lead, (first, last) = bounds
  turns, at = source.get_shape()[-1] // piece.shape[-1], piece.start
  lead, end = lead[1:], slice(first * turns, last * turns)
  if piece.layout == 'adjoined':
    turns, at, end = 1, 0, slice(piece.start + first, piece.start + last)
  for i, expert in enumerate(range(*bounds[0])):
    where = (slice(expert, expert + 1), *[slice(a, b) for a, b in lead], end)
    out[i] = source[where][0][..., at % turns :: turns]


def _step(piece) -> int:
  """Returns the step of a tensor's axes in our weight: -1 if transposed."""
  return -1 if piece.layout in INPUTS else 1


def equal(a, b) -> bool:
  """Returns whether two tensors on disk are equal, read a few megabytes at a
  time.
  """
  shape = a.get_shape()
  if shape != b.get_shape():
    return False
  step = max(CHUNK_BYTES // (4 * math.prod(shape[1:])), 1)
  rows = [slice(i, min(i + step, shape[0])) for i in range(0, shape[0], step)]
  return all(np.array_equal(a[r], b[r]) for r in rows)


def _aligned(shape: tuple[int, ...], dtype) -> np.ndarray:
  n = math.prod(shape) * dtype.itemsize
  raw = np.empty(n + ALIGNMENT, np.uint8)
  skip = -raw.ctypes.data % ALIGNMENT
  return raw[skip : skip + n].view(dtype).reshape(shape)


def _put(kept, stacked, one, layer):
  def put(all_, x):
    return jax.lax.dynamic_update_index_in_dim(all_, x, layer, 0)

  return jax.tree.map(put, stacked, frozen.keep(kept, one))


def read_leaf(kept, parts: dict, where) -> Any:
  """Reads a weight from its pieces on disk into the shardings `where`.

  Args:
    kept: its spec, or the pair of specs it is quantized to
      (`models.adapters.frozen`).
    parts: index along its stacked axes -> (safetensors slice, Piece).
    where: a sharding for each spec.
  """
  pair = frozen.is_pair(kept)
  spec, place = (x[frozen.INT8] if pair else x for x in (kept, where))
  dtype = jnp.dtype('float32' if pair else spec.dtype)
  if spec.axes[0] != 'layers':
    return _read_array(spec.shape, parts, where, dtype)
  # Layer by layer into a donated buffer: staging the whole stack would hold
  # the largest weight times the number of layers.
  put = functools.partial(_put, kept)
  put = jax.jit(put, donate_argnums=0, out_shardings=where)

  def empty(s, at):
    return jnp.zeros(s.shape, s.dtype, device=at)

  out = jax.tree.map(empty, kept, where, is_leaf=is_spec)
  one = _of_one_layer(place)
  for layer in range(spec.shape[0]):
    mine = {at[1:]: x for at, x in parts.items() if at[0] == layer}
    out = put(out, _read_array(spec.shape[1:], mine, one, dtype), layer)
  return out


def _of_one_layer(where) -> Any:
  """Returns the sharding of one layer of a stacked weight."""
  if not isinstance(where, jax.sharding.NamedSharding):
    return where
  part = jax.sharding.PartitionSpec(*where.spec[1:])
  return jax.sharding.NamedSharding(where.mesh, part)


def _read_array(shape, parts: dict, where, dtype) -> jax.Array:
  """Reads an array from its pieces: one, or one per expert."""
  read = {}

  def shard(index: tuple[slice, ...]) -> np.ndarray:
    key = str(index)
    if key not in read:  # a replica copies the part that another has read
      bounds = [s.indices(n)[:2] for s, n in zip(index, shape)]
      out = _aligned(tuple(b - a for a, b in bounds), dtype)
      _fill(out, parts, index, bounds)
      read[key] = out
    return read[key]

  return jax.make_array_from_callback(shape, where, shard)


def _fill(out, parts, index, bounds) -> None:
  for at, (source, piece) in parts.items():
    n = len(at)  # 1: an expert, which this shard may not have
    if all(a <= i < b for i, (a, b) in zip(at, bounds)):
      mine = out[tuple(i - a for i, (a, _) in zip(at, bounds))] if n else out
      read_into(mine, source, piece, index[n:])


def on_disk(shape, pieces: list, flat: dict, dtype) -> np.ndarray:
  """Builds a tensor in its form on disk.

  Args:
    pieces: its `hf.Piece`s; flat: weights by path.
  """
  out = np.empty(shape, dtype)
  for piece in pieces:
    ours = np.asarray(flat[piece.leaf][piece.at])
    if piece.layout == 'interleaved':
      out[..., piece.start :: shape[-1] // ours.shape[-1]] = ours
      continue
    if piece.layout == 'adjoined':
      out[..., piece.start : piece.start + ours.shape[-1]] = ours
      continue
    if piece.layout == 'experts':
      out[:, piece.start : piece.start + ours.shape[2]] = ours.swapaxes(1, 2)
      continue
    rows = disk_shape(piece.layout, piece.shape)[0]
    theirs = to_disk(piece.layout, ours)
    out[piece.start : piece.start + rows] = theirs
  return out


def grouped(sizes: dict[str, int], limit: int) -> list[list[str]]:
  """Groups names in order, each group of at most `limit` bytes (or one
  tensor).
  """
  groups, room = [], 0
  for name, size in sizes.items():
    if not groups or size > room:
      groups.append([])
      room = limit
    groups[-1].append(name)
    room -= size
  return groups
