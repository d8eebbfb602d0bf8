"""Reads and writes Hugging Face folders: config.json and *.safetensors.

One table per family maps tensors on disk to our weights, in both directions:
`load` streams tensors into their shards, and `save` writes a folder that
`transformers` and vLLM can open. Our weights are stacked over layers and
multiply from the right, [in, out]. Tensors on disk are one per layer, [out,
in], and may be fused: several of our weights are row ranges of one tensor.

Only safetensors are read, never a pickle. A tensor that is missing,
unexpected, mapped twice or of another shape is an error that names it.
"""

import contextlib
import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import trees
from jaxrl_reason.checkpoints import streams
from jaxrl_reason.checkpoints.tensor_files import (
  INDEX,
  SINGLE,
  BadCheckpoint,
  library,
  open_folder,
  shown,
)
from jaxrl_reason.hosts import reading
from jaxrl_reason.models import families, weights
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import tensors, within
from jaxrl_reason.models.spec import is_spec, n_stacked
from jaxrl_reason.names import choice

DTYPES = {
  'float32': np.dtype(np.float32),
  'float16': np.dtype(np.float16),
  'bfloat16': np.dtype(jnp.bfloat16),
}
ON_DISK = {'F32': 'float32', 'F16': 'float16', 'BF16': 'bfloat16'}
SHARD_BYTES = 4 << 30


@dataclasses.dataclass(frozen=True)
class Piece:
  """One weight of one layer (and expert), or a row range of a fused tensor."""

  leaf: str  # path in the parameters
  at: tuple[int, ...]  # index along its layers (and experts)
  shape: tuple[int, ...]  # of our weight, without those axes
  layout: str  # a name in `streams.LAYOUTS`
  start: int  # first row in the tensor on disk, or its turn


Plan = dict[str, tuple[tuple[int, ...], list[Piece]]]  # name -> (shape, parts)


def plan(
  specs: Any,
  table: tuple[tensors.Row, ...],
  stacks: dict[str, tuple[int, ...]] | None = None,
) -> Plan:
  """Lists every tensor on disk with its weights, from specs and a table.

  Rows whose weights the model does not have (an untied head, biases) are
  skipped.

  Args:
    stacks: `Config.stacks`; None: one stack of all layers.

  Raises:
    BadCheckpoint: the table maps a weight twice, or not at all.
  """
  flat = {
    trees.path_str(p): s
    for p, s in jax.tree_util.tree_leaves_with_path(specs, is_leaf=is_spec)
  }
  out, seen = {}, set()
  for row in table:
    if row.leaves[0] not in flat:
      continue
    # One number in the name of each stacked dimension that is not on disk.
    n = min(n_stacked(flat[row.leaves[0]]), row.name.count('{}'))
    stack = (stacks or {}).get(row.leaves[0].partition('/')[0])
    shapes = [flat[leaf].shape[n:] for leaf in row.leaves]
    on_disk = [streams.disk_shape(row.layout, shape) for shape in shapes]
    whole, starts = streams.joined(row.layout, on_disk)
    for at in np.ndindex(*flat[row.leaves[0]].shape[:n]):
      numbers = (stack[at[0]], *at[1:]) if stack and n else at
      name = row.name.format(*numbers)
      pieces = []
      for leaf, shape, start in zip(row.leaves, shapes, starts):
        pieces.append(Piece(leaf, at, shape, row.layout, start))
        if (leaf, at) in seen:
          raise BadCheckpoint(f'{leaf}{list(at)} is mapped twice: {name}')
        seen.add((leaf, at))
      if name in out:
        raise BadCheckpoint(f'{name} is mapped twice')
      out[name] = whole, pieces
  unmapped = flat.keys() - {leaf for leaf, _ in seen}
  if unmapped:
    raise BadCheckpoint(f'no tensor is mapped to {sorted(unmapped)}')
  return out


def read_config(folder) -> dict:
  """Reads config.json of a folder."""
  path = pathlib.Path(folder) / 'config.json'
  if not path.is_file():
    raise BadCheckpoint(f'{path} does not exist: not a Hugging Face folder')
  return reading.json_object(path)


def check_vocab(n_tokens: int, c: Config, source) -> None:
  """Refuses a tokenizer with more tokens than the model embeds.

  Raises:
    BadCheckpoint: the tokenizer has more tokens.
  """
  if n_tokens > c.vocab:
    raise BadCheckpoint(
      f'{source}: the tokenizer has {n_tokens} tokens and the model embeds '
      f'{c.vocab}'
    )


def _dtype(folder, name: str, slices: dict) -> str:
  found = slices[name].get_dtype()
  if found not in ON_DISK:
    raise BadCheckpoint(
      f'{folder}: {name} is {found}; {", ".join(ON_DISK)} can be read'
    )
  return ON_DISK[found]


