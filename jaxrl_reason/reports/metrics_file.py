"""Reads metrics.jsonl and other files of JSON lines that a run has written."""

import json

from absl import logging
from etils import epath


def read(workdir: epath.PathLike) -> list[dict]:
  """Returns the rows of a workdir's metrics.jsonl, or of its parts in
  `metrics`; skips damaged lines with a warning.
  """
  workdir = epath.Path(workdir)
  parts = sorted((workdir / 'metrics').glob('*.jsonl'))
  paths = parts or [workdir / 'metrics.jsonl']
  found = [row for path in paths for row in lines(path)]
  return [row for row in found if isinstance(row.get('step'), int)]


def lines(path: epath.Path) -> list[dict]:
  """Returns the objects of a file, one per line; [] if there is no file.

  Damaged lines are left out with a warning.
  """
  if not path.exists():
    return []
  out = []
  # By '\n' alone: texts may contain other characters that end a line.
  for i, line in enumerate(text_of(path).split('\n'), 1):
    if not line.strip():
      continue
    try:
      row, problem = json.loads(line), 'no object'
    except (ValueError, RecursionError) as e:
      row, problem = None, e
    if isinstance(row, dict):
      out.append(row)
    else:
      logging.warning('%s, line %d is damaged: %s', path, i, problem)
  return out


def text_of(path: epath.Path) -> str:
  """Returns the text of a file; invalid bytes are replaced."""
  return path.read_bytes().decode('utf-8', 'replace')


def exists(workdir: epath.PathLike) -> bool:
  """Returns whether a workdir has metrics."""
  workdir = epath.Path(workdir)
  return any((workdir / name).exists() for name in ('metrics.jsonl', 'metrics'))


def series(rows: list[dict], name: str) -> tuple[list[int], list[float]]:
  """Returns the steps and values of one metric."""
  found = [(r['step'], r[name]) for r in rows if name in r]
  return [s for s, _ in found], [v for _, v in found]
