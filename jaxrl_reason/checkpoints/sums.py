"""Checksums of a checkpoint's files, which prove damage.

Every process computes the checksums of its files when they are written. Process
0 adds those of the other files before orbax finishes the checkpoint, and writes
`checksums.json`. So a finished checkpoint always has checksums. They are zlib's
CRC-32, which detects every flipped bit and every burst of up to 32 bits. The
list of checksums has its own checksum.
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
# Threads that read and sum files; both operations release the GIL.
THREADS = 8
BLOCK = 8 << 20  # bytes


def of_json(value: Any) -> int:
  """Returns the checksum of a JSON value, for any spacing and order of keys."""
  return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def of_file(path: epath.Path) -> list[int]:
  """Returns [number of bytes, checksum] of a file."""
  size = total = 0
  with path.open('rb') as f:
    while block := f.read(BLOCK):
      size, total = size + len(block), zlib.crc32(block, total)
  return [size, total]


def _names(folder: epath.Path) -> list[str]:
  """Lists the files below a folder, by their paths in it."""
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
  """Writes the checksums of this process's files of a checkpoint's arrays."""
  me = jax.process_index()
  own = f'ocdbt.process_{me}'
  if (folder / own).is_dir():
    names = [f'{own}/{name}' for name in _names(folder / own)]
    found = _each(lambda name: of_file(folder / name), names)
    (folder / _of_process(me)).write_text(json.dumps(found))


def write(folder: epath.Path) -> None:
  """Writes `checksums.json` of a folder: the checksums of all its files."""
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
  """Returns the checksums in a finished folder.

  Raises:
    ValueError: the list of checksums is damaged.
    OSError: it cannot be read.
  """
  told = json.loads((folder / NAME).read_text())
  if not isinstance(told, dict) or told.get('sum') != of_json(
    told.get('files')
  ):
    raise ValueError('the list of checksums has another checksum')
  return told['files']


def damage(folder: epath.Path, *, whole: bool, part: int, parts: int) -> str:
  """Describes proven damage in a folder; '' if there is none.

  Args:
    whole: compute checksums; False: compare only sizes.
    part, parts: check every parts-th file, from number `part`, so that several
      processes share the files.

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
    # Read twice, because a single wrong read does not prove damage on the disk.
    found = files.retried(str(path), look)
    if found != told[: len(found)]:
      found = files.retried(str(path), look)
  except FileNotFoundError:
    return 'is missing'
  if found[0] != told[0]:
    return f'has {found[0]} bytes instead of {told[0]}'
  return '' if found == told[: len(found)] else 'has another checksum'


class _Then(ocp.future.Future):
  """Waits for the save of this process's arrays, and then runs a function."""

  def __init__(self, before: list, then):
    self._before, self._then = before, then

  def result(self, timeout: float | None = None) -> None:
    for f in self._before:
      f.result(timeout=timeout)
    self._then()


class Handler(ocp.StandardCheckpointHandler):
  """Saves and restores arrays; saved files get checksums.

  Args:
    written: called when all files of a checkpoint are written.
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
