"""Grades a file of completions, without a model or an accelerator.

  python -m jaxrl_reason.grade --reward math --file completions.jsonl

Each line of the file is an object with a 'completion' and an 'answer' (other
names: --completion_key, --answer_key; --answer_key= for a reward that reads no
answer, such as 'instructions'); everything else in it is handed to the reward
and kept. Each line of the output, `completions.graded.jsonl` unless
--out says otherwise, is the same object with a 'verdict': score, status,
extracted. A run that was interrupted goes on where it stopped.
"""

import collections
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator

import tqdm
from absl import app, flags

from jaxrl_reason import ranges
from jaxrl_reason.verifiers import pool, records, resolve
from jaxrl_reason.verifiers.verdict import Verdict, all_failed

_REWARD = flags.DEFINE_string(
  'reward',
  'math',
  f"One of {', '.join(sorted(resolve.SHORT))}, or 'package.module:function', "
  "or 'path/to/file.py:function'.",
)
_FILE = flags.DEFINE_string('file', None, 'JSONL with completions.')
_OUT = flags.DEFINE_string('out', None, 'JSONL to write, or to go on with.')
_COMPLETION = flags.DEFINE_string('completion_key', 'completion', 'Text.')
_ANSWER = flags.DEFINE_string('answer_key', 'answer', 'Gold answer, or none.')
_WORKERS = flags.DEFINE_integer('workers', os.cpu_count() or 1, 'Processes.')
_TIMEOUT = flags.DEFINE_float('timeout_s', 10.0, 'Seconds for one completion.')
_MEMORY = flags.DEFINE_integer('memory_mb', 1024, 'Memory of one process.')
ARGUMENTS = {
  'workers': ranges.COUNT,
  'timeout_s': ranges.POSITIVE,
  'memory_mb': ranges.COUNT,
}
BATCH = 256  # rows between two writes: what an interruption can lose


class GradeError(Exception):
  """Something in the input, with file and row; shown without a traceback."""


def read_rows(path: str, completion_key: str, answer_key: str) -> Iterator:
  """Returns (line number, object) of every line that is not blank.

  Raises:
    GradeError: a row lacks a key, or there is no row.
  """
  number = 0
  for number, row in records.read(path):
    for key in (completion_key, answer_key):
      if key and not isinstance(row.get(key), str):
        raise GradeError(
          f'{path}:{number}: {key!r} is {row.get(key)!r:.60}, not a string; '
          f'the row has {sorted(row)}. --completion_key and --answer_key '
          'name the fields.'
        )
    yield number, row
  if not number:
    raise GradeError(f'{path} has no rows')


def resume(out: str, rows: Iterator, completion_key: str):
  """Returns the rows still to do, and the verdicts that `out` already has."""
  done = []
  for number, old in enumerate(records.finished(out), 1):
    done.append(records.verdict_of(old, f'{out}:{number}'))
    new = next(rows, (0, {}))[1]
    if old.get(completion_key) != new.get(completion_key):
      raise GradeError(
        f'{out}:{number}: grades another completion than the input has at '
        'this row. Remove the file, or name another with --out.'
      )
  records.cut_torn(out)  # the interruption hit a line: it is done again
  return rows, done


def grade(rows: Iterator, verifiers, write, bar, keys: tuple[str, str]):
  """Grades batch by batch; stops when a whole batch fails the same way."""
  completion_key, answer_key = keys
  verdicts = []
  while batch := list(itertools.islice(rows, BATCH)):
    cases = [
      (row[completion_key], row | _answer(row, answer_key)) for _, row in batch
    ]
    found = verifiers.map(cases)
    problem = all_failed(found)
    if problem and len(found) > 1:
      raise GradeError(f'from row {batch[0][0]} on: {problem}')
    for (_, row), verdict in zip(batch, found):
      write(records.line_of(records.judged(row, verdict)))
    verdicts += found
    bar.update(len(found))
  return verdicts


def _answer(row: dict, key: str) -> dict:
  return {'answer': row[key]} if key else {}


def summary(verdicts: list[Verdict], seconds: float, new: int) -> str:
  """Returns a few lines for people."""
  valid = [v.score for v in verdicts if v.valid]
  counts = collections.Counter(v.status for v in verdicts)
  mean = sum(valid) / len(valid) if valid else float('nan')
  lines = [
    f'{len(verdicts)} completions, {new} of them graded now '
    f'({new / max(seconds, 1e-9):.0f}/s)',
    f'mean score {mean:.4f} over {len(valid)} valid verdicts',
    'status: ' + ', '.join(f'{k} {n}' for k, n in counts.most_common()),
  ]
  parts = collections.defaultdict(list)
  for verdict in verdicts:
    for name, score in (verdict.parts or {}).items():
      parts[name].append(score)
  lines += [f'{k}: {sum(v) / len(v):.4f}' for k, v in parts.items()]
  return '\n'.join(lines)


def run(path: str, out: str, reward: str, keys: tuple[str, str], **limits):
  """Grades `path` into `out`; the verdicts of all its rows."""
  rows, done = resume(out, read_rows(path, *keys), keys[0])
  with contextlib.ExitStack() as stack:
    verifiers = stack.enter_context(pool.VerifierPool(reward, **limits))
    f = stack.enter_context(open(out, 'a', encoding='utf-8'))
    bar = stack.enter_context(
      tqdm.tqdm(initial=len(done), unit=' rows', disable=None)
    )
    start = time.perf_counter()
    found = grade(rows, verifiers, f.write, bar, keys)
    seconds = time.perf_counter() - start
  print(summary(done + found, seconds, len(found)))
  print(f'verdicts: {out}')
  return done + found


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f'unexpected {argv[1:]}: write --file={argv[1]}')
  path = _FILE.value
  if not path:
    raise app.UsageError('--file is missing')
  limits = {
    'workers': _WORKERS.value,
    'timeout_s': _TIMEOUT.value,
    'memory_mb': _MEMORY.value,
  }
  out = _OUT.value or f'{os.path.splitext(path)[0]}.graded.jsonl'
  try:
    ranges.check(limits, ARGUMENTS, '--')
    keys = _COMPLETION.value, _ANSWER.value
    run(path, out, _REWARD.value, keys, **limits)
  except (GradeError, pool.PoolError, ValueError, OSError) as e:
    print(f'grade: {e}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  app.run(main)
