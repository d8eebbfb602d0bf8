"""Reads the metrics.jsonl that a run has written."""

import json

from etils import epath


def read(workdir: epath.PathLike) -> list[dict]:
  """The rows of a workdir's metrics.jsonl."""
  text = (epath.Path(workdir) / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def series(rows: list[dict], name: str) -> tuple[list[int], list[float]]:
  """Steps and values of one metric."""
  found = [(r['step'], r[name]) for r in rows if name in r]
  return [s for s, _ in found], [v for _, v in found]
