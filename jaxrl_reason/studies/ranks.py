"""Tests which of two groups of runs needs less to reach a target, by ranks.

A run that does not reach it costs more than its number (it is censored), so
its order relative to some runs is unknown. Gehan's statistic counts, over all
pairs of runs, which one costs more, where that is known. Without censored runs
it is that of Mann and Whitney. Its probability is that of the permutations of
the runs (Gehan 1965, https://doi.org/10.1093/biomet/52.1-2.203). It assumes
that runs of both groups are censored alike.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

# (steps or tokens, whether the run comes to the target)
Cost = tuple[float, bool]


def scores(costs: Sequence[Cost]) -> np.ndarray:
  """Returns, for each run, the number of runs that are known to cost less,
  minus the number of those that are known to cost more.

  Returns:
    [N] integers.
  """
  cost = np.array([value for value, _ in costs], float)
  reached = np.array([r for _, r in costs], bool)
  # [N, N]: the run of the row costs more than that of the column.
  later = (cost[:, None] > cost) | (~reached[:, None] & (cost[:, None] == cost))
  more = later & reached
  return more.sum(1) - more.sum(0)


def sides(a: Sequence[Cost], b: Sequence[Cost]) -> tuple[float, float]:
  """Returns the probabilities, if both groups cost the same, of a statistic as
  far above as this one (`a` costs more), and as far below. They are exact.

  Args:
    a, b: the runs of both groups; at least one run each.
  """
  pooled = scores([*a, *b]).tolist()
  seen, ways = sum(pooled[: len(a)]), _sums(pooled, len(a))
  above = sum(n for total, n in ways.items() if total >= seen)
  below = sum(n for total, n in ways.items() if total <= seen)
  return above / ways.total(), below / ways.total()


def _sums(values: Sequence[int], k: int) -> Counter[int]:
  """Counts the subsets of k values by their sum."""
  by_size = [Counter({0: 1}), *(Counter() for _ in range(k))]
  for value in values:
    for size in range(k, 0, -1):
      for total, n in by_size[size - 1].items():
        by_size[size][total + value] += n
  return by_size[k]
