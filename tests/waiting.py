"""Polls for events of other processes, which may have to wait for a core."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
  """Returns whether a condition becomes true within a limit."""
  end = time.monotonic() + seconds
  while not (held := condition()) and time.monotonic() < end:
    time.sleep(0.01)
  return held
