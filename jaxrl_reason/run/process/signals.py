"""Saves and ends a run after the current dispatch on SIGTERM, SIGHUP or Ctrl-C.

Cloud TPU's spot and maintenance events (through the agent or GKE), SLURM's
--signal and systemd send SIGTERM before they stop a machine; a terminal that is
closed sends SIGHUP. They may send the signal to every process of the job, and
repeatedly, so only a second Ctrl-C ends the run without a checkpoint.
"""

import contextlib
import os
import signal
import time

from jaxrl_reason import command
from jaxrl_reason.command import SAVED as SAVED
from jaxrl_reason.command import SIGNALS as SIGNALS
from jaxrl_reason.hosts import peers

# A terminal and `timeout` send the same signal twice within milliseconds.
AGAIN_S = 1.0


class Stopping:
  """Records a request to stop while it is entered.

  Attributes:
    agreed: whether all processes agreed to stop at the last `reached`.
  """

  def __init__(self):
    self._requested, self.agreed = 0.0, False
    self._handled = command.on_signals(self._request)

  def reached(self) -> bool:
    """Returns True if all processes stop here.

    Every process calls this at the same points and gets the same answer, even
    if only one of them received a signal. Waits for no device.
    """
    alone = peers.active is None
    self.agreed = bool(self._requested) if alone else peers.active.reached()
    return self.agreed

  def __enter__(self) -> 'Stopping':
    self._handled.__enter__()
    return self

  def __exit__(self, *error):
    self._handled.__exit__(*error)

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
