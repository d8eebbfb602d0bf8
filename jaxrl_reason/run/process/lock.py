"""One run in a workdir at a time: a lock file, rewritten every few seconds.

A starting process first writes a lock file of its own, and then looks for
others. If two start at once, at least one sees the other on any file system
(local, NFS, `gs://`), because only read-after-write of files is needed. Both
may withdraw then, and try again after a random pause.

A lock is stale if its process has ended (looked up by id and time of birth, on
the same machine), or if its file has not changed for `STALE_S` on the reader's
own clock: clocks of machines are never compared. A run whose lock was taken
over meanwhile (stopped and continued, cut off for minutes) ends at once.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable

from etils import epath

from jaxrl_reason.checkpoints import files

BEAT_S = 10.0
STALE_S = 120.0
ATTEMPTS = 3  # of those that start at the same moment
PREFIX = 'lock-'


class Locked(OSError):
  """Another run uses the workdir."""


@dataclasses.dataclass(frozen=True)
class Owner:
  """The owner of a lock. `machine` distinguishes boots and containers,
  `born` two processes with one id.
  """

  host: str
  pid: int
  machine: str
  born: str
  since: float  # seconds since the epoch, on its own clock

  def __str__(self):
    return f'process {self.pid} on {self.host}'


def _born(pid: int) -> str | None:
  """Returns the clock ticks from boot to the start of a process; None if it has
  ended.
  """
  try:
    text = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except (FileNotFoundError, ProcessLookupError):
    return None
  state, *rest = text.rpartition(')')[2].split()
  return None if state in 'ZX' else rest[18]


def _me() -> Owner:
  boot = pathlib.Path('/proc/sys/kernel/random/boot_id')
  space = pathlib.Path('/proc/self/ns/pid')
  # Without them (no Linux) a process is only known by its heartbeat.
  known = boot.exists() and space.exists()
  machine = f'{boot.read_text().strip()} {os.readlink(space)}' if known else ''
  born = (_born(os.getpid()) or '') if known else ''
  return Owner(socket.gethostname(), os.getpid(), machine, born, time.time())


@dataclasses.dataclass(frozen=True)
class Sign:
  """The content of a lock file: its owner, and the count of its beats."""

  owner: Owner
  beat: int


def _read(path: epath.Path) -> Sign | None:
  """Reads a lock file; None if it has just been removed."""
  try:
    told = files.retried(str(path), lambda: json.loads(path.read_text()))
    return Sign(Owner(**told['owner']), told['beat'])
  except FileNotFoundError:
    return None
  except (ValueError, TypeError, KeyError) as e:
    raise Locked(
      f'{path} is no lock of a run ({e!s:.80}). Remove it if no run uses this '
      'folder'
    ) from e


def _write(path: epath.Path, sign: Sign) -> None:
  files.write_whole(path, json.dumps(dataclasses.asdict(sign)))


def _gone(owner: Owner, me: Owner) -> bool | None:
  """Returns True if a lock's process has ended; None if that is unknown."""
  if not me.machine or owner.machine != me.machine:
    return None
  return _born(owner.pid) != owner.born


def _stale(path: epath.Path, me: Owner, beat_s, stale_s) -> str:
  """Returns why another process's lock is stale, or '' if it may be in use.

  Raises:
    Locked: it is in use.
  """
  first = _read(path)
  if first is None:
    return 'it was released meanwhile'
  gone = _gone(first.owner, me)
  if gone:
    return 'its process has ended'
  if gone is None:
    print(
      f'{path} was left by {first.owner}: waiting for a sign of life, at most '
      f'{stale_s:g} s.',
      file=sys.stderr,
    )
    begun = time.monotonic()
    while time.monotonic() - begun < stale_s:
      time.sleep(min(1.0, beat_s / 4))
      now = _read(path)
      if now is None:
        return 'it was released meanwhile'
      if now != first:
        break
    else:
      return f'no sign of life for {stale_s:g} s'
  age = max(0.0, time.time() - first.owner.since)
  raise Locked(
    f'{path.parent} is in use by {first.owner}, which began {age:.0f} s ago '
    f'({path.name}). Wait for it or stop it, or use another --workdir'
  )


