"""The mesh and its sharding rules; the only module that names mesh axes.

Axes: 'data' (rows, replicated weights), 'fsdp' (rows, sharded weights),
'tensor' (heads, mlp and vocabulary), 'context' (tokens of a row). Weights carry
logical names (`models.spec`), which a rule table maps to mesh axes; activations
are constrained by rows and tokens only, and XLA's partitioner derives the rest
from the weights.

In passes over whole rows, the tokens of a row are split over 'context', and
attention gathers keys and values, never scores. In all other programs, such as
decoding, 'context' splits rows further if their number allows it.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_reason import trees

AXES = ('data', 'fsdp', 'tensor', 'context')
ROWS = ('data', 'fsdp')
MOST = (*ROWS, 'context')  # rows, in programs that do not need whole rows

# Logical weight axis -> mesh axis.
TRAIN_RULES = {
  'layers': None,
  'embed': 'fsdp',
  'heads': 'tensor',
  'kv_heads': 'tensor',
  'mlp': 'tensor',
  'expert': 'fsdp',
  'vocab': 'tensor',
}
# Decoding reads every weight for every token, so weights are gathered over fsdp
# once per generation instead of once per token.
DECODE_RULES = TRAIN_RULES | {'embed': None}


def make_mesh(
  shape: Sequence[int] = (-1, 1, 1), devices: Sequence[Any] | None = None
) -> Mesh:
  """Makes a mesh of sizes along AXES; the last may be left out (1), and one may
  be -1: all remaining devices.
  """
  devices = jax.devices() if devices is None else list(devices)
  sizes = all(isinstance(n, int) and (n == -1 or n > 0) for n in shape)
  wrong = not sizes or list(shape).count(-1) > 1
  if len(shape) not in (3, 4) or wrong:
    raise ValueError(
      f'mesh={tuple(shape)}: sizes of at least 1 along {AXES}, the last if it '
      'is not 1, and one -1 at most'
    )
  shape = [*shape, 1][:4]
  known = int(np.prod([n for n in shape if n != -1]))
  if -1 in shape:
    shape[shape.index(-1)] = len(devices) // known
  if int(np.prod(shape)) != len(devices):
    axes = ' x '.join(f'{a} {n}' for a, n in zip(AXES, shape, strict=True))
    raise ValueError(
      f'mesh={tuple(shape)}: {axes} needs {np.prod(shape)} devices, but there '
      f'are {len(devices)}. The sizes must multiply to that number; -1 stands '
      'for all remaining devices.'
    )
  slices = len({getattr(d, 'slice_index', 0) for d in devices})
  grid = _over_slices(shape, slices, devices)
  return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 4)


def _over_slices(shape: list[int], slices: int, devices: list) -> np.ndarray:
  """Returns the devices of a mesh whose data axis spans slices. The other axes
  are within a slice; an axis may be a part of a torus dimension.
  """
  split = dict(allow_split_physical_axes=True)
  if slices == 1:
    return mesh_utils.create_device_mesh(shape, devices, **split)
  data, *inner = shape
  if data % slices:
    raise ValueError(
      f'mesh={tuple(shape)} {AXES}: data {data} does not divide over the '
      f'{slices} slices, which only it may span'
    )
  return mesh_utils.create_hybrid_device_mesh(
    (data // slices, *inner), (slices, 1, 1, 1), devices, **split
  )


def partition(axes: Sequence[str | None], rules: dict) -> P:
  """Returns the PartitionSpec of logical axes; unknown or repeated names
  raise.
  """
  unknown = [a for a in axes if a is not None and a not in rules]
  if unknown:
    raise ValueError(f'no sharding rule for axis {unknown[0]!r}: {list(rules)}')
  mesh_axes = [None if a is None else rules[a] for a in axes]
  used = [a for a in mesh_axes if a is not None]
  if len(set(used)) != len(used):
    raise ValueError(f'axes {tuple(axes)} map twice to one mesh axis: {used}')
  return P(*mesh_axes)


def shardings(specs: Any, mesh: Mesh, rules: dict) -> Any:
  """Returns a NamedSharding per spec; sizes that do not divide raise."""

  def leaf(path, s):
    part = partition(s.axes, rules)
    for size, name in zip(s.shape, part):
      if name is not None and size % mesh.shape[name]:
        raise ValueError(
          f'{path} {s.shape} {s.axes}: {size} does not divide over mesh axis '
          f'{name!r} of {mesh.shape[name]}; change config.mesh or the model'
        )
    return NamedSharding(mesh, part)

  return trees.map_with_path(leaf, specs)


def rows(x: jax.Array, axis: int = 0) -> jax.Array:
  """Constrains dimension `axis` (rows) to the row axes of the mesh, and to the
  context axis if the rows divide over it; the other dimensions are free.

  Does nothing outside a mesh (`jax.set_mesh`), so models and losses work in any
  program.
  """
  return _pin(x, {axis: ROWS if x.shape[axis] % _size(MOST) else MOST})


def tokens(x: jax.Array, axis: int = 0) -> jax.Array:
  """Constrains dimension `axis` (rows) to the row axes, and the next dimension
  (tokens) to the context axis.
  """
  return _pin(x, {axis: ROWS, axis + 1: ('context',)})


def gathered(x: jax.Array, axis: int = 1) -> jax.Array:
  """Constrains [N,...] by rows; every device of a context axis has all of
  dimension `axis` (tokens).
  """
  return _pin(x, {0: ROWS, axis: None}) if _size(('context',)) > 1 else x


def everywhere(x: jax.Array) -> jax.Array:
  """Replicates x on every device of the mesh, so that any host can read it."""
  return jax.lax.with_sharding_constraint(x, P()) if in_mesh() else x


def _pin(x: jax.Array, where: dict[int, tuple[str, ...] | None]) -> jax.Array:
  """Constrains the dimensions that divide over their mesh axes."""
  if not in_mesh() or is_own_device():
    return x
  part = [P.UNCONSTRAINED] * x.ndim
  for axis, names in where.items():
    if names is None or x.shape[axis] % _size(names) == 0:
      part[axis] = names
  return jax.lax.with_sharding_constraint(x, P(*part))


def in_mesh() -> bool:
  """Returns whether the program being traced has a mesh with AXES."""
  mesh = jax.sharding.get_abstract_mesh()
  return not mesh.empty and set(AXES) <= set(mesh.axis_names)


def _size(names: Sequence[str]) -> int:
  """Counts the devices along axes of the current mesh; 1 outside a mesh."""
  shape = jax.sharding.get_abstract_mesh().shape
  return math.prod(shape[name] for name in names) if in_mesh() else 1


def n_row_shards() -> int:
  """Counts the devices over which batches are split; 1 outside a mesh."""
  return _size(ROWS)


# Count the devices over which the tokens of a row, and features, are split.
n_context_shards = functools.partial(_size, ('context',))
n_tensor_shards = functools.partial(_size, ('tensor',))


def n_local_heads(n: int, n_kv: int) -> int:
  """Counts the query heads, of n, on one device (`on_shards`)."""
  shards = n_tensor_shards()
  return n if n_kv % shards else n // shards


def is_own_device() -> bool:
  """Returns whether the traced code runs on each device separately: without a
  mesh, or inside a `shard_map` over all of its axes.
  """
  mesh = jax.sharding.get_abstract_mesh()
  return mesh.empty or mesh.are_all_axes_manual or mesh.size == 1


def platform() -> str:
  """Returns the platform for which the traced program is compiled: that of the
  mesh, which may only be described, or the default ('cpu', 'tpu', 'gpu').
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  return device.platform if device else jax.default_backend()


