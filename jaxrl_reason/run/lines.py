"""Lines of metrics on disk: appended to a file, or to parts of one in an object
store, which cannot append.

Neither is ever rewritten as a whole: of a file the end is cut off, where a
kill has left half a line or where a resumed run begins; of parts the last is
written again until it is full.
"""

import json
import os
from collections.abc import Iterator

from absl import logging
from etils import epath

from jaxrl_reason.checkpoints import files

PART_LINES = 100


def opened(workdir: epath.Path, resume_step: int | None):
  """Opens the lines of a workdir, ready for more.

  Args:
    resume_step: what is past it goes; None: the run begins, and what another
      has left is moved aside.
  """
  if files.is_remote(workdir):
    return Parts(workdir / 'metrics', resume_step)
  return Appended(workdir / 'metrics.jsonl', resume_step)


def move_aside(path: epath.Path) -> None:
  """Renames what a run without a checkpoint has left, and says so."""
  n = 1
  while (
    aside := path.with_name(f'{path.stem}.before-{n}{path.suffix}')
  ).exists():
    n += 1
  path.rename(aside)
  logging.warning(
    '%s was left by a run without a checkpoint; it is %s now.', path, aside.name
  )


def _step(line: bytes | str, where: str) -> int:
  """The step of a line; -1 with a warning where it is damaged."""
  try:
    return json.loads(line)['step']
  except (ValueError, KeyError, TypeError):
    logging.warning('%s is damaged; it is left as it is.', where)
    return -1


class Appended:
  """One file, which only grows; its end may be cut off when it is opened."""

  def __init__(self, path: epath.Path, resume_step: int | None):
    self._path = path
    if resume_step is None and path.exists() and path.stat().length:
      move_aside(path)
    with files.explained(path):
      self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
      if resume_step is not None:
        os.ftruncate(self._file, self._end(resume_step))

  def _end(self, step: int) -> int:
    """The offset after the last whole line that is not past a step."""
    end = 0
    with open(self._path, 'rb') as f:
      for i, line in enumerate(f, 1):
        whole = line.endswith(b'\n')
        if not whole or _step(line, f'{self._path}, line {i},') > step:
          break
        end += len(line)
    return end

  def write(self, line: str) -> None:
    rest = line.encode()
    with files.explained(self._path):
      while rest:  # a disk that fills up takes a part first
        rest = rest[os.write(self._file, rest) :]

  def sync(self) -> None:
    """Waits until what was written is on the disk."""
    with files.explained(self._path):
      os.fsync(self._file)

  def close(self) -> None:
    with files.explained(self._path):
      os.close(self._file)


class Parts:
  """A folder of files of `PART_LINES` lines each, in order of their names."""

  def __init__(self, folder: epath.Path, resume_step: int | None):
    self._folder, self._lines, self._number = folder, [], 0
    if resume_step is None and folder.exists():
      move_aside(folder)
    with files.explained(folder):
      folder.mkdir(parents=True, exist_ok=True)
      for path, lines in list(read_parts(folder)):
        self._number = int(path.stem)
        self._lines = [
          x for x in lines if _step(x, f'a line of {path}') <= resume_step
        ]
        if len(self._lines) < len(lines):
          self._cut()
          break
    self._full()

  def _path(self, number: int) -> epath.Path:
    return self._folder / f'{number:06d}.jsonl'

  def _cut(self) -> None:
    """Ends with the lines of this part."""
    later = [p for p, _ in read_parts(self._folder)]
    for path in sorted(later, reverse=True):
      if int(path.stem) > self._number:
        path.unlink()
    self._put()

  def _put(self) -> None:
    files.write_whole(self._path(self._number), ''.join(self._lines))

  def _full(self) -> None:
    if len(self._lines) >= PART_LINES:
      self._lines, self._number = [], self._number + 1

  def write(self, line: str) -> None:
    self._lines.append(line)
    with files.explained(self._path(self._number)):
      self._put()
    self._full()

  def sync(self) -> None:
    """Does nothing: an object is there once it is written."""

  def close(self) -> None:
    """Does nothing: no file is open."""


def read_parts(folder: epath.Path) -> Iterator[tuple[epath.Path, list[str]]]:
  """Reads (path, lines) of each part, in order."""
  for path in sorted(folder.glob('*.jsonl')):
    yield path, path.read_text().splitlines(keepends=True)
