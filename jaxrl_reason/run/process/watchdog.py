"""Ends a run that hangs: a process does not join a collective, or a device, a
verifier or a file system does not respond.

A dispatch, an evaluation or a save may take `times` the median of its
predecessors, and at least `floor_s` seconds. The first of its kind may take
`first_s`. Time in which a process compiles, or is stopped, does not count.
"""

import collections
import contextlib
import statistics
import threading
import time

from jaxrl_reason.hosts import peers
from jaxrl_reason.run.process.compile_log import Log

KEPT = 100  # durations of a kind for the median
# The message for a kind, after step so many.
SAID = {
  'steps': 'the steps after step {} have taken',
  'evaluation': 'the evaluation at step {} has taken',
  'save': 'the save at step {} has taken',
  'last save': 'the writing of the checkpoint at step {} has taken',
  'emergency': 'the emergency checkpoint at step {} has taken',
}


class Watchdog:
  """Watches a run, in a thread, while it is entered.

  Args:
    times: of the median; 0: nothing is watched.
    floor_s: no limit is shorter, seconds.
    compiled: reports whether a program is being compiled.
    first_s: limit for the first of a kind, seconds.
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
    """Drops the durations of the previous stage."""
    self._took['steps'].clear()

  @contextlib.contextmanager
  def watched(self, kind: str, counted: bool = True):
    """Limits the duration of the code inside.

    Args:
      kind: a key of SAID.
      counted: whether its duration counts for the median.
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
    """Returns the current limit of a kind, in seconds."""
    took = list(self._took[kind])
    if not took:
      return max(self._floor_s, self._first_s)
    return max(self._floor_s, self._times * statistics.median(took))

  def stuck(self) -> str:
    """Returns the message if the limit is exceeded, otherwise ''."""
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
    for paused in peers.looks(self._over, min(1.0, self._floor_s / 4)):
      if paused:
        self._excused = time.monotonic()
      if line := self.stuck():
        peers.end(line)
