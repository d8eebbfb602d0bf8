"""Grades a file of completions with a pool of verifier processes."""

import collections
import contextlib
import itertools
import pathlib
import time
from collections.abc import Iterator

import tqdm

from jaxrl_reason.verifiers import pool, records
from jaxrl_reason.verifiers.fields import text_of
from jaxrl_reason.verifiers.named_code import of_named_code
from jaxrl_reason.verifiers.verdict import Verdict, all_failed

BATCH = 256  # rows between two writes, which an interruption may lose


class GradeError(Exception):
  """An invalid input, with file and row; shown without a traceback."""


def read_rows(path: str, completion_key: str, answer_key: str) -> Iterator:
  """Returns (line number, object) of every line that is not blank.

  Raises:
    GradeError: a row lacks a key, or there is no row.
  """
  number = 0
  for number, row in records.read(path):
    wanted = {completion_key: row.get(completion_key)}
    wanted |= {answer_key: _gold(row, answer_key)} if answer_key else {}
    for key, value in wanted.items():
      if not isinstance(value, str):
        raise GradeError(
          f'{path}:{number}: {key!r} is {row.get(key)!r:.60}, not a string; '
          f'the row has {sorted(row)}. --completion_key and --answer_key '
          'name the fields.'
        )
    yield number, row
  if not number:
    raise GradeError(f'{path} has no rows')


def resume(out: str, rows: Iterator):
  """Returns the remaining rows, and the verdicts in `out`."""
  done = []
  for number, old in enumerate(records.finished(out), 1):
    done.append(records.verdict_of(old, f'{out}:{number}'))
    new = next(rows, (0, {}))[1]
    if _line(old) != _line(new):
      raise GradeError(
        f'{out}:{number}: the input has another row here: the completion, the '
        'answer or another field differs. Remove the file, or name another '
        'with --out.'
      )
  return rows, done


def _line(row: dict) -> str:
  """Returns the line of a row without its verdict."""
  return records.line_of({k: v for k, v in row.items() if k != 'verdict'})


def grade(rows: Iterator, verifiers, write, bar, keys: tuple[str, str]):
  """Grades batch by batch; stops if the reward fails on a whole batch."""
  completion_key, answer_key = keys
  verdicts = []
  while batch := list(itertools.islice(rows, BATCH)):
    cases = [
      (row[completion_key], row | _answer(row, answer_key)) for _, row in batch
    ]
    new = verifiers.map(cases)
    problem = all_failed(new)
    if problem and len(new) > 1:
      raise GradeError(f'from row {batch[0][0]} on: {problem}')
    for (_, row), verdict in zip(batch, new):
      write(records.line_of(records.judged(row, verdict)))
    verdicts += new
    bar.update(len(new))
  return verdicts


def _answer(row: dict, key: str) -> dict:
  return {'answer': _gold(row, key)} if key else {}


def _gold(row: dict, key: str) -> str | None:
  """Returns the answer of a row; a number as text, as problems have it."""
  value = row.get(key)
  return value if isinstance(value, str) else text_of(value)


def summary(verdicts: list[Verdict], seconds: float, new: int) -> str:
  """Returns a summary as text."""
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
  for verdict in (v for v in verdicts if v.valid):
    for name, score in (verdict.parts or {}).items():
      parts[name].append(score)
  lines += [f'{k}: {sum(v) / len(v):.4f}' for k, v in parts.items()]
  return '\n'.join(lines)


def run(path: str, out: str, reward: str, keys: tuple[str, str], **limits):
  """Grades `path` into `out`; returns the verdicts of all rows."""
  rows, done = resume(out, read_rows(path, *keys))
  with contextlib.ExitStack() as stack:
    verifiers = stack.enter_context(pool.VerifierPool(reward, **limits))
    settings = {'reward': reward, 'completion_key': keys[0]}
    settings |= {'answer_key': keys[1]}
    added = {k: limits[k] for k in ('timeout_s', 'memory_mb') if k in limits}
    added |= {'code': of_named_code([reward])}
    earlier = added | {'completion_key': 'completion'}
    records.note(pathlib.Path(out), settings | added, earlier)
    records.cut_torn(out)  # an interrupted line is written again
    f = stack.enter_context(open(out, 'a', encoding='utf-8'))
    bar = stack.enter_context(
      tqdm.tqdm(initial=len(done), unit=' rows', disable=None)
    )
    start = time.perf_counter()
    new = grade(rows, verifiers, f.write, bar, keys)
    seconds = time.perf_counter() - start
  print(summary(done + new, seconds, len(new)))
  print(f'verdicts: {out}')
  return done + new
