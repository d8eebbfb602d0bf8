"""What is on disk of a run, read as it is: nothing has to be there.

A run that was killed, that has diverged or that has told nothing yet is read
like any other; what is missing is empty, what is damaged is left out with a
warning.
"""

import dataclasses
import json
import math
from typing import Any

from absl import logging
from etils import epath

from jaxrl_reason.reports import metrics_file


@dataclasses.dataclass
class Run:
  """One workdir.

  Attributes:
    name: of its folder, or more of the path where two are called the same.
    config: flat, by dotted key; {} where none was written.
    rows: of metrics.jsonl, numbers that are none as None.
    events: starts and ends, of events.jsonl.
    evaluations: of problems, oldest first (`evaluations/<step>.json`).
    rollouts: paths, oldest first.
  """

  name: str
  path: epath.Path
  config: dict[str, Any]
  rows: list[dict]
  events: list[dict]
  evaluations: list[dict]
  rollouts: list[epath.Path]

  @property
  def stages(self) -> dict[str, int]:
    """The first step told of each stage, in their order."""
    starts = {}
    for row in self.rows:
      starts.setdefault(row['stage'], row['step'])
    return starts

  def series(self, name: str) -> tuple[list[int], list[float | None]]:
    """Steps and values of one metric."""
    return metrics_file.series(self.rows, name)

  def names(self) -> list[str]:
    """The metrics told, in the order in which they first were."""
    return [*{k: None for row in self.rows for k in row}][2:]


def read(path: epath.PathLike, name: str = '') -> Run:
  """Reads a workdir.

  Raises:
    ValueError: it is none: no file that a run writes is there.
  """
  path = epath.Path(path)
  marks = ('config.json', 'metrics.jsonl', 'metrics', 'events.jsonl')
  if not any((path / mark).exists() for mark in marks):
    raise ValueError(f'{path} is no workdir: it has none of {", ".join(marks)}')
  told = metrics_file.read(path) if metrics_file.exists(path) else []
  rows = [finite(r) for r in told if 'step' in r and 'stage' in r]
  last = max((r['step'] for r in rows), default=0)
  return Run(
    name or path.name,
    path,
    flat(_whole(path / 'config.json') or {}),
    rows,
    lines(path / 'events.jsonl'),
    [
      e
      for p in _numbered(path / 'evaluations', '.json')
      # Of steps that a resumed run has still to repeat: not yet.
      if int(p.stem) <= last and (e := _whole(p))
    ],
    [p for p in _numbered(path / 'rollouts', '.jsonl') if int(p.stem) <= last],
  )


def names(paths: list[str]) -> list[str]:
  """The shortest ends of paths that tell them apart."""
  parts = [epath.Path(p).resolve().parts for p in paths]
  n = 1
  while len({p[-n:] for p in parts}) < len({*parts}):
    n += 1
  return ['/'.join(p[-n:]) for p in parts]


def _numbered(folder: epath.Path, suffix: str) -> list[epath.Path]:
  """Files called by a number, in its order."""
  found = folder.iterdir() if folder.exists() else []
  named = [p for p in found if p.suffix == suffix and p.stem.isdigit()]
  return sorted(named, key=lambda p: int(p.stem))


def _whole(path: epath.Path) -> dict | None:
  if not path.exists():
    return None
  try:
    return json.loads(path.read_text())
  except ValueError as e:
    logging.warning('%s is damaged, and left out: %s', path, e)
    return None


def lines(path: epath.Path) -> list[dict]:
  """The objects of a file, a line each; [] without the file."""
  if not path.exists():
    return []
  out = []
  # By '\n' alone: texts may hold other characters that end a line.
  for i, line in enumerate(path.read_text().split('\n'), 1):
    if not line.strip():
      continue
    try:
      row, problem = json.loads(line), 'no object'
    except ValueError as e:
      row, problem = None, e
    if isinstance(row, dict):
      out.append(row)
    else:
      logging.warning('%s, line %d is left out: %s', path, i, problem)
  return out


def finite(row: dict) -> dict:
  """A row whose numbers that are none are None: JSON has no name for them."""
  return {
    k: None if isinstance(v, float) and not math.isfinite(v) else v
    for k, v in row.items()
  }


def flat(tree: dict, prefix: str = '') -> dict[str, Any]:
  """The values of a tree by dotted key."""
  out = {}
  for key, value in tree.items():
    if isinstance(value, dict) and value:
      out |= flat(value, f'{prefix}{key}.')
    else:
      out[prefix + key] = value
  return out
