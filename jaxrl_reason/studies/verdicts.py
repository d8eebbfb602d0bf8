"""Decides the claims of a study, by criteria that are written before it runs.

A criterion bounds an effect. Effects are taken seed by seed and tested with
Student's t, one-sided at 0.025 (an interval of 95 % that excludes the bound).
Costs to a target (`target/...`) are tested by ranks, because some runs do not
reach it (`ranks.py`). Holm's method corrects for the number of criteria of
the study.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from jaxrl_reason.studies import fits, ranks

LEVEL = 0.025
HOLDS, PART = 'holds', 'holds in part'
NOT, UNKNOWN = 'does not hold here', 'could not tell'


@dataclasses.dataclass(frozen=True)
class Criterion:
  """A bound of an effect: of the mean over seeds of a difference.

  Exactly one of `more_than`, `less_than` and `within` is a number.

  Attributes:
    metric: final metric of the runs, or `target/steps`, `target/tokens`.
    of: the setting.
    over: the setting whose value is subtracted; '': the value of the same run
      before its first step.
    more_than, less_than: bound of the difference; one below 0 in `more_than` is
      a margin of non-inferiority.
    within: bound of the absolute difference (equivalence).
    of_gain: bounds are shares of the gain of `over` since its first step.
    ratio: the difference is one of logarithms.
  """

  metric: str
  of: str
  over: str = ''
  more_than: float | None = None
  less_than: float | None = None
  within: float | None = None
  of_gain: bool = False
  ratio: bool = False

  def __post_init__(self):
    bounds = (self.more_than, self.less_than, self.within)
    if sum(b is not None for b in bounds) != 1:
      raise ValueError(
        f'criterion on {self.metric!r}: set one of more_than, less_than, within'
      )
    if self.within is not None and self.within <= 0:
      raise ValueError(f'criterion on {self.metric!r}: within must be above 0')
    if self.of_gain and not self.over:
      raise ValueError(f'criterion on {self.metric!r}: of_gain needs over')

  def __str__(self):
    effect = f'{self.of} - {self.over or "before"}'
    if self.ratio:
      effect = f'log({self.of} / {self.over or "before"})'
    gain = f' of the gain of {self.over}' if self.of_gain else ''
    for sign, bound in ('>', self.more_than), ('<', self.less_than):
      if bound is not None:
        return f'{self.metric}: {effect} {sign} {bound:g}{gain}'
    return f'{self.metric}: |{effect}| < {self.within:g}{gain}'


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement about settings, and what it takes for it to hold.

  Attributes:
    text: the statement, with its source.
    criteria: all must hold.
  """

  text: str
  criteria: Sequence[Criterion]


@dataclasses.dataclass(frozen=True)
class Effects:
  """The values that a criterion compares.

  Attributes:
    differences: by seed.
    gains: of `over`, by seed.
    costs: of `of` and of `over`, each [(cost, reached)], for a target; a run
      that is not `reached` costs more than its number.
    left_out: number of seeds that have no difference.
  """

  differences: Sequence[float]
  gains: Sequence[float]
  costs: tuple[Sequence[ranks.Cost], Sequence[ranks.Cost]] | None = None
  left_out: int = 0


@dataclasses.dataclass(frozen=True)
class Decided:
  """A criterion after the study.

  Attributes:
    effect: over seeds.
    for_it, against_it: probability of an effect as large as this one if the
      criterion were just false, and just true; corrected by Holm's method.
    left_out: number of seeds without an effect. They leave the criterion
      undecided, because the others may be the better ones.
  """

  criterion: Criterion
  effect: fits.Value
  for_it: float
  against_it: float
  left_out: int = 0

  @property
  def verdict(self) -> str:
    """Returns `HOLDS`, `NOT` or `UNKNOWN`."""
    if self.for_it <= LEVEL:
      return HOLDS
    return NOT if self.against_it <= LEVEL else UNKNOWN


def decide(
  criteria: Sequence[Criterion],
  effects: Callable[[Criterion], Effects],
) -> list[Decided]:
  """Tests all criteria of a study.

  Args:
    effects: criterion -> the values that it compares.
  """
  compared = [effects(c) for c in criteria]
  tested = [_tested(c, x) for c, x in zip(criteria, compared)]
  # A number that is not known decides nothing, and holm cannot sort it.
  for_it = holm([1.0 if math.isnan(p) else p for _, p, _ in tested])
  against = holm([1.0 if math.isnan(p) else p for _, _, p in tested])
  values = [value for value, _, _ in tested]
  left_out = [x.left_out for x in compared]
  return [Decided(*x) for x in zip(criteria, values, for_it, against, left_out)]


def of_claim(decided: Sequence[Decided]) -> str:
  """Returns the verdict of a claim from those of its criteria. All must hold,
  so that one that does not hold decides. `PART`: some hold, the others are
  undecided.
  """
  verdicts = [d.verdict for d in decided]
  if NOT in verdicts:
    return NOT
  if UNKNOWN not in verdicts:
    return HOLDS
  return PART if HOLDS in verdicts else UNKNOWN


def holm(p: Sequence[float]) -> list[float]:
  """Corrects probabilities for their number (Holm 1979)."""
  out, last = [0.0] * len(p), 0.0
  for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
    last = out[i] = max(last, min(1.0, (len(p) - rank) * p[i]))
  return out


def _tested(c: Criterion, effects: Effects) -> tuple:
  """Returns the effect, and the probabilities for and against a criterion."""
  x, value = (
    np.asarray(effects.differences, float),
    fits.over(effects.differences),
  )
  scale = np.asarray(effects.gains, float) if c.of_gain else 1.0
  if value.n < 2 or effects.left_out:
    return value, 1.0, 1.0

  def sides(bound: float) -> tuple[float, float]:
    """Returns the probabilities of an effect as far above, and below."""
    if effects.costs is not None:
      of, over = effects.costs
      return ranks.sides(of, [(_moved(cost, bound), r) for cost, r in over])
    above = fits.over(x - bound * scale).above
    return above, 1 - above

  def _moved(cost: float, bound: float) -> float:
    return cost * math.exp(bound) if c.ratio else cost + bound

  if c.more_than is not None:
    return value, *sides(c.more_than)
  if c.less_than is not None:
    return value, *reversed(sides(c.less_than))
  (low, below), (above, high) = sides(-c.within), sides(c.within)
  return value, max(low, high), min(below, above)
