"""Grades a file of completions, without a model or an accelerator.

  jaxrl grade --reward=math --file=completions.jsonl

Each line of the file is an object with a 'completion' and an 'answer' (other
names: --completion_key, --answer_key; --answer_key= for a reward that reads no
answer, such as 'instructions'). The reward receives all other fields too. Each
line of the output (--out, by default `completions.graded.jsonl`) is the same
object with a 'verdict': score, status, extracted. If it is interrupted, the
same command continues.
"""

import os
from collections.abc import Sequence

from jaxrl_reason import command, ranges
from jaxrl_reason.verifiers import resolve

ARGUMENTS = {
  'workers': ranges.COUNT,
  'timeout_s': ranges.POSITIVE,
  'memory_mb': ranges.COUNT,
}


def parser() -> command.Parser:
  """Returns the parser of the flags."""
  p = command.Parser('grade', __doc__)
  p.text('--file', None, 'completions, JSONL', required=True)
  p.text(
    '--reward',
    'math',
    f"one of {', '.join(sorted(resolve.SHORT))}, or 'package.module:function', "
    "or 'path/to/file.py:function'",
  )
  p.text('--out', '', 'JSONL to write, or to continue')
  p.text('--completion_key', 'completion', 'field of the completion')
  p.text('--answer_key', 'answer', 'field of the gold answer; empty: none')
  p.number('--workers', os.cpu_count() or 1, 'processes')
  p.number('--timeout_s', 10.0, 'seconds for one completion')
  p.number('--memory_mb', 1024, 'memory of one process, MiB')
  return p


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  a = parser().parse(argv)
  # Imported late, so that a wrong flag is refused at once.
  from jaxrl_reason.verifiers import grading
  from jaxrl_reason.verifiers.pool import PoolError

  out = a.out or f'{os.path.splitext(a.file)[0]}.graded.jsonl'
  keys = a.completion_key, a.answer_key
  with command.one_line(grading.GradeError, PoolError):
    limits = {key: getattr(a, key) for key in ARGUMENTS}
    ranges.check(limits, ARGUMENTS, '--')
    command.local_files({'--out': out})
    command.input_files({'--file': a.file})
    grading.run(a.file, out, a.reward, keys, **limits)


if __name__ == '__main__':
  main()