def on_shards(
  f: Callable,
  kernel_specs: Callable,
  *,
  n_rows: int,
  n_heads: int,
  n_beside: int = 0,
) -> Callable:
  """Runs f(kernel, q, q_ids, k, v, ids) on every device's own rows, heads and
  queries, for kernels that the partitioner cannot split. Outside a mesh it
  calls f.

  Args:
    f: (a kernel, arrays [N,heads,T,...] and [N,T] of queries, two [N,heads,T,
      ...] and one [N,T] of keys) -> [N,heads,T,...].
    kernel_specs: from the NamedSharding of (heads, queries) to the specs of
      the kernel's arrays.
    n_rows, n_heads: N and the fewest heads of the three; a dimension that does
      not divide over its mesh axes is replicated.
    n_beside: number of further arrays [N,heads] that f reads.
  """
  if not in_mesh():
    return f
  mesh = jax.sharding.get_abstract_mesh()
  rows = None if n_rows % n_row_shards() else ROWS
  heads = None if n_heads % mesh.shape['tensor'] else 'tensor'
  q, kv = P(rows, heads, 'context'), P(rows, heads)
  kernel = kernel_specs(NamedSharding(mesh, P(None, 'context')))
  return jax.shard_map(
    f,
    in_specs=(kernel, q, P(rows, 'context'), kv, kv, P(rows), *[kv] * n_beside),
    out_specs=q,
    check_vma=False,  # a Pallas call does not declare how its results vary
  )


def by_rows_and_heads(f: Callable, q, kept: Any, at, seen) -> Any:
  """Runs f(q [N,K,...], kept [n,N,K,...], at [], seen [1 or N,...]) -> arrays
  [N,K,...] on every device's own rows and heads. Outside a mesh it calls f.
  """
  if not in_mesh() or is_own_device():
    return f(q, kept, at, seen)
  rows = next((a for a in (MOST, ROWS) if len(q) % _size(a) == 0), None)
  heads = None if q.shape[1] % _size(('tensor',)) else 'tensor'
  of_seen = P(rows) if len(seen) > 1 else P()
  return jax.shard_map(
    f,
    in_specs=(P(rows, heads), P(None, rows, heads), P(), of_seen),
    out_specs=P(rows, heads),
    check_vma=False,  # as above
  )(q, kept, at, seen)


