"""Random access to the rows of a file: indexed once, then memory-mapped.

  index = opened(path, convert, facts)
  index.entries['key']    u64 [n], a number that `convert` returned for each row
  index[i]                the i-th row, read from the disk and converted

A start thus reads no row of a file that has not changed, and a process keeps 24
bytes of each row, which all processes of a host share. The index is in the
user's cache. Rows are read from the file itself if it is JSON lines on this
machine; otherwise from a copy beside the index: an object store has no quick
random access, and a row of Parquet is not stored in one piece.
"""

import array
import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import tqdm
from absl import logging
from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.hosts import reading
from jaxrl_reason.names import install

# at: offset in bytes, or position of the row in Parquet; row: number from 1.
ENTRY = np.dtype([('at', '<i8'), ('row', '<i8'), ('key', '<u8')])
SHOWN_AFTER_S = 2.0
BLOCK = 2**13  # bytes that are read at first: most rows are shorter


class BadRow(ValueError):
  """An invalid row; the message names file, row, field and remedy."""


def key_of(text: str) -> int:
  """Returns a 64-bit hash of a text.

  Of ten million texts, two have one hash with a probability of 3e-6.
  """
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def is_parquet(path: epath.PathLike) -> bool:
  return epath.Path(path).suffix == '.parquet'


def rows(path: epath.PathLike) -> Iterator[tuple[int, dict]]:
  """Yields (number from 1, row) of a file: JSON lines, or Parquet by suffix."""
  with epath.Path(path).open('rb') as f:
    found = _parquet_rows(path, f) if is_parquet(path) else _json_rows(path, f)
    for _, number, row in found:
      yield number, row


def _json_rows(
  path: epath.PathLike, lines: Iterable[bytes]
) -> Iterator[tuple[int, int, dict]]:
  """Yields (offset, line number, row) of every line that is not empty."""
  at = 0
  for number, line in enumerate(lines, start=1):
    if line.strip():
      try:
        row = _parsed(line)
      except BadRow as error:
        raise BadRow(f'{path}, row {number}: {error}') from error
      yield at, number, row
    at += len(line)


def _refuse_constant(name: str):
  """Refuses NaN and infinities, which Python's reader accepts."""
  raise ValueError(f'{name} is no JSON')


# One for all rows: `json.loads` makes one for each.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _parsed(line: bytes) -> dict:
  """Returns the row of a line; raises BadRow without its place."""
  try:
    text = line.decode(json.detect_encoding(line), 'surrogatepass')
    return _DECODER.decode(text)
  except (ValueError, RecursionError) as error:
    raise BadRow(
      f'it is not JSON ({error}). Every line must be one JSON object; '
      'mend or remove it.'
    ) from error


def _parquet_rows(path, file) -> Iterator[tuple[int, int, dict]]:
  """Yields (position, row number, row); one batch is in memory at a time."""
  at = 0
  for batch in _batches(path, file):
    for row in batch.to_pylist():
      yield at, at + 1, row
      at += 1


def _batches(path, file) -> Iterator:
  """Yields the batches of a Parquet file.

  Raises:
    ImportError: there is no pyarrow.
    ValueError: names the file that is no Parquet, or is damaged.
  """
  try:
    import pyarrow.parquet as parquet
  except ImportError as error:
    raise ImportError(
      f'{path} needs pyarrow: {install("hf")}, or write it as JSON lines'
    ) from error
  try:
    yield from parquet.ParquetFile(file).iter_batches()
  except (OSError, ValueError) as error:  # all errors of pyarrow are of these
    raise ValueError(
      f'{path} is no readable Parquet file ({error!s:.200}): write or fetch it '
      'again'
    ) from error


class _Lines:
  """Reads the line of a local file that begins at an offset."""

  def __init__(self, path: epath.PathLike):
    # Not mapped: a file that is cut short would end the process (SIGBUS).
    self._file = os.open(path, os.O_RDONLY)
    weakref.finalize(self, os.close, self._file)

  def __getitem__(self, at: int) -> bytes:
    out = os.pread(self._file, BLOCK, at)
    while b'\n' not in out:
      more = os.pread(self._file, len(out), at + len(out))
      if not more:
        break
      out += more
    return out.partition(b'\n')[0]


class _Arrow:
  """Reads rows of an Arrow file, memory-mapped, at positions."""

  def __init__(self, path: str):
    import pyarrow

    self._table = pyarrow.ipc.open_file(pyarrow.memory_map(path)).read_all()

  def __getitem__(self, at: int) -> dict:
    return self._table.slice(at, 1).to_pylist()[0]


class Index:
  """The rows of one file.

  Attributes:
    path: of the file.
    entries: `ENTRY` [n], in the order of the file.
  """

  def __init__(
    self,
    path: epath.Path,
    entries: np.ndarray,
    copy: str,
    convert: Callable[[dict], tuple[dict, int]],
  ):
    """Args: copy: file that has the rows; '': `path` itself; convert: as of
    `opened`.
    """
    self.path, self.entries, self._copy = path, entries, copy
    self._convert = convert

  @functools.cached_property
  def _rows(self) -> _Lines | _Arrow:
    if is_parquet(self.path):
      return _Arrow(self._copy)
    return _Lines(self._copy or self.path)

  def __len__(self) -> int:
    return len(self.entries)

  def place(self, i: int) -> str:
    """Returns 'file, row N' of an entry."""
    return f'{self.path}, row {self.entries["row"][i]}'

  def __getitem__(self, i: int) -> dict:
    """Reads a row and converts it.

    Raises:
      BadRow: the file was changed after it was indexed.
    """
    at, _, expected = self.entries[i].item()
    row = self._rows[at]
    try:
      row = row if isinstance(row, dict) else _parsed(row)
      converted, key = self._convert(row)
    except BadRow as error:
      raise BadRow(f'{self._changed(i)}: {error}') from error
    if key != expected:
      raise BadRow(self._changed(i))
    return converted

  def _changed(self, i: int) -> str:
    return f'{self.place(i)} was changed since the run began'


