"""Prints a line for a process that died without printing one.

jax aborts a process when its coordinator has died, and a kill prints nothing at
all. A child of the process reads a pipe; when the pipe breaks, the child prints
the line that it received last. The run does not depend on the child: if the
child is gone or does not read, lines are dropped.
"""

import os
import signal
import subprocess
import sys

# It imports nothing, so that it starts in milliseconds and needs few megabytes.
CHILD = """
last = b''
with open(0, 'rb', buffering=0) as pipe:
  rest = b''
  while block := pipe.read(65536):
    *lines, rest = (rest + block).split(b'\\n')
    last = lines[-1] if lines else last
if last:
  import os
  os.write(2, last + b'\\n')
"""
# systemd and Slurm send these to every process of a job, the child included. It
# ends when its pipe breaks, and by SIGKILL.
BLOCKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_child = None


def begin() -> None:
  """Starts the child, in a session of its own and with signals blocked."""
  global _child
  # Children inherit the mask; a handler set in the child would come too late
  # for a signal that arrives while it starts.
  before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
  try:
    _child = subprocess.Popen(
      [sys.executable, '-S', '-E', '-c', CHILD],
      stdin=subprocess.PIPE,
      start_new_session=True,
    )
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
  # A stopped child must not stop this process when the pipe is full.
  os.set_blocking(_child.stdin.fileno(), False)


def prepare(line: str) -> None:
  """Sets the line that the child prints if this process ends without one."""
  if _child is None:
    return
  try:
    data = line.encode('utf-8', 'backslashreplace') + b'\n'
    os.write(_child.stdin.fileno(), data)
  except OSError:
    return  # the child is gone or full: the run goes on without last words


def cancel() -> None:
  """Cancels the line: this process prints its own."""
  prepare('')
