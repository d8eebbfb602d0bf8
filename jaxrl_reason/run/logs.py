"""What each process says, in the workdir: logs/process_0003.log, a line with
time, process and step; and, where it is ended from outside its main thread, the
stacks of all its threads in logs/stacks_0003.txt.

Lines are kept in memory until the run is known to go on in this workdir
(`begin`), so that a start that is refused leaves no trace in it.
"""

import contextlib
import faulthandler
import logging as stdlib_logging
import os
import tempfile
import time

import jax
from absl import logging
from etils import epath

from jaxrl_reason.checkpoints import files
from jaxrl_reason.hosts import peers

FOLDER = 'logs'
PART_LINES = 1000  # in an object store, which cannot append


class Log(stdlib_logging.Handler):
  """The log of this process; also a handler of warnings."""

  def __init__(self, workdir: epath.Path):
    super().__init__(stdlib_logging.WARNING)
    self._folder = epath.Path(workdir) / FOLDER
    self._number = f'{jax.process_index():04d}'
    self._path = self._folder / f'process_{self._number}.log'
    self._waiting, self._file, self._part = [], None, 0

  def emit(self, record) -> None:
    """Writes a warning, of whatever thread; a disk that is full is told by the
    run's own next line, which has this one with it.
    """
    with contextlib.suppress(OSError):
      self.write(f'{record.levelname.lower()}: {record.getMessage()}')

  def write(self, text: str) -> None:
    """Writes a line for each of the text; on disk as soon as `begin` was
    called.
    """
    now = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
    where = f'{now} process {int(self._number)} step {peers.standing["step"]}: '
    with self.lock:  # the watchdog and orbax speak from other threads
      self._waiting += [f'{where}{line}\n' for line in text.splitlines()]
      if self._file is not None:
        self._put()

  @property
  def begun(self) -> bool:
    """Tells whether what was said is on disk."""
    return self._file is not None

  def begin(self) -> None:
    """Has what was said so far on disk, and what follows at once."""
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

  def _put(self) -> None:
    text = ''.join(self._waiting)
    if self._file >= 0:
      with files.explained(self._path):
        os.write(self._file, text.encode())
      self._waiting = []
      return
    name = f'process_{self._number}.{self._part:04d}.log'
    files.write_whole(self._folder / name, text)
    if len(self._waiting) >= PART_LINES:
      self._waiting, self._part = [], self._part + 1

  def stacks(self, line: str) -> None:
    """Writes why this process is ended, and what its threads are doing."""
    if self._file is None:
      self.begin()
    self.write(f'error: {line}')
    with tempfile.TemporaryFile('w+') as f:
      faulthandler.dump_traceback(f, all_threads=True)
      f.seek(0)
      text = f'{line}\n\n{f.read()}'
    (self._folder / f'stacks_{self._number}.txt').write_text(text)

  def finish(self) -> None:
    """Closes the file."""
    if self._file is not None and self._file >= 0:
      os.close(self._file)
    self._file = None


_current: Log | None = None


def note(text: str) -> None:
  """Writes to the log of this process, if a run has one."""
  if _current is not None:
    _current.write(text)


def begin() -> None:
  """Begins to write on disk what was and will be said."""
  if _current is not None:
    _current.begin()


def begun() -> bool:
  """Tells whether the run has begun in its workdir: it was not refused."""
  return _current is not None and _current.begun


@contextlib.contextmanager
def kept(workdir: epath.Path):
  """Keeps a log of what this process says, warnings and its end included."""
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
