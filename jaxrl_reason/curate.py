r"""Filters a file of problems for training.

  jaxrl curate --file=problems.jsonl --out=curated \
    --near_duplicates=0.8 --against=gsm8k/test.jsonl --heldout=0.02
  jaxrl curate --file=problems.parquet --out=curated \
    --model=runs/a --k=8 --keep=0.1,0.9

Repeated questions, near duplicates and questions of evaluation files are
removed. The other questions get a difficulty by the pass rate of a model. OUT
contains train.jsonl (and test.jsonl, by a hash of the question), failing.jsonl
(problems that the model never solves), removed.jsonl with reasons, report.json
and the answers of the model, answers/. If it is interrupted, the same command
continues. docs/evaluating.md has more.
"""

from collections.abc import Sequence

from jaxrl_reason import command

FORMS = ('jsonl', 'parquet')
# Flag -> the flags that have no effect without it.
NEEDED = {
  'model': (
    *('verifier', 'prompt', 'k', 'batch', 'temperature', 'max_new'),
    *('buckets', 'keep', 'seed'),
  ),
  'against': ('ngram',),
}


def parser() -> command.Parser:
  """Makes the parser of the flags."""
  p = command.Parser('curate', __doc__)
  p.text('--file', None, 'problems, .jsonl or .parquet', required=True)
  p.text('--out', None, 'folder to write, or to continue', required=True)
  p.text('--question', '', 'field of a row, such as a.0.b; if empty, guessed')
  p.text('--answer', '', 'field of the answer; if empty, guessed')
  p.text('--solution', '', 'field of a worked solution')
  p.text('--verifier', 'math', 'reward that verifies answers')
  p.number('--near_duplicates', 0.0, 'similarity (Jaccard) to remove; 0: none')
  p.text('--against', '', 'evaluation files whose problems are removed')
  p.number('--ngram', 13, 'words in common that make a problem contaminated')
  p.text('--model', '', 'model for the pass rates, as in evaluate')
  p.text('--prompt', 'own', 'prompt format of problems, as in evaluate')
  p.number('--k', 8, 'samples of a problem')
  p.number('--batch', 256, 'completions at a time, over all devices')
  p.number('--temperature', 1.0, 'of sampling')
  p.number('--max_new', 0, "tokens of a completion; 0: the run's, or 512")
  p.text('--buckets', '0.25,0.75', 'pass rates between difficulties')
  p.text('--keep', '0,1', 'least and largest pass rate to keep')
  p.number('--heldout', 0.0, 'share of problems that go into test')
  p.text('--format', 'jsonl', 'format of the output: jsonl or parquet')
  p.number('--seed', 0, 'of the noise')
  p.machine()
  return p


def options(a):
  """Returns the flags as `curation.Options`.

  Raises:
    ValueError: names the flag.
  """
  from etils import epath

  from jaxrl_reason import ranges
  from jaxrl_reason.evals import curation
  from jaxrl_reason.evals import evaluation as session

  ranges.check(vars(a), ranges.EVALUATE | ranges.CURATE, '--')
  command.one_of('--format', a.format, FORMS)
  command.one_of('--dtype', a.dtype, ('', 'float32', 'bfloat16'))
  file = epath.Path(a.file)
  if not file.is_file() or file.suffix.removeprefix('.') not in FORMS:
    raise ValueError(f'--file={a.file} is no file .{" or .".join(FORMS)}')
  edges = command.listed('--buckets', a.buckets, float)
  keep = command.listed('--keep', a.keep, float)
  if not all(0 < x < 1 for x in edges) or list(edges) != sorted(set(edges)):
    raise ValueError(f'--buckets={a.buckets}: rising, between 0 and 1')
  if len(keep) != 2 or not 0 <= keep[0] <= keep[1] <= 1:
    raise ValueError(f'--keep={a.keep}: two pass rates, the least first')
  models = command.listed('--model', a.model, str)
  if len(models) > 1:
    raise ValueError(f'--model={a.model}: one model')
  same = ('k', 'batch', 'seed', 'workers', 'timeout_s')
  asked = session.Options(
    models=models,
    suites=(),
    out=command.local_folder('--out', a.out),
    prompts=(a.prompt,),
    temperatures=(a.temperature,),
    greedy=False,
    max_new=a.max_new or None,
    dtype=a.dtype or None,
    mesh=command.listed('--mesh', a.mesh, int),
    **{k: getattr(a, k) for k in same},
  )
  return curation.Options(
    file,
    {k: getattr(a, k) for k in ('question', 'answer', 'solution')},
    a.verifier,
    asked,
    near_duplicates=a.near_duplicates,
    against=command.listed('--against', a.against, str),
    ngram=a.ngram,
    buckets=edges,
    keep=keep,
    heldout=a.heldout,
    form=a.format,
  )


def _refuse_without_effect(a) -> None:
  """Refuses flags that need a flag which is not set."""
  defaults = parser()
  for flag, names in NEEDED.items():
    for name in () if getattr(a, flag) else names:
      value = getattr(a, name)
      if value != defaults.get_default(name):
        raise ValueError(f'--{name}={value} has no effect without --{flag}')


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  a = parser().parse(argv)
  with command.one_line():
    _refuse_without_effect(a)
  # Imported late, so that a wrong flag is refused at once.
  from jaxrl_reason.evals import curation
  from jaxrl_reason.run import model_commands

  model_commands.main(a, options, curation.run)


if __name__ == '__main__':
  main()
