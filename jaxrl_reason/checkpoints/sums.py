"""Checksums of a checkpoint's files, so that damage is proven and not guessed.

Every process sums the files that it wrote as soon as they are written; process
0 adds the rest when orbax is about to finish the checkpoint, and writes
`checksums.json` among them. So a finished checkpoint always has its sums. The
sum is zlib's CRC-32, of which no flipped bit and no burst of 32 escapes; the
list of sums has a sum of its own.
"""

import concurrent.futures
import functools
import json
import zlib
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from jaxrl_reason.checkpoints import files

NAME = 'checksums.json'
# Read and summed at once by one process; both leave the interpreter's lock.
THREADS = 8
BLOCK = 8 << 20  # bytes


def of_json(value: Any) -> int:
  """Returns the sum of a JSON value, whatever its spacing and the order of its
  keys.
  """
  return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def of_file(path: epath.Path) -> list[int]:
  """Returns [bytes, sum] of a file."""
  size = total = 0
  with path.open('rb') as f:
    while block := f.read(BLOCK):
      size, total = size + len(block), zlib.crc32(block, total)
  return [size, total]


def _names(folder: epath.Path) -> list[str]:
  """Files below a folder, by their paths in it."""
  found = []
  for path in sorted(folder.iterdir()):
    if path.is_dir():
      found += [f'{path.name}/{name}' for name in _names(path)]
    else:
      found.append(path.name)
  return found


def _each(call, names) -> dict[str, Any]:
  with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
    return dict(zip(names, pool.map(call, names)))


def _of_process(i: int) -> str:
  return f'checksums.process_{i}.json'


def write_own(folder: epath.Path) -> None:
  """Writes sums of what this process has written of a checkpoint's arrays."""
  me = jax.process_index()
  own = f'ocdbt.process_{me}'
  if (folder / own).is_dir():
    names = [f'{own}/{name}' for name in _names(folder / own)]
    found = _each(lambda name: of_file(folder / name), names)
    (folder / _of_process(me)).write_text(json.dumps(found))


def write(folder: epath.Path) -> None:
  """Writes `checksums.json` of a folder: the sums of all its files."""
  found = {}
  for i in range(jax.process_count()):
    part = folder / _of_process(i)
    if part.exists():
      found |= json.loads(part.read_text())
      part.unlink()
  rest = [name for name in _names(folder) if name not in found]
  found |= _each(lambda name: of_file(folder / name), rest)
  text = json.dumps({'files': found, 'sum': of_json(found)})
  (folder / NAME).write_text(text)


def read(folder: epath.Path) -> dict[str, list[int]]:
  """Returns the sums that a folder was finished with.

  Raises:
    ValueError: they are damaged themselves.
    OSError: they cannot be read.
  """
  told = json.loads((folder / NAME).read_text())
  if not isinstance(told, dict) or told.get('sum') != of_json(
    told.get('files')
  ):
    raise ValueError('the list of checksums has another checksum')
  return told['files']


def damage(folder: epath.Path, *, whole: bool, part: int, parts: int) -> str:
  """Names what of a folder is proven to be damaged; '' where nothing is.

  Args:
    whole: sum the contents; else only sizes are compared.
    part, parts: of the files, every parts-th from number `part` is looked at,
      so that several processes share them.

  Raises:
    OSError: a file cannot be read, which proves nothing.
  """
  try:
    told = files.retried(str(folder / NAME), read, folder)
  except FileNotFoundError:
    return f'{NAME} is missing'
  except ValueError as e:  # no JSON, no text, or another sum
    return f'{NAME}: {e!s:.100}'
  names = sorted(told)[part::parts]

  def look(name):
    return _damage_of(folder / name, told[name], whole)

  found = {k: v for k, v in _each(look, names).items() if v}
  more = f' and {len(found) - 1} more' if len(found) > 1 else ''
  return next((f'{k} {v}{more}' for k, v in found.items()), '')


def _damage_of(path: epath.Path, told: list[int], whole: bool) -> str:
  def look() -> list[int]:
    return of_file(path) if whole else [path.stat().length]

  try:
    # Twice: what is read wrong once need not be wrong on the disk.
    found = files.retried(str(path), look)
    if found != told[: len(found)]:
      found = files.retried(str(path), look)
  except FileNotFoundError:
    return 'is missing'
  if found[0] != told[0]:
    return f'has {found[0]} bytes instead of {told[0]}'
  return '' if found == told[: len(found)] else 'has another checksum'


class _Then(ocp.future.Future):
  """A save of this process's arrays, and then something else."""

  def __init__(self, before: list, then):
    self._before, self._then = before, then

  def result(self, timeout: float | None = None) -> None:
    for f in self._before:
      f.result(timeout=timeout)
    self._then()


class Handler(ocp.StandardCheckpointHandler):
  """Saves and restores arrays; what it saves has its checksums beside it.

  Args:
    written: called when all files of a checkpoint are there.
  """

  def __init__(self, written: Callable[[], None] = lambda: None):
    super().__init__()
    self._written = written

  async def async_save(self, directory, *args, **kwargs):
    before = await super().async_save(directory, *args, **kwargs) or []
    folder = epath.Path(getattr(directory, 'path', directory))
    return [_Then(before, functools.partial(write_own, folder))]

  def finalize(self, directory: epath.Path) -> None:
    super().finalize(directory)
    write(directory)
    self._written()
