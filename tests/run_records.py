"""Reads the records that a run writes into its workdir."""

import json
import shutil

from jaxrl_reason.run import train


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


def check_resumed(config, workdir, folder) -> None:
  """Checks that a run, resumed from its checkpoint before the last one, repeats
  the steps of the whole run.

  Args:
    workdir: of the whole run; folder: for its copy.
  """
  shutil.copytree(workdir, folder, dirs_exist_ok=True)
  saved = folder / 'checkpoints'
  *_, kept, last = sorted(int(p.name) for p in saved.glob('[0-9]*'))
  shutil.rmtree(saved / str(last))
  for path in (folder / 'rollouts').glob('*.jsonl'):
    if int(path.stem) > kept:
      path.unlink()
  state = train.run(config, folder)
  assert int(state.step) == last > kept
  assert len(trained(folder)) >= 2 and trained(folder) == trained(workdir)
  assert rollouts(folder) == rollouts(workdir)
