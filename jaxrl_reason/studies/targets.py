"""Computes what runs of a study cost until a target, and what a cost buys.

For a target, evaluations before the first step do not count: they have no cost.
"""

import collections
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxrl_reason.reports import metrics_file
from jaxrl_reason.studies.grid import Study
from jaxrl_reason.studies.metric_names import EVAL

TOKENS = 'train/tokens'


def of_seed(
  study: Study, folders: Mapping[tuple[str, int], pathlib.Path], seed: int
) -> tuple[str, float]:
  """Returns the metric and the value of the target of a seed; infinity without
  the run whose best value it is.

  Args:
    folders: workdirs by (setting, seed).
  """
  metric, value = study.target
  if not isinstance(value, str):
    return metric, value
  folder = folders.get((value, seed))
  rows = metrics_file.read(folder) if folder else []
  values = [r[metric] for r in rows if metric in r and r['step'] > 0]
  values = [x for x in values if not math.isnan(x)]
  return metric, max(values, default=math.inf)


def reach(
  rows: Sequence[Mapping], metric: str, value: float
) -> tuple[float, float, bool]:
  """Returns the steps and sampled tokens until a metric first reaches a value,
  and True; or those of the whole run, and False.
  """
  tokens = 0.0
  for row, tokens in sampled(rows):
    if row['step'] > 0 and row.get(metric, -math.inf) >= value:
      return float(row['step']), tokens, True
  steps = max((row['step'] for row in rows if TOKENS in row), default=0)
  return float(steps), tokens, False


def sampled(rows: Sequence[Mapping]) -> Iterator[tuple[Mapping, float]]:
  """Yields each row with the number of tokens that the run has sampled by its
  step.
  """
  tokens, before = 0.0, 0
  for row in rows:
    if TOKENS in row:
      tokens += row[TOKENS] * (row['step'] - before)
      before = row['step']
    yield row, tokens


def at_tokens(rows: Sequence[Mapping], tokens: int) -> dict[str, float]:
  """Returns the metrics of evaluations when a run has sampled a number of
  tokens, by linear interpolation; none if it samples fewer.
  """
  seen = collections.defaultdict(dict)
  for row, count in sampled(rows):
    for metric in row:
      if metric.startswith(EVAL):
        seen[metric][count] = row[metric]
  return {
    metric: float(np.interp(tokens, [*curve], [*curve.values()]))
    for metric, curve in seen.items()
    if min(curve) <= tokens <= max(curve)
  }
