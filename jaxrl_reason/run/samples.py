"""What the policy writes: completions of a few problems, before and after.

Every evaluation leaves `samples/<step>.txt`; at the end `samples.txt` shows the
first one beside the last.
"""

from collections.abc import Sequence

from etils import epath

from jaxrl_reason.checkpoints import files


def write(run, examples: Sequence[dict], texts, total: int, stage: str) -> None:
  """Notes the greedy and one sampled completion of the first problems."""
  folder = run.workdir / 'samples'
  folder.mkdir(exist_ok=True)
  lines = [f'after {total} steps ({stage})']
  for example, row in list(zip(examples, texts))[: run.config.eval.show]:
    lines += [
      f'  problem   {example["prompt"]}   (answer {example["answer"]})',
      f'    greedy  {row[0]}',
      f'    sampled {row[1]}',
    ]
  files.write_whole(folder / f'{total:08d}.txt', '\n'.join(lines) + '\n')


def before_and_after(workdir: epath.Path) -> str:
  """Writes samples.txt from the run's notes and returns its text: the start,
  the start of the last stage and the end.
  """
  paths = sorted((workdir / 'samples').glob('*.txt'))
  notes = [p.read_text() for p in paths]
  stage = lambda note: note.partition('(')[2].partition(')')[0]
  last = stage(notes[-1])
  before = [n for n in notes if stage(n) != last] or notes[:1]
  text = before[-1] + '\n' + notes[-1]
  files.write_whole(workdir / 'samples.txt', text)
  return text
