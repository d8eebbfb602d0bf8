"""Ends a run that has hung: a collective that one process never joins, a
device, a verifier or a file system that gives no answer.

A dispatch, an evaluation or a save may take `times` the median of those before,
and never less than `floor_s` seconds; while there are none to go by, `first_s`.
Time in which this process compiles, or another does, does not count.
"""

import collections
import contextlib
import statistics
import threading
import time

from jaxrl_reason.hosts import peers
from jaxrl_reason.run.process.compile_log import Log

KEPT = 100  # of a kind, that the median is of
# What a line says of a kind, after step so many.
SAID = {
  'steps': 'the steps after step {} have taken',
  'evaluation': 'the evaluation at step {} has taken',
  'save': 'the save at step {} has taken',
  'emergency': 'the emergency checkpoint at step {} has taken',
}


class Watchdog:
  """Watches a run, in a thread, while it is entered.

  Args:
    times: of the median; 0: nothing is watched.
    floor_s: seconds that anything always has.
    compiled: knows whether a program is being compiled.
    first_s: seconds, where nothing of its kind has ended yet.
  """

  def __init__(
    self, times: float, floor_s: float, compiled: Log, first_s: float
  ):
    self._times, self._floor_s, self._compiled = times, floor_s, compiled
    self._first_s = first_s
    self._took = {kind: collections.deque(maxlen=KEPT) for kind in SAID}
    self._under_way, self._excused = None, 0.0
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
    self._took['steps'].clear()

  @contextlib.contextmanager
  def watched(self, kind: str, counted: bool = True):
    """Watches what is inside.

    Args:
      kind: a key of SAID.
      counted: it is one of them, for the median.
    """
    begun, programs = time.monotonic(), self._compiled.count
    self._under_way = kind, begun
    try:
      yield
    finally:
      self._under_way = None
    if counted and self._compiled.count == programs:
      self._took[kind].append(time.monotonic() - begun)

  def limit_s(self, kind: str) -> float:
    """Seconds that one of a kind may take now."""
    took = list(self._took[kind])
    if not took:
      return max(self._floor_s, self._first_s)
    return max(self._floor_s, self._times * statistics.median(took))

  def stuck(self) -> str:
    """Returns what to say of what is under way; '' while it may go on."""
    under_way, now = self._under_way, time.monotonic()
    others = peers.active is not None and peers.active.compiling()
    if self._compiled.busy or others:
      self._excused = now
    if under_way is None:
      return ''
    kind, began = under_way
    since = now - max(began, self._excused)
    if since <= self.limit_s(kind):
      return ''
    behind = f'; {peers.active.behind()}' if peers.active else ''
    return (
      f'{SAID[kind].format(peers.standing["step"])} {since:.0f} s, where '
      f'{self._usual(kind)}{behind}. The stacks of all threads are in '
      'logs/stacks_*.txt of the workdir. Start the same command again to go on '
      'from the last checkpoint, or with a larger config.watchdog.'
      f'{"floor_s" if self._took[kind] else "first_s"} if it may take so long'
    )

  def _usual(self, kind: str) -> str:
    took = list(self._took[kind])
    if not took:
      return f'the first may take {self.limit_s(kind):.0f} s'
    return f'the median is {statistics.median(took):.2f} s'

  def _run(self) -> None:
    while not self._over.wait(min(1.0, self._floor_s / 4)):
      if line := self.stuck():
        peers.end(line)