def opened(
  path: epath.PathLike,
  convert: Callable[[dict], tuple[dict, int]],
  facts: Mapping[str, str],
) -> Index:
  """Opens the index of a file; makes it if the cache has none.

  Args:
    convert: returns what a row becomes, and its key; raises BadRow without its
      place.
    facts: all that `convert` goes by, beside the code of this folder.

  Raises:
    BadRow: names file and row.
    ValueError: the file has no rows.
  """
  path = epath.Path(path)
  is_local = '://' not in str(path)
  if is_local:
    path = epath.Path(os.path.abspath(path))
  folder, name = _folder(path, facts), _version(path)
  entries, copy = folder / f'{name}.npy', ''
  if is_parquet(path) or not is_local:
    copy = f'{folder / name}.rows'
  with _locked(folder):
    if not entries.exists():
      for old in folder.iterdir():
        if old.stem != name and old.suffix in ('.npy', '.rows'):
          old.unlink()
      _make(path, convert, entries, copy)
    # A plain array of the mapped bytes: reading an element of a `memmap` takes
    # ten times as long.
    found = np.asarray(np.load(entries, mmap_mode='r'))
    return Index(path, found, copy, convert)


def _folder(path: epath.Path, facts: Mapping[str, str]) -> pathlib.Path:
  """Returns the folder of a file's index, made if it is missing."""
  name = hashlib.sha256(json.dumps([str(path), facts]).encode()).hexdigest()
  folder = pathlib.Path(reading.cache_dir()) / 'rows' / name[:16]
  try:
    folder.mkdir(parents=True, exist_ok=True)
    if os.access(folder, os.W_OK):
      return folder
    why = 'no permission'
  except OSError as e:
    why = str(e)
  logging.warning('%s cannot keep the index of %s: %s.', folder, path, why)
  return pathlib.Path(tempfile.mkdtemp(prefix='jaxrl_reason-rows-'))


def _version(path: epath.Path) -> str:
  """Returns a name for the version of a file and of the code that reads it."""
  stat, out = path.stat(), hashlib.sha256()
  out.update(repr((stat.length, stat.mtime)).encode())
  if '://' not in str(path):
    out.update(repr(os.stat(path).st_mtime_ns).encode())
  for code in sorted(pathlib.Path(__file__).parent.glob('*.py')):
    out.update(code.read_bytes())
  return out.hexdigest()[:16]


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
  """Lets one process of a host make an index, while the others wait for it."""
  with open(folder / 'lock', 'w') as f:
    # Without locks, as on some clusters, each makes it, and replaces it whole.
    with contextlib.suppress(OSError):
      fcntl.flock(f, fcntl.LOCK_EX)
    yield


def _make(path, convert, target: pathlib.Path, copy: str) -> None:
  """Writes the entries of a file, and the copy of its rows."""
  if copy:
    _write_copy(path, copy)
  columns = [array.array(code) for code in 'qqQ']
  for at, number, row in _all(path, copy):
    try:
      _, key = convert(row)
    except BadRow as error:
      raise BadRow(f'{path}, row {number}: {error}.') from error
    for column, value in zip(columns, (at, number, key)):
      column.append(value)
  if not columns[0]:
    raise ValueError(f'{path} has no rows')
  entries = np.empty(len(columns[0]), ENTRY)
  for name, column in zip(ENTRY.names, columns):
    entries[name] = column
  with _replaced(target) as f:
    np.save(f, entries)


def _write_copy(path: epath.Path, copy: str) -> None:
  """Copies the rows of a file: Parquet as Arrow, others byte by byte."""
  with path.open('rb') as f, _replaced(copy) as out:
    if not is_parquet(path):
      shutil.copyfileobj(f, out)
      return
    batches = _batches(path, f)
    first = next(batches, None)
    if first is None:
      raise ValueError(f'{path} has no rows')
    import pyarrow

    with pyarrow.ipc.new_file(out, first.schema) as writer:
      for batch in itertools.chain([first], batches):
        writer.write_batch(batch)


@contextlib.contextmanager
def _replaced(path) -> Iterator:
  """Opens a file that takes its name when it is whole."""
  unfinished = f'{path}.{os.getpid()}'
  try:
    with open(unfinished, 'wb') as f:
      yield f
    os.replace(unfinished, path)
  except BaseException:
    os.unlink(unfinished)
    raise


def _all(path: epath.Path, copy: str) -> Iterator[tuple[int, int, dict]]:
  """Yields (position, row number, row), with a bar if it takes longer."""
  if is_parquet(path):
    with path.open('rb') as f:
      yield from _parquet_rows(path, f)
    return
  bar = tqdm.tqdm(
    total=os.stat(copy or path).st_size,
    desc=f'indexing {path.name}',
    unit='B',
    unit_scale=True,
    delay=SHOWN_AFTER_S,
    mininterval=1.0,
    disable=not hosts.is_main(),
  )
  with open(copy or path, 'rb') as f, bar:
    for at, number, row in _json_rows(path, f):
      if number % 1024 == 0:
        bar.update(at - bar.n)
      yield at, number, row
