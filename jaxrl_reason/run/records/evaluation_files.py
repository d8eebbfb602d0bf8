"""Which problems an evaluation found solved: `evaluations/<step>.json`.

  {"step": 100, "stage": "rl", "splits": {"heldout": {"samples": 4,
   "greedy": [1, 0], "right": [3, 0]}}}

`right` counts the right ones of a problem's samples, problem by problem: what
errors, pass@k and the problems gained and lost are told from (`reports`).
"""

import json
from collections.abc import Mapping, Sequence

from etils import epath

from jaxrl_reason.checkpoints import files


def counted(rows: Sequence[Mapping]) -> dict:
  """Returns a split's entry from its records, sample 0 of a problem being
  greedy.
  """
  greedy: dict[int, int] = {}
  right: dict[int, int] = {}
  samples = 0
  for row in rows:
    number, sample = row['problem'], row['sample']
    solved = int(row['verdict']['score'] > 0.5)
    samples = max(samples, sample)
    if sample == 0:
      greedy[number] = solved
    else:
      right[number] = right.get(number, 0) + solved
  return {
    'samples': samples,
    'greedy': [greedy[i] for i in sorted(greedy)],
    'right': [right[i] for i in sorted(right)],
  }


def write(
  workdir: epath.Path, splits: dict[str, dict], total: int, stage: str
) -> None:
  """Keeps an evaluation; `total`, `stage`: when it was, steps of the run."""
  folder = workdir / 'evaluations'
  folder.mkdir(exist_ok=True)
  row = {'step': total, 'stage': stage, 'splits': splits}
  files.write_whole(folder / f'{total:08d}.json', json.dumps(row) + '\n')
