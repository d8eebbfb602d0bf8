"""Saves and ends a run after the current dispatch on SIGTERM, SIGHUP or Ctrl-C.

Cloud TPU's spot and maintenance events (through the agent or GKE), SLURM's
--signal and systemd send SIGTERM before they stop a machine; a terminal that is
closed sends SIGHUP. They may send the signal to every process of the job, and
repeatedly, so only a second Ctrl-C ends the run without a checkpoint.
"""

import contextlib
import os
import signal
import threading
import time

from jaxrl_reason.hosts import peers

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A terminal and `timeout` send the same signal twice within milliseconds.
AGAIN_S = 1.0
# Exit code of a saved run that a signal stopped: the same command resumes it
# (EX_TEMPFAIL of sysexits.h). 0 is a finished run.
SAVED = 75


class Stopping:
  """Records a request to stop while it is entered.

  Attributes:
    agreed: whether all processes agreed to stop at the last `reached`.
  """

  def __init__(self):
    self._requested, self._before, self.agreed = 0.0, {}, False

  def reached(self) -> bool:
    """Returns True if all processes stop here.

    Every process calls this at the same points and gets the same answer, even
    if only one of them received a signal. Waits for no device.
    """
    alone = peers.active is None
    self.agreed = bool(self._requested) if alone else peers.active.reached()
    return self.agreed

  def __enter__(self) -> 'Stopping':
    # Python delivers signals to the main thread only.
    if threading.current_thread() is threading.main_thread():
      for s in SIGNALS:
        # nohup ignores SIGHUP, so that the run outlives its terminal.
        if signal.getsignal(s) is not signal.SIG_IGN:
          self._before[s] = signal.signal(s, self._request)
    return self

  def __exit__(self, *_):
    for s, handler in self._before.items():
      signal.signal(s, handler)

  def _request(self, signum, frame):
    del frame
    now = time.monotonic()
    if self._requested:
      if signum == signal.SIGINT and now - self._requested > AGAIN_S:
        raise KeyboardInterrupt
      return
    self._requested = now
    if peers.active is not None:
      peers.active.ask_to_stop()
    name = signal.Signals(signum).name
    line = f'{name}: saving after the steps under way; Ctrl-C stops at once.\n'
    # Not print: the signal may have interrupted one. The reader may be gone.
    with contextlib.suppress(OSError):
      os.write(2, line.encode())