def _others(path: epath.Path) -> set[epath.Path]:
  """Returns the lock files of other processes."""
  return {*path.parent.glob(f'{PREFIX}*.json')} - {path}


class Lock:
  """The lock of this process."""

  def __init__(
    self, path: epath.Path, owner: Owner, beat_s, stale_s, on_lost: Callable
  ):
    self._path, self._owner = path, owner
    self._beat_s, self._stale_s = beat_s, stale_s
    self._on_lost, self._ended = on_lost, threading.Event()
    self._thread = threading.Thread(
      target=self._beats, name='workdir lock', daemon=True
    )

  def start(self) -> None:
    """Writes the lock file, and starts to rewrite it."""
    _write(self._path, Sign(self._owner, 0))
    self._thread.start()

  def _beats(self) -> None:
    beat, last = 1, time.monotonic()
    while not self._ended.wait(self._beat_s):
      try:
        if not self._path.exists():
          return self._on_lost(self._path)
        _write(self._path, Sign(self._owner, beat))
        # Another process may have removed the file before the write ended.
        if time.monotonic() - last > self._stale_s / 2 and self._replaced():
          self._path.unlink(missing_ok=True)
          return self._on_lost(self._path)
        last = time.monotonic()
      # A full disk, a server that is away (gcsfs has errors of its own): the
      # run itself reports it, and this thread goes on: the lock may be written
      # again before others take it for stale.
      except Exception as e:
        print(f'{self._path}: no heartbeat: {e}', file=sys.stderr)
      beat += 1

  def _replaced(self) -> bool:
    """Returns True if another lock stays: a process that only tries to get the
    lock withdraws when it reads the next beat.
    """
    before = _others(self._path)
    self._ended.wait(self._beat_s)
    return bool(before & _others(self._path))

  def release(self) -> None:
    """Removes the lock."""
    self._ended.set()
    if self._thread.is_alive():
      self._thread.join()
    self._path.unlink(missing_ok=True)


def _end(path: epath.Path) -> None:
  print(
    f'error: {path} is gone: this run gave no sign of life for so long that '
    'another took over its workdir, so it ends and writes nothing more.',
    file=sys.stderr,
    flush=True,
  )
  os._exit(1)


@contextlib.contextmanager
def held(
  workdir: epath.Path,
  *,
  beat_s: float = BEAT_S,
  stale_s: float = STALE_S,
  on_lost: Callable = _end,
):
  """Locks the workdir. Stale locks are removed, and named on stderr.

  Args:
    on_lost: called with the lock's path if another process has taken it over.

  Raises:
    Locked: names the owner of the lock.
  """
  lock = _taken(workdir, beat_s, stale_s, on_lost)
  try:
    yield
  finally:
    lock.release()


def _taken(workdir, beat_s, stale_s, on_lost) -> Lock:
  for attempt in range(ATTEMPTS):
    owner = _me()
    name = f'{PREFIX}{owner.host}-{owner.pid}-{secrets.token_hex(4)}.json'
    lock = Lock(workdir / name, owner, beat_s, stale_s, on_lost)
    lock.start()
    try:
      _clear(workdir / name, owner, beat_s, stale_s)
      return lock
    except BaseException as e:
      lock.release()
      if not isinstance(e, Locked) or attempt == ATTEMPTS - 1:
        raise
    time.sleep(random.uniform(0.05, 0.5))
  raise AssertionError('every attempt returns or raises')


def _clear(mine: epath.Path, owner, beat_s, stale_s) -> None:
  """Removes stale locks; raises Locked at one that is not."""
  for other in sorted(_others(mine)):
    why = _stale(other, owner, beat_s, stale_s)
    left = _read(other)
    if left is None:
      continue
    print(
      f'{other.name} of {left.owner} is stale ({why}): taking over.',
      file=sys.stderr,
    )
    other.unlink(missing_ok=True)
