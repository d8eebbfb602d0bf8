"""Measures the KL divergence of the runs of a study to their warm starts.

CELL/base_kl    an evaluation of the run, as `evaluate --base` writes it
"""

import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

from etils import epath

from jaxrl_reason.config import RL, Eval, Run
from jaxrl_reason.evals import evaluation
from jaxrl_reason.evals.cell_settings import Options
from jaxrl_reason.run.records import events, journal
from jaxrl_reason.studies.metric_names import KL

FOLDER = 'base_kl'


def measure(
  source: str,
  runs: Iterable[tuple[pathlib.Path, Run]],
  say: Callable[[str], Any],
) -> None:
  """Samples answers of the runs that have ended, and scores them under their
  warm starts. Finished evaluations are not repeated.

  Args:
    source: of the data; its held-out problems are answered.
    runs: workdirs and configurations.
  """
  for folder, config in runs:
    finished = events.last_end(folder) == 'finished'
    if finished and _source(folder) != source:
      say(f'KL divergence of {folder.name}')
      own = config.init_from, config.eval, config.rl
      evaluation.run(_options(source, folder, *own), say, journal.bar)


def _result(folder: pathlib.Path) -> dict | None:
  """Returns the result of the evaluation of a run; None if there is none."""
  path = folder / FOLDER / 'results.json'
  if not path.exists():
    return None
  (found,) = json.loads(path.read_text())['results']
  return found


def _source(folder: pathlib.Path) -> str:
  """Returns the source on which a run was measured; '' if on none."""
  found = _result(folder)
  return found['suite'].rpartition('/')[2] if found else ''


def _options(
  source: str, folder: pathlib.Path, base: str, e: Eval, rl: RL
) -> Options:
  return Options(
    models=[str(folder)],
    base=base,
    suites=[f'run:heldout/{source}?n={e.problems}'],
    out=epath.Path(folder / FOLDER),
    k=e.samples,
    greedy=False,
    batch=e.rows(rl),
  )


def read(folder: pathlib.Path) -> dict[str, float]:
  """Returns the column of a run; {} if it was not measured."""
  found = _result(folder)
  return {KL: found['metrics'][KL]['value']} if found else {}
