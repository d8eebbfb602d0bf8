"""Reads the files of a run, any of which may be missing.

Runs that were killed, diverged or have no metrics yet are read like others.
Missing files are empty; damaged parts are skipped with a warning.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from absl import logging
from etils import epath

from jaxrl_reason.reports import metrics_file

T = TypeVar('T')
# Files of which every run that has begun has some.
MARKS = ('config.json', 'metrics.jsonl', 'metrics', 'events.jsonl')


@dataclasses.dataclass
class Run:
  """One workdir.

  Attributes:
    name: of its folder, or more of the path if two have the same name.
    config: flat, by dotted key; {} if the file is missing.
    rows: of metrics.jsonl; numbers that are not finite are None.
    events: starts and ends, of events.jsonl.
    evaluations: of problems, oldest first (`evaluations/<step>.json`).
    rollouts, samples: paths, oldest first.
    problems: split -> number -> prompt (`evaluations/problems.json`).
  """

  name: str
  path: epath.Path
  config: dict[str, Any]
  rows: list[dict]
  events: list[dict]
  evaluations: list[dict]
  rollouts: list[epath.Path]
  samples: list[epath.Path]
  problems: dict[str, dict[int, str]]

  @property
  def stages(self) -> dict[str, int]:
    """Returns the first step with metrics of each stage, in order."""
    starts = {}
    for row in self.rows:
      starts.setdefault(row['stage'], row['step'])
    return starts

  def series(self, name: str) -> tuple[list[int], list[float | None]]:
    """Returns the steps and values of one metric."""
    return metrics_file.series(self.rows, name)

  def names(self) -> list[str]:
    """Returns the names of the metrics, in the order of their first
    occurrence.
    """
    return [*{k: None for row in self.rows for k in row}][2:]


def read(path: epath.PathLike, name: str = '') -> Run:
  """Reads a workdir.

  Raises:
    ValueError: the folder has no file of a run.
  """
  path = epath.Path(path)
  if not any((path / mark).exists() for mark in MARKS):
    raise ValueError(
      f'{path} is no workdir (it has none of {", ".join(MARKS)}) and no '
      'evaluation (no folder answers)'
    )
  told = metrics_file.read(path) if metrics_file.exists(path) else []
  rows = [finite(r) for r in told if _is_row(r)]
  last = max((r['step'] for r in rows), default=0)
  # A run that begins again repeats the other steps.
  evaluated = {r['step'] for r in rows if any(k.startswith('eval/') for k in r)}
  return Run(
    name or path.name,
    path,
    flat(whole(path / 'config.json')),
    rows,
    [e for e in metrics_file.lines(path / 'events.jsonl') if _is_event(e)],
    [
      e
      for p in _numbered(path / 'evaluations', '.json')
      if int(p.stem) in evaluated and is_evaluation(e := whole(p))
    ],
    [p for p in _numbered(path / 'rollouts', '.jsonl') if int(p.stem) <= last],
    [
      p
      for p in _numbered(path / 'samples', '.jsonl')
      if int(p.stem) in evaluated
    ],
    {
      split: {i: text for i, text in enumerate(texts) if isinstance(text, str)}
      for split, texts in whole(path / 'evaluations' / 'problems.json').items()
      if isinstance(texts, list)
    },
  )


def kind_of(keys: Mapping[str, Any], stage: str) -> str:
  """Returns the kind of a stage of metrics, such as rl for rl#2 or a name of
  `config.named`; keys: dotted key -> value of the run's recipe.
  """
  name = stage.partition('#')[0]
  return keys.get(f'named.{name}.kind', name)


def ends(found: Sequence[T], stage: Callable[[T], str]) -> tuple[T, T] | None:
  """Returns the last of `found` before the last stage, or else the first one,
  and the last one; None for fewer than two.
  """
  if len(found) < 2:
    return None
  last = stage(found[-1])
  earlier = [x for x in found[:-1] if stage(x) != last] or found[:1]
  return earlier[-1], found[-1]


def names(paths: list[str]) -> list[str]:
  """Returns the shortest distinct endings of paths."""
  parts = [epath.Path(p).resolve().parts for p in paths]
  n = 1
  while len({p[-n:] for p in parts}) < len({*parts}):
    n += 1
  return ['/'.join(p[-n:]) for p in parts]


def _numbered(folder: epath.Path, suffix: str) -> list[epath.Path]:
  """Lists files with numbers as names, in numeric order."""
  found = folder.iterdir() if folder.exists() else []
  named = [p for p in found if p.suffix == suffix and p.stem.isdigit()]
  return sorted(named, key=lambda p: int(p.stem))


def whole(path: epath.Path) -> dict:
  """Reads the object of a file; {} without the file."""
  if not path.exists():
    return {}
  try:
    found = json.loads(metrics_file.text_of(path))
  except (ValueError, RecursionError) as e:
    logging.warning('%s is damaged, and left out: %s', path, e)
    return {}
  return found if isinstance(found, dict) else {}


def _is_row(row) -> bool:
  """Returns whether an object is a line of metrics: numbers by name, and a
  step.
  """
  return (
    isinstance(row, dict)
    and isinstance(row.get('step'), int)
    and isinstance(row.get('stage'), str)
    and all(isinstance(v, int | float) for k, v in row.items() if k != 'stage')
  )


def _is_event(row: dict) -> bool:
  """Returns whether an object is a start with its steps, or an end."""
  steps = [row.get(k, 0) for k in ('step', 'reached')]
  known = row.get('event') in ('start', 'end')
  return known and all(isinstance(s, int) for s in steps)


def is_evaluation(row: dict) -> bool:
  """Returns whether an object is a complete evaluation."""
  splits = row.get('splits')
  if not isinstance(splits, dict) or not isinstance(row.get('stage'), str):
    return False
  return isinstance(row.get('step'), int) and all(
    isinstance(s, dict)
    and isinstance(s.get('samples'), int)
    and all(isinstance(s.get(k), list) for k in ('greedy', 'right'))
    for s in splits.values()
  )


def finite(tree: T) -> T:
  """Returns a tree in which numbers that are not finite are None, for JSON."""
  if isinstance(tree, dict):
    return {k: finite(v) for k, v in tree.items()}
  if isinstance(tree, list):
    return [finite(v) for v in tree]
  return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def flat(tree: dict, prefix: str = '') -> dict[str, Any]:
  """Returns the values of a tree by dotted key."""
  out = {}
  for key, value in tree.items():
    if isinstance(value, dict) and value:
      out |= flat(value, f'{prefix}{key}.')
    else:
      out[prefix + key] = value
  return out
