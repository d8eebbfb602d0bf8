r"""Makes a steering vector from right minus wrong answers of a model.

  jaxrl evaluate --model=runs/a --suite=run:heldout --k=16 --out=evals/a
  jaxrl steer --model=runs/a --answers='evals/a/answers/*.jsonl' \
    --layer=4 --out=right.npz
  jaxrl evaluate --model='runs/a,steered:runs/a+right.npz*2' \
    --suite=run:harder --out=evals/steered

The vector is the mean over problems of the mean state of right answers minus
that of wrong answers, after --layer. --answers are lines with verdicts, of
evaluate, grade or the rollouts of a run; other commands read their prompts as
plain text. The last command adds 2 times the vector after that layer at every
token. generate accepts such a model, too.
"""

import glob
from collections.abc import Sequence

from jaxrl_reason import command

TOKENS = 'last', 'mean'


def parser() -> command.Parser:
  """Makes the parser of the flags."""
  p = command.Parser('steer', __doc__)
  p.text('--model', None, 'the model, as in evaluate', required=True)
  p.text('--answers', None, 'files of answers, may have *', required=True)
  p.text('--out', None, 'file to write, .npz', required=True)
  p.number('--layer', -1, 'number of the layer; negative: from the end')
  p.text('--token', 'mean', 'state of an answer: last or mean')
  p.number('--batch', 32, 'answers at a time')
  p.text('--dtype', '', 'float32 or bfloat16; default: float32 on CPU only')
  p.set_defaults(coordinator=None, num_processes=None, process_id=None)
  return p


def options(a):
  """Returns the flags as `steering_vectors.Options`.

  Raises:
    ValueError: names the flag.
  """
  import pathlib

  from jaxrl_reason import ranges
  from jaxrl_reason.evals import steering_vectors

  ranges.check(vars(a), {'batch': ranges.COUNT}, '--')
  command.one_of('--token', a.token, TOKENS)
  command.one_of('--dtype', a.dtype, ('', 'float32', 'bfloat16'))
  command.local_files({'--answers': a.answers, '--out': a.out})
  if not a.out.endswith('.npz'):
    raise ValueError(f'--out={a.out}: must end with .npz')
  answers = tuple(sorted(glob.glob(a.answers)))
  if not answers:
    raise ValueError(f'--answers={a.answers}: no such file')
  return steering_vectors.Options(
    a.model,
    answers,
    pathlib.Path(a.out),
    a.layer,
    a.token,
    a.batch,
    a.dtype or None,
  )


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  a = parser().parse(argv)
  # Imported late, so that a wrong flag is refused at once.
  from jaxrl_reason.evals import steering_vectors
  from jaxrl_reason.run import model_commands

  model_commands.main(a, options, steering_vectors.run)


if __name__ == '__main__':
  main()
