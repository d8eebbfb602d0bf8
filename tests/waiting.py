"""What other processes do, they do when they get a core: tests poll for it."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
  """Whether it comes true; the limit is for what never does."""
  end = time.monotonic() + seconds
  while not (held := condition()) and time.monotonic() < end:
    time.sleep(0.01)
  return held
