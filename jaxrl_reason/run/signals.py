"""SIGTERM and Ctrl-C end a run at the next interval, saved."""

import signal
import sys
import threading

from jaxrl_reason import hosts


class Stopping:
  """Whether the run has been told to stop, while it is entered.

  Attributes:
    agreed: what all hosts agreed on at the last `agree`.
  """

  def __init__(self):
    self._told, self._before, self.agreed = False, {}, False

  def agree(self) -> bool:
    """Asks whether any host was told to; between two intervals, by all."""
    self.agreed = any(hosts.gather(self._told))
    return self.agreed

  def __enter__(self) -> 'Stopping':
    # Python delivers signals to the main thread only.
    if threading.current_thread() is threading.main_thread():
      for s in (signal.SIGTERM, signal.SIGINT):
        self._before[s] = signal.signal(s, self._stop)
    return self

  def __exit__(self, *_):
    for s, handler in self._before.items():
      signal.signal(s, handler)

  def _stop(self, signum, frame):
    del frame
    if self._told:
      raise KeyboardInterrupt  # the second time: at once
    self._told = True
    print(
      f'{signal.Signals(signum).name}: saving at the end of this interval; '
      'once more to stop at once.',
      file=sys.stderr,
    )
