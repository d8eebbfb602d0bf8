"""Reads the records that a run writes into its workdir."""

import json


def trained(workdir) -> list[dict]:
  """Returns the metrics of the steps of the rl stage, without timings."""
  text = (workdir / 'metrics.jsonl').read_text()
  rows = [json.loads(x) for x in text.splitlines()]
  return [
    {k: v for k, v in row.items() if not k.startswith('perf/')}
    for row in rows
    if row['stage'] == 'rl' and 'train/loss' in row
  ]


def rollouts(workdir) -> list[list[dict]]:
  """Returns the records of each step in `rollouts/`."""
  files = sorted((workdir / 'rollouts').glob('*.jsonl'))
  return [[json.loads(x) for x in p.read_text().splitlines()] for p in files]