def _is_beside(h: dict, name: str) -> bool:
  """Returns True for a tensor outside the text model or a constant, which are
  not read.
  """
  outside = re.fullmatch(families.beside_of(h), name)
  return outside is not None or name in families.constants_of(h)


def _check(folder, wanted: Plan, slices: dict, tied: bool) -> None:
  """Refuses a folder whose tensors differ from the plan."""
  missing = wanted.keys() - slices.keys()
  if missing:
    raise BadCheckpoint(f'{folder} lacks {shown(missing)}')
  # A tied model may be saved with its head.
  h = read_config(folder)
  embed, head = (within.name_in(h, n) for n in (tensors.EMBED, tensors.HEAD))
  known = wanted.keys() | ({head} if tied else set())
  ours = {n for n in slices if not _is_beside(h, n)}
  extra = {n for n in ours if not tensors.is_buffer(n)} - known
  if extra:
    raise BadCheckpoint(f'{folder} has unexpected tensors: {shown(extra)}')
  for name, (shape, _) in wanted.items():
    found = tuple(slices[name].get_shape())
    if found != shape:
      raise BadCheckpoint(f'{folder}: {name} is {found}, not {shape}')
    _dtype(folder, name, slices)
  for name, value in families.constants_of(h).items():
    found = float(slices[name][...]) if name in slices else value
    if abs(found - value) > 0.01 * abs(value):  # bfloat16 rounds it
      raise BadCheckpoint(f'{folder}: {name} is {found:g}, not {value:g}')
  if tied and head in slices:
    if not streams.equal(slices[head], slices[embed]):
      raise BadCheckpoint(
        f'{folder}: {head} differs from the embedding it is tied to'
      )


def dtype_of(folder) -> str:
  """Returns the narrowest dtype that represents every weight on disk
  exactly.
  """
  h = read_config(folder)
  with open_folder(pathlib.Path(folder)) as slices:
    mine = [n for n in slices if not _is_beside(h, n)]
    found = {
      _dtype(folder, n, slices) for n in mine if not n.endswith(tensors.FLOAT32)
    }
  return found.pop() if len(found) == 1 else 'float32'


def nonfinite(params: Any) -> str:
  """Returns the path of a weight with a value that is not finite; '' if none
  has.
  """
  flat = trees.flatten(params)
  sums = jax.jit(
    lambda xs: [jnp.isfinite(jnp.sum(x, dtype=jnp.float32)) for x in xs]
  )([*flat.values()])
  return next((k for k, ok in zip(flat, sums) if not ok), '')


def _refuse_nonfinite(folder, params: Any, by_leaf: dict, slices: dict) -> None:
  path = nonfinite(params)
  if not path:
    return
  # For an int8 pair, the path of the weight.
  leaf = path if path in by_leaf else path.rpartition('/')[0]
  names = [name for name, _ in by_leaf[leaf].values()]
  for name in names:
    values = np.asarray(slices[name][:], np.float32)
    if not np.isfinite(values).all():
      raise BadCheckpoint(f'{folder}: {name} has values that are not finite')
  raise BadCheckpoint(f'{folder}: values of {names[0]} add up to no number')


def load(
  folder,
  c: Config,
  *,
  dtype='float32',
  where: Any = None,
  kept: Any = None,
) -> Any:
  """Loads the parameters of a folder, streamed into their shards.

  A tensor is read a few megabytes at a time into the buffer that becomes its
  shard. A layer is then written to its place in the stacked weight. So the host
  memory contains, in addition to the shards, one layer of one weight.

  Args:
    c: from `families.from_hf(read_config(folder))`.
    dtype: of the parameters, for any dtype on disk.
    where: tree of shardings (`sharding.shardings`); None: the default device.
    kept: specs of what to keep of them (`models.adapters.frozen.specs`), made a
      layer at a time, where they do not all stay float32.

  Raises:
    BadCheckpoint: names the tensor that does not fit.
  """
  folder = pathlib.Path(folder)
  specs = weights.specs(c)
  with open_folder(folder) as slices:
    table = families.tensors_of(read_config(folder), slices)
  wanted = plan(specs, table, c.stacks)
  by_leaf = {}
  for name, (_, pieces) in wanted.items():
    for piece in pieces:
      by_leaf.setdefault(piece.leaf, {})[piece.at] = name, piece
  if kept is None:
    to = jnp.dtype(dtype).name

    def own(path, s):
      return dataclasses.replace(s, dtype=tensors.dtype_at(path, to))

    kept = trees.map_with_path(own, specs, is_leaf=is_spec)
  if where is None:
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    where = jax.tree.map(lambda _: one, kept, is_leaf=is_spec)
  with open_folder(folder) as slices:
    _check(folder, wanted, slices, c.tied)

    def leaf(path, _, kept, where):
      parts = {
        at: (slices[name], piece)
        for at, (name, piece) in by_leaf[trees.path_str(path)].items()
      }
      return streams.read_leaf(kept, parts, where)

    params = jax.tree_util.tree_map_with_path(
      leaf, specs, kept, where, is_leaf=is_spec
    )
    _refuse_nonfinite(folder, params, by_leaf, slices)
    return params