def by_expert(f: Callable, rows: Any, weights: Any) -> Any:
  """Runs f(rows, weights, axis=) -> arrays [M,...] on each device separately,
  with the device's own rows [M,...] and its share of the experts' weights
  [E,...], which are split over mesh axis `axis`. The partitioner splits over
  the tensor axis.

  Outside a mesh, or if the rows do not divide, `axis` is None, and f has all
  rows and weights.
  """
  n, axis = n_row_shards(), TRAIN_RULES['expert']
  if n == 1 or jax.tree.leaves(rows)[0].shape[0] % n:
    return f(rows, weights, axis=None)
  return jax.shard_map(
    functools.partial(f, axis=axis),
    in_specs=(P(ROWS), P(axis)),
    out_specs=P(ROWS),
    # Axes of size 1 are included: kernels allow no axis of the partitioner.
    axis_names={a for a in AXES if a in ROWS or _size((a,)) == 1},
    check_vma=False,
  )(rows, weights)


def constrain(tree: Any, specs: Any, rules: dict) -> Any:
  """Constrains the arrays of a spec tree by a rule table, inside jit.

  If a weight has several arrays (`models.parts.layers`), the array with the
  shape of the spec is constrained. Does nothing outside a mesh, as `rows`.
  """
  if not in_mesh() or is_own_device():
    return tree
  put = jax.lax.with_sharding_constraint

  def pin(s, node):
    return jax.tree.map(
      lambda x: put(x, partition(s.axes, rules)) if x.shape == s.shape else x,
      node,
    )

  return jax.tree.map(pin, specs, tree)


def replicated(mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, P())


def row_sharding(mesh: Mesh, axis: int = 0) -> NamedSharding:
  """Returns the sharding of host batches: dimension `axis` over the row
  axes.
  """
  return NamedSharding(mesh, P(*[None] * axis, ROWS))


def my_rows(mesh: Mesh, n: int) -> np.ndarray:
  """Returns the positions [m] of the rows of a batch of n that this process's
  devices have: all rows if there is one process.
  """
  held = row_sharding(mesh).addressable_devices_indices_map((n,))
  spans = {rows.indices(n)[:2] for (rows,) in held.values()}
  return np.concatenate([np.arange(*span) for span in sorted(spans)])


def row_shards(mesh: Mesh) -> int:
  """Counts the shards of the rows of a batch."""
  return int(np.prod([mesh.shape[a] for a in ROWS]))


def rows_of_all(mesh: Mesh, n_mine: int) -> int:
  """Counts the rows of a batch, n_mine of which belong to this process."""
  shards = row_shards(mesh)
  return n_mine * shards // len(my_rows(mesh, shards))


def to_global(tree: Any, mesh: Mesh, axis: int = 0) -> Any:
  """Makes global arrays, rows sharded, of this process's rows (`my_rows`)."""
  sharding = row_sharding(mesh, axis)
  if jax.process_count() == 1:
    return jax.device_put(tree, sharding)

  def leaf(x):
    x = np.asarray(x)
    n = rows_of_all(mesh, x.shape[axis])
    mine = my_rows(mesh, n)

    def part(index):
      first, last, _ = index[axis].indices(n)
      begin = int(np.searchsorted(mine, first))
      here = (*index[:axis], slice(begin, begin + last - first))
      return x[here]

    shape = (*x.shape[:axis], n, *x.shape[axis + 1 :])
    return jax.make_array_from_callback(shape, sharding, part)

  return jax.tree.map(leaf, tree)


def to_local(x: jax.Array, mesh: Mesh) -> np.ndarray:
  """Returns this process's rows (`my_rows`) of a global array; waits for it."""
  if x.is_fully_addressable:
    return np.asarray(x)
  where = row_sharding(mesh)
  if not x.sharding.is_equivalent_to(where, x.ndim):
    x = jax.jit(trees.identity, out_shardings=where)(x)

  def first(shard):
    return shard.index[0].indices(x.shape[0])[0]

  parts = {first(shard): shard.data for shard in x.addressable_shards}
  return np.concatenate([np.asarray(parts[i]) for i in sorted(parts)])


# Memories in `control` whose arrays have one group, or one row, in each line.
OF_GROUPS = 'refill/groups/', 'replay/groups/', 'delay/groups/', 'in_flight/'


def state_shardings(
  template: Any, params: Any, mesh: Mesh, offload: tuple[str, ...] = ()
) -> Any:
  """Returns the shardings of a state. Arrays that belong to a parameter
  (moments of the optimizer, the reference) have the sharding of the parameter.

  Args:
    template: the state's shapes; params: shardings of its parameters.
    offload: fields of the state that are kept in the hosts' memory.
  """
  by_path = trees.flatten(params)

  def leaf(path, x):
    kind = 'pinned_host' if path.split('/')[0] in offload else None
    for name, sharding in by_path.items():
      if path.endswith(f'/{name}') and len(x.shape) == len(sharding.spec):
        return sharding.with_memory_kind(kind) if kind else sharding
    # Caches of a loop over layers are [L,rows,...].
    axis = int(x.ndim == 5 and path.startswith('control/in_flight/'))
    if path.removeprefix('control/').startswith(OF_GROUPS) and x.ndim:
      if x.shape[axis] % row_shards(mesh) == 0:
        return row_sharding(mesh, axis)
    return replicated(mesh)

  return trees.map_with_path(leaf, template)
