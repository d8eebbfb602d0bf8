"""Computes when the runs of a study first reach its target.

Evaluations before the first step do not count, because they have no cost.
"""

import math
import pathlib
from collections.abc import Mapping, Sequence

from jaxrl_reason.reports import metrics_file
from jaxrl_reason.studies.grid import Study

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
  tokens, before = 0.0, 0
  for row in rows:
    if TOKENS in row:
      tokens += row[TOKENS] * (row['step'] - before)
      before = row['step']
    if row['step'] > 0 and row.get(metric, -math.inf) >= value:
      return float(row['step']), tokens, True
  return float(before), tokens, False
