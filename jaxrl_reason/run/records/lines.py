"""Writes lines of metrics: appended to a file, or to parts in an object store,
which cannot append.

A file is only cut at its end, after a kill inside a line or when a run resumes.
In an object store only the last part is written again, until it is full.
"""

import json
import math
import os
from collections.abc import Iterator, Sequence

from absl import logging
from etils import epath

from jaxrl_reason.checkpoints import files

PART_LINES = 100
# What a run writes while it trains, beside its checkpoints and its log.
RECORDS = (
  'metrics.jsonl', 'metrics', 'rollouts', 'evaluations', 'samples',
  'tensorboard', 'track.json',
)  # fmt: skip


class Lost:
  """Counts the steps after a checkpoint, which are computed again.

  Args:
    step: of the checkpoint.
  """

  def __init__(self, step: int):
    self.steps, self.seconds, self._last = 0, 0.0, step

  def add(self, line: bytes | str) -> None:
    """Counts a line, if it is a complete training line."""
    try:
      row = json.loads(line)
      steps, step_s = row['step'] - self._last, row['perf/step_s']
    except (ValueError, KeyError, TypeError, RecursionError):
      return
    self.steps, self._last = self.steps + steps, row['step']
    self.seconds += steps * step_s


def opened(workdir: epath.Path, resume_step: int | None, owed: bool = False):
  """Opens the lines of a workdir, ready for more.

  Args:
    resume_step: lines after it are removed; None: the run begins, after
      `move_aside`.
    owed: the run begins by evaluating `resume_step`; a line that an earlier
      start wrote for that evaluation is removed, too.
  """
  if files.is_remote(workdir):
    return Parts(workdir / 'metrics', resume_step, owed)
  return Appended(workdir / 'metrics.jsonl', resume_step, owed)


def move_aside(workdir: epath.Path, names: Sequence[str] = RECORDS) -> None:
  """Renames files of a run without a checkpoint, with a warning; the next run
  in its workdir begins with none.
  """
  found = [p for name in names if _is_filled(p := workdir / name)]
  n = 1
  while any(_aside(path, n).exists() for path in found):
    n += 1
  for path in found:
    path.rename(_aside(path, n))
  if found:
    logging.warning(
      '%s of %s were left by a run without a checkpoint; their names have '
      '.before-%d now.',
      ', '.join(path.name for path in found),
      workdir,
      n,
    )


def _aside(path: epath.Path, n: int) -> epath.Path:
  return path.with_name(f'{path.stem}.before-{n}{path.suffix}')


def _is_filled(path: epath.Path) -> bool:
  if path.is_dir():
    return any(path.iterdir())
  return path.exists() and path.stat().length > 0


def _step(line: bytes | str, where: str, owed: int) -> float:
  """Returns the step of a line; -1 with a warning if the line is damaged.

  Args:
    owed: a step whose evaluation is made again; a line of it is of a later
      step, infinity.
  """
  try:
    row = json.loads(line)
    again = row['step'] == owed and any(k.startswith('eval/') for k in row)
    return math.inf if again else row['step']
  except (ValueError, KeyError, TypeError, RecursionError):
    logging.warning('%s is damaged; it is left as it is.', where)
    return -1


class Appended:
  """One file, which only grows; opening it may cut its end.

  Attributes:
    lost: the lines that were cut off.
    last: the step of the last remaining line.
  """

  def __init__(
    self, path: epath.Path, resume_step: int | None, owed: bool = False
  ):
    """Args: as of `opened`."""
    self._path, self.lost, self.last = path, Lost(resume_step or 0), 0
    with files.explained(path):
      self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
      if resume_step is not None:
        os.ftruncate(self._file, self._end(resume_step, owed))

  def _end(self, step: int, owed: bool) -> int:
    """Returns the offset after the last complete line up to a step."""
    end = 0
    with open(self._path, 'rb') as f:
      for i, line in enumerate(f, 1):
        at = _step(line, f'{self._path}, line {i},', step if owed else -1)
        if not line.endswith(b'\n') or at > step:
          self.lost.add(line)
          break
        end, self.last = end + len(line), max(self.last, at)
      for line in f:
        self.lost.add(line)
    return end

  def write(self, line: str) -> None:
    rest = line.encode()
    with files.explained(self._path):
      while rest:  # a full disk may accept a part of the line
        rest = rest[os.write(self._file, rest) :]

  def sync(self) -> None:
    """Waits until all lines are on the disk."""
    with files.explained(self._path):
      os.fsync(self._file)

  def close(self) -> None:
    with files.explained(self._path):
      os.close(self._file)


class Parts:
  """A folder of files of `PART_LINES` lines each, in order of their names.

  Attributes: as of `Appended`.
  """

  def __init__(
    self, folder: epath.Path, resume_step: int | None, owed: bool = False
  ):
    """Args: as of `opened`."""
    self._folder, self._lines, self._number = folder, [], 0
    self.last = 0
    self.lost = Lost(resume_step or 0)
    with files.explained(folder):
      folder.mkdir(parents=True, exist_ok=True)
      for path, lines in list(read_parts(folder)):
        self._number = int(path.stem)
        again = resume_step if owed else -1
        steps = [_step(x, f'a line of {path}', again) for x in lines]
        self._lines = [x for x, s in zip(lines, steps) if s <= resume_step]
        kept = [s for s in steps if s <= resume_step]
        self.last = max(self.last, *kept, 0)
        if len(self._lines) < len(lines):
          self._cut(lines[len(self._lines) :])
          break
    self._full()

  def _path(self, number: int) -> epath.Path:
    return self._folder / f'{number:06d}.jsonl'

  def _cut(self, dropped: list[str]) -> None:
    """Makes the remaining lines of a part the last part."""
    for line in dropped:
      self.lost.add(line)
    parts = read_parts(self._folder)
    later = [x for x in parts if int(x[0].stem) > self._number]
    for _, lines in later:
      for line in lines:
        self.lost.add(line)
    for path, _ in reversed(later):
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
    """Does nothing: a written object is complete."""

  def close(self) -> None:
    """Does nothing: no file is open."""


def read_parts(folder: epath.Path) -> Iterator[tuple[epath.Path, list[str]]]:
  """Reads (path, lines) of each part, in order."""
  for path in sorted(folder.glob('*.jsonl')):
    yield path, path.read_text().splitlines(keepends=True)
