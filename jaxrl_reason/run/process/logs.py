"""Writes the log of each process to the workdir: logs/process_0003.log.

A line has time, process and step. If another thread than the main one ends the
process, the stacks of all threads are in logs/stacks_0003.txt.

Lines are kept in memory until the run is known to go on in this workdir
(`begin`), so that a start that is refused leaves no trace in it.
"""

import contextlib
import faulthandler
import logging as stdlib_logging
import math
import os
import tempfile
import time

import jax
from absl import logging
from etils import epath

from jaxrl_reason.checkpoints import files
from jaxrl_reason.hosts import peers

FOLDER = 'logs'
# An object store cannot append: each write repeats a part of so many lines, and
# lines wait so many seconds for others.
PART_LINES, WRITE_EVERY_S = 1000, 30.0


def _encoded(text: str) -> bytes:
  """Returns UTF-8. A message of a verifier may contain lone surrogates, from
  JSON that a completion wrote.
  """
  return text.encode('utf-8', 'backslashreplace')


class Log(stdlib_logging.Handler):
  """The log of this process; also a handler of warnings."""

  def __init__(self, workdir: epath.Path):
    super().__init__(stdlib_logging.WARNING)
    self._folder = epath.Path(workdir) / FOLDER
    self._number = f'{jax.process_index():04d}'
    self._path = self._folder / f'process_{self._number}.log'
    self._waiting, self._file, self._part = [], None, 0
    self._written = -math.inf  # when a part was last written

  def emit(self, record) -> None:
    """Writes a warning of any thread. If the disk is full, the run's own next
    line raises the error, and this line is written with it.
    """
    with contextlib.suppress(OSError):
      self.write(f'{record.levelname.lower()}: {record.getMessage()}')

  def write(self, text: str) -> None:
    """Writes the lines of a text; they are on disk as soon as `begin` was
    called.
    """
    now = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
    where = f'{now} process {int(self._number)} step {peers.standing["step"]}: '
    with self.lock:  # the watchdog and orbax log from other threads
      self._waiting += [f'{where}{line}\n' for line in text.splitlines()]
      if self._file is not None:
        self._put()

  @property
  def begun(self) -> bool:
    """Returns True if lines are written to the workdir."""
    return self._file is not None

  def begin(self) -> None:
    """Writes the lines so far to the workdir, and each later one at once."""
    with files.explained(self._path):
      self._folder.mkdir(parents=True, exist_ok=True)
      self._file = -1
      if not files.is_remote(self._path):
        how = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(self._path, how, 0o644)
      else:
        mine = f'process_{self._number}.*.log'
        self._part = len(list(self._folder.glob(mine)))
    self._put()

  def _put(self, urgent: bool = False) -> None:
    """Writes the waiting lines; `urgent`: also to an object store."""
    data = _encoded(''.join(self._waiting))
    if self._file >= 0:
      with files.explained(self._path):
        os.write(self._file, data)
      self._waiting = []
      return
    now = time.monotonic()
    full = len(self._waiting) >= PART_LINES
    if not (full or urgent or now - self._written >= WRITE_EVERY_S):
      return
    self._written = now
    name = f'process_{self._number}.{self._part:04d}.log'
    files.write_whole(self._folder / name, data)
    if full:
      self._waiting, self._part = [], self._part + 1

  def stacks(self, line: str) -> None:
    """Writes the error that ends this process and the stacks of its threads."""
    if self._file is None:
      self.begin()
    self.write(f'error: {line}')
    self._put(urgent=True)
    with tempfile.TemporaryFile('w+') as f:
      faulthandler.dump_traceback(f, all_threads=True)
      f.seek(0)
      data = _encoded(f'{line}\n\n{f.read()}')
    (self._folder / f'stacks_{self._number}.txt').write_bytes(data)

  def finish(self) -> None:
    """Writes the waiting lines, and closes the file."""
    if self._file == -1:
      self._put(urgent=True)
    if self._file is not None and self._file >= 0:
      os.close(self._file)
    self._file = None


_current: Log | None = None


def note(text: str) -> None:
  """Writes to the log of this process, if there is one."""
  if _current is not None:
    _current.write(text)


def begin() -> None:
  """Starts to write the log of this process to the workdir."""
  if _current is not None:
    _current.begin()


def begun() -> bool:
  """Returns True if the run was not refused and has begun in its workdir."""
  return _current is not None and _current.begun


@contextlib.contextmanager
def kept(workdir: epath.Path):
  """Writes a log of this process, with warnings and the error that ends it."""
  global _current
  log = _current = Log(workdir)
  logging.get_absl_logger().addHandler(log)
  peers.before_end.append(log.stacks)
  try:
    yield
    log.write('ended')
  except BaseException as e:
    # The error itself is what has to be told: a disk that takes no line more
    # has most likely caused it.
    with contextlib.suppress(OSError):
      log.write(f'ended: {type(e).__name__}: {e}')
    raise
  finally:
    peers.before_end.remove(log.stacks)
    logging.get_absl_logger().removeHandler(log)
    log.finish()
    _current = None
