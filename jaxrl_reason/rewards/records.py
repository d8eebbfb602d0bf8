"""Answers as lines of JSON: one form for whoever writes or reads them.

  {..., "problem": 3, "sample": 0, "completion": "so \\boxed{5}", "length": 7,
   "truncated": false, "verdict": {"score": 1.0, "status": "parsed",
   "extracted": "5", "detail": null, "parts": null}}

A line is one completion: first what the problem came with (`prompt` or
`messages`, `answer`, whatever a verifier reads), then the fields above.
`generate` writes lines without a verdict, `grade` adds it; evaluations, the
samples and rollouts of a run, and reports read and write the same. Who knows
more says more, all of it optional (`OPTIONAL`):

  suite, model, variant  what was asked, who answered, how prompts were written
  temperature            of sampling; 0: greedy
  step, stage            of the run, when it was sampled
  logp                   nats, sum over the completion's tokens, of the policy
                         itself (temperature 1, no filter)
  base_logp              the same of another model, that KL is measured to
  entropy                nats, mean over its tokens, of the policy itself
  confidence             that the answer is right, 0 to 1, as the text states it
  trace                  whether the reasoning before the answer holds
  at_budget              {"64": 0.0}: scores of its first so many tokens
  reward, advantage      what it was trained with
  tokens                 {"text": [...], "logp": [...], "entropy": [...],
                         "advantage": [...], "ratio": [...], "turn": [...],
                         "sampled": [...]}: lists of one length, a token each;
                         any of them

A file is written line by line and can be gone on with: a line that was being
written when its writer stopped has no end, and is cut off.
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from jaxrl_reason.rewards.verdict import Verdict

# What a writer adds to a problem's own fields.
FIELDS = ('problem', 'sample', 'completion', 'length', 'truncated', 'verdict')
OPTIONAL = (
  'suite', 'model', 'variant', 'temperature', 'step', 'stage', 'logp',
  'base_logp', 'entropy', 'confidence', 'trace', 'at_budget', 'reward',
  'advantage', 'tokens',
)  # fmt: skip


class BadRecord(ValueError):
  """A line that is no record; names file and line."""


def record(
  problem: Mapping[str, Any],
  *,
  number: int,
  sample: int,
  completion: str,
  length: int,
  truncated: bool,
  **about: Any,
) -> dict[str, Any]:
  """Returns the record of a completion that nobody has judged yet.

  Args:
    problem: the fields it came with.
    number: of the problem in its file or split, from 0.
    sample: which of the problem's completions, from 0.
    length: in tokens, the stop token included.
    truncated: whether it ran out of room.
    about: of `OPTIONAL`, what is known.
  """
  unknown = about.keys() - set(OPTIONAL)
  if unknown:
    raise TypeError(f'a record has no field {sorted(unknown)}')
  return {
    **problem_of(problem),
    'problem': number,
    'sample': sample,
    'completion': completion,
    'length': length,
    'truncated': truncated,
    **about,
  }


def problem_of(row: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what a row says of its problem: of a record, that without the
  answer.

  A problem may have a field of its own called `step` or `model`; a record has
  completion and sample beside it.
  """
  is_record = 'completion' in row and 'sample' in row
  added = {*FIELDS, *(OPTIONAL if is_record else ())}
  return {k: v for k, v in row.items() if k not in added}


def judged(row: Mapping[str, Any], verdict: Verdict) -> dict[str, Any]:
  """Returns a record with its verdict."""
  return {**row, 'verdict': dataclasses.asdict(verdict)}


def verdict_of(row: Mapping[str, Any], where: str) -> Verdict:
  """Returns the verdict of a record.

  Raises:
    BadRecord: it has none that this package wrote.
  """
  try:
    return Verdict(**row['verdict'])
  except (ValueError, TypeError, KeyError) as e:
    raise BadRecord(
      f'{where}: not written by this command ({type(e).__name__}: {e}). Name '
      'another file with --out.'
    ) from e


def line_of(row: Mapping[str, Any]) -> str:
  """Returns a record as it is written."""
  # Entries of reasoning-gym hold dates: as text.
  return json.dumps(row, ensure_ascii=False, default=str) + '\n'


def read(path: str | os.PathLike) -> Iterator[tuple[int, dict[str, Any]]]:
  """Returns (line number, object) of every line that is not blank.

  Raises:
    BadRecord: a line holds no JSON object.
  """
  with open(path, encoding='utf-8') as f:
    for number, line in enumerate(f, 1):
      if line.strip():
        yield number, _parsed(line, f'{path}:{number}')


def _parsed(line: str, where: str) -> dict[str, Any]:
  try:
    row = json.loads(line)
  except json.JSONDecodeError as e:
    raise BadRecord(f'{where}: not JSON: {e}') from e
  if not isinstance(row, dict):
    raise BadRecord(f'{where}: not an object but {row!r:.60}')
  return row


def finished(path: str | os.PathLike) -> list[dict[str, Any]]:
  """Returns the complete lines of a file that its writer goes on with; []
  without it.

  Raises:
    BadRecord: a complete line holds no JSON object.
  """
  if not os.path.exists(path):
    return []
  with open(path, 'rb') as f:
    return parsed(f.read(), path)


def parsed(data: bytes, path: str | os.PathLike) -> list[dict[str, Any]]:
  """Returns the complete lines among the bytes of a file.

  Raises:
    BadRecord: a complete line holds no JSON object.
  """
  # By the end of lines alone: texts may hold other characters that end one.
  whole = data.split(b'\n')[:-1]
  return [
    _parsed(line.decode('utf-8', 'replace'), f'{path}:{i}')
    for i, line in enumerate(whole, 1)
  ]


def cut_torn(path: str | os.PathLike) -> None:
  """Takes away a last line without an end."""
  if not os.path.exists(path):
    return
  with open(path, 'rb+') as f:
    data = f.read()
    f.truncate(data.rfind(b'\n') + 1)
