"""SIGTERM and Ctrl-C end a run after the dispatch under way, saved.

What takes machines away gives notice by SIGTERM: Cloud TPU's spot and
maintenance events by way of the agent or GKE, SLURM's --signal.
"""

import signal
import sys
import threading

from jaxrl_reason.hosts import peers


class Stopping:
  """Whether the run has been told to stop, while it is entered.

  Attributes:
    agreed: what all processes agreed on at the last `reached`.
  """

  def __init__(self):
    self._told, self._before, self.agreed = False, {}, False

  def reached(self) -> bool:
    """Tells whether to stop here, at a place that all processes come to; all
    get the same answer, though only one of them may have been told. Waits for
    no device.
    """
    alone = peers.active is None
    self.agreed = self._told if alone else peers.active.reached()
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
    if peers.active is not None:
      peers.active.tell()
    print(
      f'{signal.Signals(signum).name}: saving after the steps under way; '
      'once more to stop at once.',
      file=sys.stderr,
    )