def save(
  folder,
  params: Any,
  c: Config,
  *,
  dtype: str = 'bfloat16',
  config_json: dict | None = None,
  shard_bytes: int = SHARD_BYTES,
  beside: pathlib.Path | None = None,
) -> None:
  """Writes a folder that `transformers` can open: config.json and weights.

  Args:
    params: arrays of `weights.specs(c)`.
    dtype: on disk: bfloat16, float16 or float32.
    config_json: of the original folder; None: made from c.
    shard_bytes: size from which weights are split over files; the host memory
      contains one file at a time.
    beside: the original folder, whose other tensors (a vision tower, layers for
      multi-token prediction) are copied.

  Raises:
    ValueError: no published family has c's combination of parts.
    BadCheckpoint: config is of a model with other tensors, which are not there.
    FileExistsError: the folder has weights already.
  """
  keys = families.to_hf(c) if config_json is None else config_json
  wanted = plan(weights.specs(c), families.tensors_of(keys), c.stacks)
  flat = trees.flatten(params)

  shapes = {name: shape for name, (shape, _) in wanted.items()}
  constants = families.constants_of(keys)
  with _others(keys, beside) as others:

    def tensor(name: str) -> np.ndarray:
      if name in others:
        return others[name][:]
      to = tensors.dtype_at(name, dtype)
      if name in constants:
        return np.asarray(constants[name], DTYPES[to])
      return streams.on_disk(*wanted[name], flat, DTYPES[to])

    shapes |= {name: tuple(x.get_shape()) for name, x in others.items()}
    shapes |= dict.fromkeys(constants, ())
    sizes = dict(dtype=dtype, shard_bytes=shard_bytes)
    write(folder, shapes, tensor, config_json=keys, **sizes)


@contextlib.contextmanager
def _others(h: dict, beside: pathlib.Path | None):
  """Returns slices by name of the tensors outside the text model."""
  if not families.beside_of(h) or beside is None:
    if within.is_within(h):
      raise BadCheckpoint(
        f'{h["model_type"]} has tensors beside its text model, and the folder '
        'that has them is not known: export from the run, or name the folder'
      )
    yield {}
    return
  with open_folder(beside) as slices:
    found = {n: x for n, x in slices.items() if _is_beside(h, n)}
    if within.is_within(h) and not found:
      raise BadCheckpoint(f'{beside} has no tensors beside its text model')
    yield found


def _as(x: np.ndarray, name: str, to: np.dtype) -> np.ndarray:
  """Casts a tensor for writing; integers and float32 tensors stay."""
  as_it_is = x.dtype.kind in 'iub' or name.endswith(tensors.FLOAT32)
  return np.asarray(x, x.dtype if as_it_is else to, order='C')


def write(
  folder,
  shapes: dict[str, tuple[int, ...]],
  tensor: Callable[[str], np.ndarray],
  *,
  dtype: str,
  config_json: dict,
  shard_bytes: int = SHARD_BYTES,
) -> None:
  """Writes config.json and tensors, one file at a time.

  Args:
    shapes: of the tensors, by name on disk.
    tensor: returns a tensor by its name.

  Raises:
    ValueError: no such dtype.
    FileExistsError: the folder has weights already.
  """
  folder = pathlib.Path(folder)
  if dtype not in DTYPES:
    raise ValueError(choice('dtype', dtype, DTYPES))
  folder.mkdir(parents=True, exist_ok=True)
  if any(folder.glob('*.safetensors')):
    raise FileExistsError(f'{folder} has *.safetensors already')
  to = DTYPES[dtype]
  sizes = {name: math.prod(s) * to.itemsize for name, s in shapes.items()}
  groups, listed = streams.grouped(sizes, shard_bytes), {}
  for i, names in enumerate(groups, 1):
    file = SINGLE
    if len(groups) > 1:
      file = f'model-{i:05d}-of-{len(groups):05d}.safetensors'
    arrays = {n: _as(tensor(n), n, to) for n in names}
    # transformers refuses a file without the name of its framework.
    meta = {'format': 'pt'}
    library().numpy.save_file(arrays, folder / file, metadata=meta)
    listed |= dict.fromkeys(names, file)
  if len(groups) > 1:
    total = {'total_size': sum(sizes.values())}
    index = {'metadata': total, 'weight_map': listed}
    (folder / INDEX).write_text(json.dumps(index, indent=2))
  # Weights that were packed are written unpacked.
  keys = {k: v for k, v in config_json.items() if k != 'quantization_config'}
  keys |= {'torch_dtype': dtype}
  if 'dtype' in keys:  # the newer name of the same
    keys['dtype'] = dtype
  (folder / 'config.json').write_text(json.dumps(keys, indent=2))
