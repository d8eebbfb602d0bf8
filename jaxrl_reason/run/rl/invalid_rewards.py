"""Reports rewards that failed, and stops a run if too many of them fail.

A reward that raises an exception or exceeds its time limit gives an invalid
verdict, whose row is masked. If it fails on most rows, the other rows are a
biased sample of the completions.
"""

from collections.abc import Callable, Iterable
from typing import Any

from jaxrl_reason.rollouts.host import Answered, RewardFailed

STATE = 'steps', 'rows', 'invalid', 'first', 'reported'


class InvalidRewards:
  """Counts invalid rewards over an interval of steps, on all hosts; part of a
  checkpoint.

  Args:
    limit: share of invalid rewards in an interval above which the run stops.
    every: steps of an interval.
    say: prints a line.
  """

  def __init__(self, limit: float, every: int, say: Callable[[str], None]):
    self._limit, self._every, self._say = limit, every, say
    self._reported = False
    self._clear()

  def _clear(self) -> None:
    self._steps = self._rows = self._invalid = 0
    self._first = ''

  def get_state(self) -> dict[str, Any]:
    """Returns the counts of the unfinished interval."""
    return {name: getattr(self, f'_{name}') for name in STATE}

  def set_state(self, state: dict[str, Any]) -> None:
    """Continues the interval of `get_state`."""
    for name in STATE:
      setattr(self, f'_{name}', state[name])

  def add(self, answers: Iterable[Answered]) -> None:
    """Counts the verdicts of a step.

    Raises:
      RewardFailed: at the end of an interval, its share is above the limit.
    """
    for answered in answers:
      valid = answered.reward.valid
      self._rows += len(valid)
      self._invalid += int((~valid).sum())
      failed = (v for v in answered.verdicts if not v.valid)
      verdict = None if self._first else next(failed, None)
      if verdict is not None:
        self._first = f'{verdict.status}: {verdict.detail}'
    self._steps += 1
    # Above it after a start with a smaller log_every.
    if self._steps >= self._every:
      self._check()
      self._clear()

  def _check(self) -> None:
    """Prints the first failure of consecutive intervals with failures."""
    share = self._invalid / max(self._rows, 1)
    text = (
      f'{self._invalid} of {self._rows} rewards of {self._steps} steps are '
      f'invalid ({share:.0%}); the first is {self._first or "of another host"}'
    )
    if share > self._limit:
      raise RewardFailed(
        f'{text}. This is above rl.invalid_limit={self._limit:g}: correct the '
        'reward, or raise rl.timeout_s if it needs more time'
      )
    if self._invalid and not self._reported:
      self._say(f'{text}. Their rows are masked.')
    self._reported = self._invalid > 0
