"""Ends a run whose step has hung: a collective that one process never joins, a
device or a file system that gives no answer.

A step may take `times` the median of those before, and never less than
`floor_s` seconds. Not watched are the first steps of a stage (there is no
median yet), evaluations and saves; time in which this process compiles, or
another does, does not count.
"""

import collections
import contextlib
import statistics
import threading
import time

from jaxrl_reason.hosts import peers
from jaxrl_reason.run.compile_log import Log

KEPT = 100  # dispatches that the median is of


class Watchdog:
  """Watches the dispatches of a run, in a thread, while it is entered.

  Args:
    times: of the median; 0: nothing is watched.
    floor_s: seconds that a dispatch always has.
    compiled: knows whether a program is being compiled.
  """

  def __init__(self, times: float, floor_s: float, compiled: Log):
    self._times, self._floor_s, self._compiled = times, floor_s, compiled
    self._took = collections.deque(maxlen=KEPT)
    self._began, self._excused = None, 0.0
    self._over = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='watchdog', daemon=True
    )

  def __enter__(self) -> 'Watchdog':
    if self._times:
      self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self._over.set()

  def forget(self) -> None:
    """Begins a stage: its steps are others."""
    self._took.clear()

  @contextlib.contextmanager
  def watched(self, counted: bool = True):
    """Watches what is inside; `counted`: it is one dispatch, for the median."""
    begun, programs = time.monotonic(), self._compiled.count
    self._began = begun
    try:
      yield
    finally:
      self._began = None
    if counted and self._compiled.count == programs:
      self._took.append(time.monotonic() - begun)

  def limit_s(self) -> float | None:
    """Seconds that a dispatch may take now; None: nothing to go by yet."""
    took = list(self._took)
    if not took:
      return None
    return max(self._floor_s, self._times * statistics.median(took))

  def stuck(self) -> str:
    """What to say of the dispatch under way; '' while it may go on."""
    began, limit, now = self._began, self.limit_s(), time.monotonic()
    others = peers.active is not None and peers.active.compiling()
    if self._compiled.busy or others:
      self._excused = now
    if began is None or limit is None:
      return ''
    since = now - max(began, self._excused)
    if since <= limit:
      return ''
    step, usual = peers.standing['step'], statistics.median(self._took)
    behind = f'; {peers.active.behind()}' if peers.active else ''
    return (
      f'the steps after step {step} have taken {since:.0f} s, where the median '
      f'is {usual:.2f} s{behind}. The stacks of all threads are in '
      'logs/stacks_*.txt of the workdir. Start the same command again to go on '
      'from the last checkpoint, or with a larger config.watchdog.floor_s if '
      'steps may take so long'
    )

  def _run(self) -> None:
    while not self._over.wait(min(1.0, self._floor_s / 4)):
      if line := self.stuck():
        peers.end(line)
