"""Keeps a run alive when the reader of its output goes away.

A closed terminal or a dead pipe makes every write to stderr fail (EIO, EPIPE).
The run then writes to /dev/null; its log in the workdir has the same lines.
"""

import contextlib
import errno
import io
import os
import sys

GONE = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO)


class _File(io.FileIO):
  """A file descriptor that becomes /dev/null when its reader is gone."""

  def write(self, data) -> int:
    try:
      return super().write(data)
    except OSError as e:
      if e.errno not in GONE:
        raise
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, self.fileno())  # for C++ and for other handles of it too
    os.close(null)
    return len(data)


def _tolerant(stream) -> io.TextIOWrapper:
  """Returns a stream that writes to the same descriptor."""
  raw = _File(stream.fileno(), 'w', closefd=False)
  return io.TextIOWrapper(
    io.BufferedWriter(raw),
    encoding=stream.encoding,
    errors=stream.errors,
    line_buffering=True,
  )


@contextlib.contextmanager
def tolerated():
  """Tolerates a reader of stdout or stderr that goes away, while entered."""
  before = sys.stdout, sys.stderr
  # Notebooks and tests have streams of their own, without a descriptor.
  sys.stdout, sys.stderr = (
    _tolerant(x) if type(x) is io.TextIOWrapper else x for x in before
  )
  try:
    yield
  finally:
    for stream in (sys.stdout, sys.stderr):
      stream.flush()
    sys.stdout, sys.stderr = before
