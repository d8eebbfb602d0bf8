"""Starts Python interpreters that serve this process over a socket."""

import os
import signal
import socket
import subprocess
import sys

# The processes are the parallelism.
ONE_THREAD = {
  'OMP_NUM_THREADS': '1',
  'OPENBLAS_NUM_THREADS': '1',
  'MKL_NUM_THREADS': '1',
}
# A job may get these in every process. They are for the process that starts the
# interpreters, which needs their answers for its last steps.
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Comes before all imports. A handler, because programs that an interpreter
# starts would inherit an ignored signal.
PROLOGUE = f"""import signal
for number in {tuple(map(int, STOPS))}: signal.signal(number, lambda *_: None)
"""


def restore_stops_in_forks() -> None:
  """Makes the signals of STOPS end later forks of this process."""

  def restore():
    for number in STOPS:
      signal.signal(number, signal.SIG_DFL)

  os.register_at_fork(after_in_child=restore)


def environment() -> dict[str, str]:
  """Returns this process's environment; imports are found as here."""
  path = os.pathsep.join(p or os.getcwd() for p in sys.path)
  return {**os.environ, 'PYTHONPATH': path}


def start(
  code: str, *flags: str, env: dict[str, str], **options
) -> tuple[subprocess.Popen, socket.socket]:
  """Starts an interpreter that ignores STOPS; returns the process and the
  socket to it.

  Args:
    code: its program, with {} for the descriptor of its end of the socket.
    flags: of Python.
    options: of `subprocess.Popen`.
  """
  ours, theirs = socket.socketpair()
  with theirs:
    process = subprocess.Popen(
      [sys.executable, *flags, '-c', PROLOGUE + code.format(theirs.fileno())],
      env=env,
      pass_fds=[theirs.fileno()],
      stdin=subprocess.DEVNULL,
      start_new_session=True,  # Ctrl-C is for this process alone
      **options,
    )
  return process, ours
