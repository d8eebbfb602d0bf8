"""Records the problems that an evaluation solved: `evaluations/<step>.json`.

  {"step": 100, "stage": "rl", "splits": {"heldout": {"samples": 4,
   "greedy": [1, 0], "right": [3, 0]}}}

`greedy` has the score of the greedy completion of every problem, and `right`
the number of correct samples. Reports compute errors, pass@k and the problems
gained and lost from these.
"""

import json
from collections.abc import Mapping, Sequence

from etils import epath

from jaxrl_reason.checkpoints import files
from jaxrl_reason.evals import scores


def counted(rows: Sequence[Mapping]) -> dict:
  """Returns the entry of a split from its records; sample 0 of a problem is
  greedy.
  """
  greedy: dict[int, float] = {}
  right: dict[int, int] = {}
  samples = 0
  for row in rows:
    number, sample = row['problem'], row['sample']
    samples = max(samples, sample)
    if sample == 0:
      greedy[number] = row['verdict']['score']
    else:
      right[number] = right.get(number, 0) + scores.is_right(row)
  return {
    'samples': samples,
    'greedy': [greedy[i] for i in sorted(greedy)],
    'right': [right[i] for i in sorted(right)],
  }


def write_problems(
  workdir: epath.Path, prompts: Mapping[str, Sequence[str]], total: int
) -> None:
  """Writes the prompts of each split for reports, at the first evaluation."""
  path = workdir / 'evaluations' / 'problems.json'
  if total == 0 or not path.exists():
    path.parent.mkdir(exist_ok=True)
    files.write_whole(path, json.dumps(prompts, ensure_ascii=False) + '\n')


def write(
  workdir: epath.Path, splits: dict[str, dict], total: int, stage: str
) -> None:
  """Writes an evaluation.

  Args:
    total, stage: steps of the run and name of the stage at that time.
  """
  folder = workdir / 'evaluations'
  folder.mkdir(exist_ok=True)
  row = {'step': total, 'stage': stage, 'splits': splits}
  files.write_whole(folder / f'{total:08d}.json', json.dumps(row) + '\n')
