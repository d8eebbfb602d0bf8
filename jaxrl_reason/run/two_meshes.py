"""Two meshes in one job: generation on some devices, training on the others.

`split` divides the devices. A `Transfer` copies arrays from one mesh to the
other, in three steps that never wait for a device:

  wire     a program of the sending mesh lays the array out in n shards, where n
           divides both numbers of devices
  copy     every receiving device gets its shard from a device of its process
  laid     a program of the receiving mesh gives the array its own sharding; the
           shards are donated to it

So each byte crosses once for every device / n of the receiving mesh, and never
the network between hosts.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl_reason import sharding, trees

# Weights that are on their way at a time, bytes over all devices: the next
# chunk is sent when the one before the last has arrived.
CHUNK = 2**28


def split(
  shape: Sequence[int],
  sampler: Sequence[int],
  devices: Sequence[Any] | None = None,
) -> tuple[Mesh, Mesh]:
  """Splits the devices of a job into a trainer's mesh and a sampler's mesh.

  Args:
    shape: of the trainer's mesh; -1 stands for the devices that remain.
    sampler: sizes of the sampler's mesh along `sharding.AXES`. The sampler has
      the last devices of every process, an equal number of each, so that
      arrays move inside a process.
    devices: None: all.

  Raises:
    ValueError: the sizes do not fit the devices.
  """
  devices = jax.devices() if devices is None else list(devices)
  n, key = math.prod(sampler), f'sampler_mesh={tuple(sampler)}'
  if n >= len(devices):
    most = len(devices) - 1
    fewer = f'set it to {most} devices at most, or ' if most else ''
    raise ValueError(
      f'{key}: {n} devices of {len(devices)} leave none to train on; {fewer}'
      'set it to () for one mesh'
    )
  processes = sorted({d.process_index for d in devices})
  own = [[d for d in devices if d.process_index == i] for i in processes]
  share, rest = divmod(n, len(processes))
  if rest or share >= min(map(len, own)):
    raise ValueError(
      f'{key}: {n} devices are not an equal share of the {len(processes)} '
      f'processes; set it to a multiple of {len(processes)} devices'
    )
  trained = [d for mine in own for d in mine[:-share]]
  sampled = [d for mine in own for d in mine[-share:]]
  return _mesh(shape, trained), _mesh(sampler, sampled)


def _mesh(shape: Sequence[int], devices: list) -> Mesh:
  """Makes a mesh of some of the devices of a job."""
  try:
    return sharding.make_mesh(shape, devices)
  except AssertionError:
    # jax arranges only boxes of a torus: here the order of devices remains.
    shape = [*shape, 1][:4]
    known = math.prod(n for n in shape if n > 0)
    shape = [len(devices) // known if n < 0 else n for n in shape]
    grid = np.array(devices, object).reshape(shape)
    return Mesh(grid, sharding.AXES, axis_types=(AxisType.Auto,) * 4)


def wires(a: int, b: int, processes: int) -> int:
  """Counts the shards in which an array moves between meshes of a and b
  devices: the largest number that divides the devices of a process in both.
  """
  return math.gcd(a // processes, b // processes)


def _wire_mesh(mesh: Mesh, n: int) -> Mesh:
  """Returns the devices of a mesh by process, shard and copy of the shard."""
  devices = list(mesh.devices.flat)
  processes = sorted({d.process_index for d in devices})
  own = [[d for d in devices if d.process_index == i] for i in processes]
  grid = np.array(own, object).reshape(len(processes), n, -1)
  return Mesh(grid, ('host', 'wire', 'copy'), axis_types=(AxisType.Auto,) * 3)


def by_rows(mesh: Mesh) -> Callable[[str, jax.Array], NamedSharding]:
  """Returns the layout of arrays of a batch: rows [N,...] are split over the
  row axes if they divide.
  """

  def where(path: str, x: jax.Array) -> NamedSharding:
    del path
    if x.ndim and x.shape[0] % sharding.row_shards(mesh) == 0:
      return sharding.row_sharding(mesh)
    return sharding.replicated(mesh)

  return where


def _as_it_is(path: str, x: jax.Array) -> jax.Array:
  del path
  return x


class Moved(NamedTuple):
  """A tree on the receiving mesh.

  Attributes:
    sent: the last array as the sending mesh laid it out, ready when its copy
      begins.
    copied: the same on the receiving mesh, ready when its copy ends.
  """

  tree: Any
  sent: jax.Array
  copied: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Transfer:
  """Copies trees of arrays from one mesh to another. A call waits for no
  device, except between chunks.

  Attributes:
    source, target: the two meshes.
    where: (path, array) -> its sharding on the target.
    convert: (path, array) -> the arrays that are sent in its place, such as a
      smaller dtype; computed on the source.
  """

  source: Mesh
  target: Mesh
  where: Callable[[str, Any], NamedSharding]
  convert: Callable[[str, jax.Array], Any] = _as_it_is

  def __call__(self, tree: Any) -> Moved:
    """Returns a copy of a tree, with the target's shardings."""
    leaves, form = jax.tree_util.tree_flatten_with_path(tree)
    named = [(trees.path_str(path), x) for path, x in leaves]
    out, before = [], []
    for chunk in _chunks(named):
      jax.block_until_ready(before[-2:-1])
      paths, arrays = zip(*chunk)
      with jax.set_mesh(self._wires[0]):
        sent = self._send(paths, arrays)
      copied, form_of_chunk = jax.tree.flatten(jax.tree.map(self._copied, sent))
      is_last = len(out) + len(chunk) == len(named)
      n = len(copied) - is_last  # the array of `Moved.copied` is not donated
      with jax.set_mesh(self._wires[1]):
        laid = self._lay(paths, form_of_chunk, copied[:n], copied[n:])
      before.append(jax.tree.leaves(laid))
      out += laid
    moved = jax.tree.unflatten(form, out)
    return Moved(moved, jax.tree.leaves(sent)[-1], copied[-1])

  @functools.cached_property
  def _wires(self) -> tuple[Mesh, Mesh]:
    processes = len({d.process_index for d in self.source.devices.flat})
    n = wires(self.source.size, self.target.size, processes)
    return _wire_mesh(self.source, n), _wire_mesh(self.target, n)

  @functools.cached_property
  def _send(self) -> Callable:
    """Returns the program of the source: arrays -> their shards."""

    def send(paths, arrays):
      sent = [self.convert(path, x) for path, x in zip(paths, arrays)]
      pin = jax.lax.with_sharding_constraint
      return jax.tree.map(lambda x: pin(x, self._shards(x, 0)), sent)

    return jax.jit(send, static_argnums=0)

  @functools.cached_property
  def _lay(self) -> Callable:
    """Returns the program of the target: shards -> the arrays as they stay. It
    may use the memory of the first part of the shards for the arrays.
    """

    def lay(paths, form, donated, others):
      def leaf(outer, inner, x):
        path = '/'.join(filter(None, (outer, trees.path_str(inner))))
        return jax.lax.with_sharding_constraint(x, self.where(path, x))

      return [
        jax.tree_util.tree_map_with_path(functools.partial(leaf, path), tree)
        for path, tree in zip(paths, form.unflatten([*donated, *others]))
      ]

    return jax.jit(lay, static_argnums=(0, 1), donate_argnums=2)

  def _shards(self, x: Any, side: int) -> NamedSharding:
    """Returns the layout of an array on its way: the first dimension that
    divides is split into shards.
    """
    mesh = self._wires[side]
    n = mesh.shape['wire']
    axis = next((i for i, size in enumerate(x.shape) if size % n == 0), None)
    spec = [] if axis is None else [*[None] * axis, 'wire']
    return NamedSharding(mesh, PartitionSpec(*spec))

  def _copied(self, x: jax.Array) -> jax.Array:
    """Copies the shards of an array to the target's devices."""
    to = self._shards(x, 1)
    have = collections.defaultdict(collections.deque)
    for s in x.addressable_shards:
      have[_begin(s.index)].append(s.data)
    need, shards = to.addressable_devices_indices_map(x.shape), []
    for index in need.values():
      shards.append(have[_begin(index)][0])
      have[_begin(index)].rotate()  # all devices that have a shard send it
    shards = jax.device_put(shards, list(need))
    return jax.make_array_from_single_device_arrays(x.shape, to, shards)


def _begin(index: tuple[slice, ...]) -> tuple[int, ...]:
  """Returns where a shard begins along each dimension."""
  return tuple(s.start or 0 for s in index)


def _chunks(named: list[tuple[str, jax.Array]]) -> Iterator[list]:
  """Yields consecutive arrays of at most `CHUNK` bytes together, or one."""
  chunk, size = [], 0
  for path, x in named:
    if chunk and size + x.nbytes > CHUNK:
      yield chunk
      chunk, size = [], 0
    chunk.append((path, x))
    size += x.nbytes
  if chunk:
    yield chunk
