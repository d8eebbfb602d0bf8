"""What the policy writes: completions of a few problems, before and after.

Every evaluation leaves `samples/<step>.txt`; at the end `samples.txt` shows the
first one beside the last.
"""

from collections.abc import Sequence

from etils import epath

from jaxrl_reason.checkpoints import files


def write(
  workdir: epath.Path,
  examples: Sequence[dict],
  texts: Sequence[Sequence[str]],
  total: int,
  stage: str,
) -> None:
  """Notes the greedy and one sampled completion of the first problems.

  Args:
    texts: completions of as many problems as are to be shown, greedy first.
    total, stage: when they were written: steps of the run.
  """
  folder = workdir / 'samples'
  folder.mkdir(exist_ok=True)
  lines = [f'after {total} steps ({stage})']
  for example, row in zip(examples, texts):
    lines += [
      f'  problem   {example["prompt"]}   (answer {example["answer"]})',
      f'    greedy  {row[0]}',
      f'    sampled {row[1]}',
    ]
  files.write_whole(folder / f'{total:08d}.txt', '\n'.join(lines) + '\n')


def before_and_after(workdir: epath.Path) -> str:
  """Writes samples.txt from the run's notes: the start of the last stage and
  its end; returns its text.
  """
  paths = sorted((workdir / 'samples').glob('*.txt'))
  notes = [p.read_text() for p in paths]
  last = _stage(notes[-1])
  before = [n for n in notes if _stage(n) != last] or notes[:1]
  text = before[-1] + '\n' + notes[-1]
  files.write_whole(workdir / 'samples.txt', text)
  return text


def _stage(note: str) -> str:
  return note.partition('(')[2].partition(')')[0]
