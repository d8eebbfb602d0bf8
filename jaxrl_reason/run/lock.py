"""One run in a workdir at a time: a file in it, rewritten every few seconds.

Whoever starts announces itself by a file of its own, and then looks for others:
of two that start at once at least one sees the other, whatever the file system
(local, NFS, `gs://`), for none but files read after they are written are asked
of it. Both may withdraw then, and try again after a random pause.

A lock is stale when its process is gone (looked up by id and time of birth, on
the same machine), or when its file has not changed for `STALE_S` on the
watcher's own clock: clocks of machines are never compared. A run whose lock was
taken over meanwhile (stopped and continued, cut off for minutes) ends at once.
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
  """Another run has the workdir."""


@dataclasses.dataclass(frozen=True)
class Owner:
  """Who has a lock: `machine` tells boots and containers apart, `born` two
  processes of one id.
  """

  host: str
  pid: int
  machine: str
  born: str
  since: float  # seconds since the epoch, on its own clock

  def __str__(self):
    return f'process {self.pid} on {self.host}'


def _born(pid: int) -> str | None:
  """Clock ticks from boot to the start of a process; None: it is not there."""
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
  """A lock as last read: its owner, and what changes with every beat."""

  owner: Owner
  beat: int


def _read(path: epath.Path) -> Sign | None:
  """A lock's sign; None where it has just been removed."""
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
  """Whether a lock's process has ended; None: it cannot be looked up here."""
  if not me.machine or owner.machine != me.machine:
    return None
  return _born(owner.pid) != owner.born


def _stale(path: epath.Path, me: Owner, beat_s, stale_s) -> str:
  """Why another's lock does not count; '' while it may.

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


class Lock:
  """A lock that this process has."""

  def __init__(self, path: epath.Path, owner: Owner, beat_s, on_lost: Callable):
    self._path, self._owner, self._beat_s = path, owner, beat_s
    self._on_lost, self._ended = on_lost, threading.Event()
    self._thread = threading.Thread(
      target=self._beats, name='workdir lock', daemon=True
    )

  def start(self) -> None:
    """Announces this process, and goes on to."""
    _write(self._path, Sign(self._owner, 0))
    self._thread.start()

  def _beats(self) -> None:
    beat = 1
    while not self._ended.wait(self._beat_s):
      try:
        if not self._path.exists():
          self._on_lost(self._path)
          return
        _write(self._path, Sign(self._owner, beat))
      # A full disk, a server that is away: the run itself will say so; the
      # lock may be written again before others take it for stale.
      except OSError as e:
        print(f'{self._path}: no heartbeat: {e}', file=sys.stderr)
      beat += 1

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
  """Holds the workdir alone; stale locks are removed, and named on stderr.

  Args:
    on_lost: called with the lock's path when another has taken it over.

  Raises:
    Locked: says who has it.
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
    lock = Lock(workdir / name, owner, beat_s, on_lost)
    lock.start()
    try:
      _clear(workdir, name, owner, beat_s, stale_s)
      return lock
    except BaseException as e:
      lock.release()
      if not isinstance(e, Locked) or attempt == ATTEMPTS - 1:
        raise
    time.sleep(random.uniform(0.05, 0.5))
  raise AssertionError('every attempt returns or raises')


def _clear(workdir, mine: str, owner, beat_s, stale_s) -> None:
  """Removes stale locks; raises Locked at one that is not."""
  for other in sorted(workdir.glob(f'{PREFIX}*.json')):
    if other.name == mine:
      continue
    why = _stale(other, owner, beat_s, stale_s)
    left = _read(other)
    if left is None:
      continue
    print(
      f'{other.name} of {left.owner} is stale ({why}): taking over.',
      file=sys.stderr,
    )
    other.unlink(missing_ok=True)
