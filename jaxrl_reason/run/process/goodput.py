"""Computes the share of a run's wall time that was spent on training.

Counted since the last start of the run. Steps for which an earlier start wrote
metrics, but no checkpoint, are repeated: that time is lost.
"""

import contextlib
import time

from jaxrl_reason.run.process.compile_log import Log

PARTS = (
  *('train', 'compile', 'verification', 'evaluation'),
  *('save', 'restore', 'lost'),
)


class Spent:
  """Seconds of a run by activity.

  Args:
    started: time.monotonic() of the run's start.
    compiled: counts the seconds of compiling.
  """

  def __init__(self, started: float, compiled: Log):
    self._started, self._compiled = started, compiled
    self._s, self._lost_steps = dict.fromkeys(PARTS, 0.0), 0
    self._within = 0.0  # seconds of activities inside the current one

  @contextlib.contextmanager
  def on(self, part: str):
    """Counts the seconds inside, except those of nested activities; within
    training, compiling is counted separately.
    """
    begun, compiled = time.monotonic(), self._compiled.seconds
    within, self._within = self._within, 0.0
    yield
    whole = time.monotonic() - begun
    took, self._within = whole - self._within, within + whole
    if part == 'train':
      compiled = self._compiled.seconds - compiled
      self._s['compile'] += compiled
      took -= compiled
    self._s[part] += took

  def count(self, part: str, seconds: float) -> None:
    """Counts seconds of an activity inside the current one."""
    self._s[part] += seconds
    self._within += seconds

  def lose(self, steps: int, seconds: float) -> None:
    """Counts steps that are repeated."""
    self._lost_steps += steps
    self._s['lost'] += seconds

  def metrics(self) -> dict[str, float]:
    """Returns metrics by full name; seconds since the start."""
    wall, s = time.monotonic() - self._started, self._s
    out = {'perf/goodput': max(0.0, s['train'] - s['lost']) / wall}
    rest = {k: v for k, v in s.items() if k != 'train'}
    out |= {f'perf/spent/{k}_s': v for k, v in rest.items()}
    return out | {'perf/spent/lost_steps': float(self._lost_steps)}

  def told(self) -> str:
    """Returns the seconds as a line of text."""
    wall, s = time.monotonic() - self._started, self._s
    good = max(0.0, s['train'] - s['lost'])
    rest = ', '.join(f'{k} {s[k]:.1f}' for k in PARTS[1:])
    other = max(0.0, wall - sum(s.values()) + s['lost'])
    return (
      f'Goodput {good / wall:.0%}: {good:.1f} of {wall:.1f} s trained; seconds '
      f'of {rest} ({self._lost_steps} steps made again), start and rest '
      f'{other:.1f}'
    )


class Timed:
  """A data iterator that counts the seconds waited for it."""

  def __init__(self, data):
    self._data, self.seconds = data, 0.0
    self.get_state, self.set_state = data.get_state, data.set_state

  def __iter__(self) -> 'Timed':
    return self

  def __next__(self) -> dict:
    begun = time.monotonic()
    try:
      return next(self._data)
    finally:
      self.seconds += time.monotonic() - begun
