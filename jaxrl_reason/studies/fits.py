"""Means over seeds with t intervals, and laws fitted to runs.

  power     1 - R = c x^-b       straight in logarithms
  entropy   R = -a e^H + b       https://arxiv.org/abs/2505.22617

Both are straight lines y = k x + m by least squares. The error within a run
assumes independent points, so it is too small. Use the error over seeds
(`over`) instead.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

SAME = 1e-9  # relative difference of equal values, which are rounded


@dataclasses.dataclass(frozen=True)
class Value:
  """A mean of n values with its standard error; nan for a single value."""

  mean: float
  error: float
  n: int

  def __str__(self):
    digits = f'{self.mean:.3f}' if abs(self.mean) < 1000 else f'{self.mean:.3g}'
    if math.isnan(self.error):
      return digits
    half = f'{self.half:.3f}' if self.half < 1000 else f'{self.half:.3g}'
    return f'{digits} ± {half}'

  @property
  def half(self) -> float:
    """Returns half of the 95 % interval of the mean, by Student's t: 2.78
    standard errors for 5 values.
    """
    return self.error * float(special.stdtrit(self.n - 1, 0.975))

  @property
  def above(self) -> float:
    """Returns the probability of a mean as large as this one if it were 0 (one
    side of a t test); nan for a single value. If all values are equal, it is
    that of a sign test, since they show no spread.
    """
    if math.isnan(self.error):
      return math.nan
    if self.error <= SAME * abs(self.mean):
      below = 0.5**self.n
      return below if self.mean > 0 else 1 - below if self.mean < 0 else 0.5
    return float(special.stdtr(self.n - 1, -self.mean / self.error))


def over(values: Sequence[float]) -> Value:
  """Returns the mean of a value over seeds, and its standard error."""
  x = np.asarray(values, float)
  if not x.size:
    return Value(math.nan, math.nan, 0)
  error = x.std(ddof=1) / math.sqrt(x.size) if x.size > 1 else math.nan
  return Value(float(x.mean()), float(error), int(x.size))


@dataclasses.dataclass(frozen=True)
class Line:
  """y = slope x + offset, their standard errors, and the share of the variance
  that it explains.
  """

  slope: float
  offset: float
  slope_error: float
  offset_error: float
  r2: float


def line(x: Sequence[float], y: Sequence[float]) -> Line | None:
  """Fits a straight line; None for fewer than 3 different x."""
  x, y = np.asarray(x, float), np.asarray(y, float)
  if len(set(x.tolist())) < 3:
    return None
  columns = np.stack([x, np.ones_like(x)], 1)
  found, *_ = np.linalg.lstsq(columns, y, rcond=None)
  rest = np.square(y - columns @ found).sum()
  spread = np.linalg.inv(columns.T @ columns) * rest / max(len(x) - 2, 1)
  total = np.square(y - y.mean()).sum()
  errors = np.sqrt(np.diag(spread))
  r2 = 1 - rest / total if total else math.nan
  return Line(*map(float, (*found, *errors, r2)))


def power(x: Sequence[float], reward: Sequence[float]) -> dict[str, float]:
  """Fits 1 - R = c x^-b to the rewards before the first of 1, which has no
  logarithm; {} for too few of them. Later rewards below 1 alone would be a
  selection.
  """
  before = itertools.takewhile(lambda point: point[1] < 1, zip(x, reward))
  kept = [(a, r) for a, r in before if a > 0]
  found = line(
    [math.log(a) for a, _ in kept], [math.log(1 - r) for _, r in kept]
  )
  if found is None:
    return {}
  return {
    'b': -found.slope,
    'b_error': found.slope_error,
    'c': math.exp(found.offset),
    'c_error': math.exp(found.offset) * found.offset_error,
    'r2': found.r2,
  }


def entropy_law(
  entropy: Sequence[float], reward: Sequence[float]
) -> dict[str, float]:
  """Fits R = -a e^H + b, H in nats; {} for too few points."""
  found = line([math.exp(h) for h in entropy], reward)
  if found is None:
    return {}
  return {
    'a': -found.slope,
    'a_error': found.slope_error,
    'b': found.offset,
    'b_error': found.offset_error,
    'r2': found.r2,
  }
