"""Ranges of the numbers in a config and in the flags of a command.

A field of a record names its range as its type: `samples: Count = 8`.
`check` refuses a number outside its range with key, value and range.
"""

import math
import numbers
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

MOST = 2**31 - 1  # of a whole number: programs count in int32


class Range(NamedTuple):
  """Numbers from low to high; both are included by default."""

  low: float
  high: float = math.inf
  whole: bool = True
  above: bool = False  # low itself is out
  below: bool = False  # high itself is out

  def holds(self, value: Any) -> bool:
    """Returns whether a value is a number of this range."""
    kind = numbers.Integral if self.whole else numbers.Real
    if not isinstance(value, kind) or isinstance(value, bool):
      return False
    if self.whole and value > MOST:
      return False
    low = value > self.low if self.above else value >= self.low
    high = value < self.high if self.below else value <= self.high
    try:
      return low and high and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
      return False

  def refusal(self, value: Any) -> str:
    """Returns the end of the message that refuses a value."""
    whole = self.whole and isinstance(value, int)
    large = whole and value > MOST and math.isinf(self.high)
    return f'must be {self}' + f' and at most {MOST:,}' * large

  def __str__(self):
    kind = 'a whole number' if self.whole else 'a number'
    words = (
      f'{kind} {"above" if self.above else "of at least"} {_shown(self.low)}'
    )
    if math.isinf(self.high):
      return words
    return (
      f'{words} and {"below" if self.below else "at most"} {_shown(self.high)}'
    )


def _shown(bound: float) -> str:
  """Returns a bound as text, whole numbers with all their digits."""
  return f'{bound:,}' if isinstance(bound, int) else f'{bound:g}'


COUNT = Range(1)
COUNT_OR_NONE = Range(0)
POSITIVE = Range(0, whole=False, above=True)
AMOUNT = Range(0, whole=False)
SHARE = Range(0, 1, whole=False)
NUCLEUS = Range(0, 1, whole=False, above=True)
MEMORY = Range(0, 1, whole=False, below=True)  # of a running mean
PENALTY = Range(-2, 2, whole=False)  # as in OpenAI's API and vLLM
SEED = Range(0, MOST)

# Types of fields.
Count = Annotated[int, COUNT]
CountOrNone = Annotated[int, COUNT_OR_NONE]
Positive = Annotated[float, POSITIVE]
Amount = Annotated[float, AMOUNT]
Share = Annotated[float, SHARE]
Nucleus = Annotated[float, NUCLEUS]
Memory = Annotated[float, MEMORY]
Penalty = Annotated[float, PENALTY]
Seed = Annotated[int, SEED]

# Flags of sampling in `generate`, `evaluate` and `curate`.
SAMPLING = {
  'temperature': AMOUNT,
  'top_k': COUNT_OR_NONE,
  'top_p': NUCLEUS,
  'min_p': SHARE,
  'repetition_penalty': POSITIVE,
  'presence_penalty': PENALTY,
  'frequency_penalty': PENALTY,
}
# Flags of a forced token budget (`rollouts/forcing.py`).
FORCING = {'least': COUNT_OR_NONE, 'most': COUNT_OR_NONE}
# Flags that `evaluate` and `curate` share.
EVALUATE = {
  **{k: v for k, v in SAMPLING.items() if k != 'temperature'},
  **FORCING,
  'power': Range(1, whole=False),
  'moves': COUNT_OR_NONE,
  'simulations': COUNT_OR_NONE,
  'candidates': COUNT_OR_NONE,
  'step_tokens': COUNT_OR_NONE,
  'top_logprobs': COUNT_OR_NONE,
  'chunk': COUNT_OR_NONE,
  'carry': COUNT_OR_NONE,
  'k': COUNT_OR_NONE,
  'batch': COUNT,
  'max_new': COUNT_OR_NONE,
  'seed': SEED,
  'ngram': COUNT,
  'contamination_limit': SHARE,
  'workers': COUNT,
  'timeout_s': POSITIVE,
}
CURATE = {
  'k': COUNT,
  'temperature': POSITIVE,
  'near_duplicates': SHARE,
  'heldout': MEMORY,
}


def check(
  values: Mapping[str, Any], table: Mapping[str, Range], prefix: str = ''
) -> None:
  """Refuses values outside their range.

  Args:
    values: by key. Keys without a row in the table are not checked.
    prefix: written before a key: '--' for the flags of a command.

  Raises:
    ValueError: names key, value and range.
  """
  for key, range_ in table.items():
    if key in values and not range_.holds(values[key]):
      value = values[key]
      raise ValueError(f'{prefix}{key}={value!r}: {range_.refusal(value)}')
