"""Reads times and children of processes from Linux's /proc."""

import os
import signal
import sys
import time
from collections.abc import Set

AVAILABLE = sys.platform.startswith('linux')


def usage(pid: int, *, proc: int | None = None) -> tuple[str, float]:
  """Reads (state, CPU seconds) of a process; unknown without /proc.

  `proc` is an open descriptor of /proc, for processes without access to the
  path.
  """
  fields = _read(f'{pid}/stat', proc).rpartition(b')')[2].split()
  if not fields:
    return '?', 0.0
  ticks = int(fields[11]) + int(fields[12])
  return fields[0].decode(), ticks / os.sysconf('SC_CLK_TCK')


def children(pid: int, *, proc: int | None = None) -> list[int]:
  """Lists the children of a process with one thread; [] if unknown."""
  return [int(p) for p in _read(f'{pid}/task/{pid}/children', proc).split()]


def end_children(
  seconds: float, *, keep: Set[int] = frozenset(), proc: int | None = None
) -> bool:
  """Ends this process's children but `keep`; False if they go on to multiply.

  Orphans of its children may become its own meanwhile (`linux.adopt_orphans`).
  """
  end = time.monotonic() + seconds
  while time.monotonic() < end:
    left = set(children(os.getpid(), proc=proc)) - keep
    if not left:
      return True
    for pid in left:
      os.kill(pid, signal.SIGKILL)
      os.waitpid(pid, 0)
  return False


def _read(path: str, proc: int | None) -> bytes:
  if not AVAILABLE:
    return b''
  try:
    path = path if proc is not None else f'/proc/{path}'
    with open(os.open(path, os.O_RDONLY, dir_fd=proc), 'rb') as f:
      return f.read()
  except (FileNotFoundError, ProcessLookupError):
    return b''
