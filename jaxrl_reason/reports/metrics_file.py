"""Reads the metrics.jsonl of a run."""

import json

from absl import logging
from etils import epath


def read(workdir: epath.PathLike) -> list[dict]:
  """Returns the rows of a workdir's metrics.jsonl, or of its parts in
  `metrics`; skips damaged lines with a warning.
  """
  workdir, rows = epath.Path(workdir), []
  parts = sorted((workdir / 'metrics').glob('*.jsonl'))
  for path in parts or [workdir / 'metrics.jsonl']:
    for i, line in enumerate(_text(path).splitlines(), 1):
      try:
        rows.append(json.loads(line))
      except ValueError as e:
        logging.warning('%s, line %d is damaged: %s', path, i, e)
  return rows


def _text(path: epath.Path) -> str:
  """Reads a file as text; invalid bytes are replaced."""
  return path.read_bytes().decode('utf-8', 'replace')


def exists(workdir: epath.PathLike) -> bool:
  """Returns whether a workdir has metrics."""
  workdir = epath.Path(workdir)
  return any((workdir / name).exists() for name in ('metrics.jsonl', 'metrics'))


def series(rows: list[dict], name: str) -> tuple[list[int], list[float]]:
  """Returns the steps and values of one metric."""
  found = [(r['step'], r[name]) for r in rows if name in r]
  return [s for s, _ in found], [v for _, v in found]
