"""Writes completions of a few problems, before and after training.

Every evaluation writes `samples/<step>.jsonl`, in the format that `generate`
writes and `grade` reads. At the end, `samples.txt` shows the completions before
and after the last stage.
"""

from collections.abc import Sequence

from etils import epath

from jaxrl_reason.checkpoints import files
from jaxrl_reason.reports import metrics_file, workdirs
from jaxrl_reason.verifiers import records


def write(
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
