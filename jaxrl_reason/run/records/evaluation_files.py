"""Writes the answers of evaluations: `samples/<step>.jsonl`, `evaluations/` and
`samples.txt`.

`samples/<step>.jsonl` has completions of a few problems, in the format that
`generate` writes and `grade` reads. At the end, `samples.txt` shows the
completions before and after the last stage.

`evaluations/<step>.json` has the problems that an evaluation solved:

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
from jaxrl_reason.reports import metrics_file, workdirs
from jaxrl_reason.verifiers import records


def write_samples(
  workdir: epath.Path, rows: Sequence[dict], total: int, stage: str
) -> str:
  """Writes the records of a few problems' completions, greedy first.

  Args:
    total, stage: steps of the run and name of the stage at that time.

  Returns:
    The records as text.
  """
  folder = workdir / 'samples'
  folder.mkdir(exist_ok=True)
  when = {'step': total, 'stage': stage}
  rows = [row | when for row in rows]
  text = ''.join(map(records.line_of, rows))
  files.write_whole(folder / f'{total:08d}.jsonl', text)
  return _shown(rows) if rows else ''


def before_and_after(workdir: epath.Path, total: int) -> str:
  """Writes samples.txt, the start of the last stage and its end; returns its
  text.

  Args:
    total: steps of the run; an earlier start may have had more.
  """
  found = sorted((workdir / 'samples').glob('*.jsonl'))
  paths = [path for path in found if int(path.stem) <= total]
  notes = [metrics_file.lines(path) for path in paths]
  notes = [rows for rows in notes if rows]
  if not notes:
    return ''
  both = workdirs.ends(notes, lambda rows: rows[0]['stage']) or notes * 2
  text = '\n'.join(map(_shown, both))
  files.write_whole(workdir / 'samples.txt', text)
  return text


def _shown(rows: Sequence[dict]) -> str:
  """Returns the greedy and one sampled completion of every problem; a
  conversation has a line for each turn.
  """
  lines = [f'after {rows[0]["step"]} steps ({rows[0]["stage"]})']
  for row in rows:
    if row['sample'] == 0:
      lines.append(f'  problem   {row["prompt"]}   (answer {row["answer"]})')
    if row['sample'] < 2:
      who = ('greedy ', 'sampled')[row['sample']]
      for turn in row.get('conversation') or [{'content': row['completion']}]:
        role = f'{turn["role"]:12} ' if 'role' in turn else ''
        lines.append(f'    {who} {role}{turn["content"]}')
        who = ' ' * len(who)
  return '\n'.join(lines) + '\n'


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
