"""Reads and writes completions as lines of JSON, for all commands.

  {..., "problem": 3, "sample": 0, "completion": "so \\boxed{5}", "length": 7,
   "truncated": false, "verdict": {"score": 1.0, "status": "parsed",
   "extracted": "5", "detail": null, "parts": null}}

A line is one completion: first the problem's own fields (`prompt` or
`messages`, `answer`, and others that its verifier reads), then the fields
above. `generate` writes lines without a verdict, and `grade` adds it.
Evaluations, the samples and rollouts of a run, and reports read and write the
same lines. A line may have these fields, too (`OPTIONAL`):

  suite, model, variant  names of the suite, the model and the prompt variant
  temperature            of sampling; 0: greedy
  step, stage            of the run, at the time of sampling
  logp                   nats, sum over the completion's tokens, of the policy
                         itself (temperature 1, no filter)
  base_logp              the same of another model, that KL is measured to
  p_correct              probability that the completion is correct, of a judge
  generated              tokens that a search sampled for the completion
  entropy                nats, mean over its tokens, of the policy itself
  confidence             stated confidence in the answer, 0 to 1
  trace                  whether the reasoning before the answer is correct
  at_budget              {"64": 0.0}: score of its first 64 tokens
  reward, advantage      of the completion in training
  conversation           [{"role": "policy", "content": "<<12*7="},
                         {"role": "environment", "content": "84>>"}, ...]: the
                         completion with the texts that the policy did not
                         sample: observations, and the hint at its start that
                         is trained on (role "hint")
  top                    the likeliest tokens of the policy at every token
                         (`data.teacher_answers`)
  tokens                 {"text": [...], "logp": [...], "entropy": [...],
                         "advantage": [...], "ratio": [...], "turn": [...],
                         "sampled": [...]}: lists of one length, a token each;
                         any of them

A file is written line by line. If the writer stopped within a line, that line
is removed before the file is continued. A file of the same name with the suffix
.json has the settings of the lines (`note`).
"""

import codecs
import itertools
import json
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxrl_reason.verifiers.verdict import Verdict, plain_of, read_plain

# Fields that a writer adds to those of the problem.
FIELDS = ('problem', 'sample', 'completion', 'length', 'truncated', 'verdict')
OPTIONAL = (
  'suite', 'model', 'variant', 'temperature', 'step', 'stage', 'logp',
  'base_logp', 'p_correct', 'generated', 'entropy', 'confidence', 'trace',
  'at_budget', 'reward', 'advantage', 'conversation', 'tokens', 'top',
)  # fmt: skip


class BadRecord(ValueError):
  """A line that is not a record; the message names file and line."""


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
  """Returns the record of a completion without a verdict.

  Args:
    problem: fields of the problem.
    number: index of the problem in its file or split.
    sample: index of the completion among those of the problem.
    length: number of tokens, with the stop token.
    truncated: True if the completion reached the limit of tokens.
    about: fields of `OPTIONAL`.
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
  """Returns the problem's fields of a row.

  A problem may have fields called `step` or `model`. They count as fields of
  the record only if the row has `completion` and `sample`.
  """
  is_record = 'completion' in row and 'sample' in row
  added = {*FIELDS, *(OPTIONAL if is_record else ())}
  return {k: v for k, v in row.items() if k not in added}


def conversation(
  decode: Callable[[list[int]], str],
  ids: Sequence[int],
  sampled: Sequence[bool],
  turn: Sequence[int],
) -> dict[str, list]:
  """Returns the field `conversation` of a completion; {} if the policy sampled
  all of its tokens.

  Args:
    ids: of the tokens, without padding.
    sampled, turn: of each token; turns count from 1, a hint has 0.
  """
  if all(sampled):
    return {}
  turns = itertools.groupby(zip(turn, sampled, ids), operator.itemgetter(0, 1))
  out = []
  for (number, is_sampled), tokens in turns:
    role = 'policy' if is_sampled else 'environment' if number else 'hint'
    text = decode([i for _, _, i in tokens])
    out.append({'role': role, 'content': text})
  return {'conversation': out}


def judged(row: Mapping[str, Any], verdict: Verdict) -> dict[str, Any]:
  """Returns a record with its verdict."""
  return {**row, 'verdict': plain_of(verdict)}


def verdict_of(row: Mapping[str, Any], where: str) -> Verdict:
  """Returns the verdict of a record.

  Raises:
    BadRecord: the row has no verdict that this package wrote.
  """
  try:
    return read_plain(row['verdict'])
  except (ValueError, TypeError, KeyError) as e:
    raise BadRecord(
      f'{where}: not written by this command ({type(e).__name__}: {e}). Name '
      'another file with --out.'
    ) from e


def line_of(row: Mapping[str, Any]) -> str:
  """Returns the line of a record."""
  # Entries of reasoning-gym hold dates, which are written as text.
  line = json.dumps(row, ensure_ascii=False, default=str)
  try:
    line.encode()
  except UnicodeEncodeError:  # a lone surrogate
    line = json.dumps(row, default=str)
  return line + '\n'


def read(path: str | os.PathLike) -> Iterator[tuple[int, dict[str, Any]]]:
  """Returns (line number, object) of every line that is not blank.

  Raises:
    BadRecord: a line is not a JSON object.
  """
  with open(path, 'rb') as f:
    for number, line in enumerate(f, 1):
      line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
      if line.strip():
        yield number, _parsed(line, f'{path}:{number}')


def _parsed(line: str | bytes, where: str) -> dict[str, Any]:
  try:
    row = json.loads(line)
  except ValueError as e:  # also of a number with thousands of digits
    raise BadRecord(f'{where}: not JSON: {e}') from e
  if not isinstance(row, dict):
    raise BadRecord(f'{where}: not an object but {row!r:.60}')
  return row


def finished(path: str | os.PathLike) -> list[dict[str, Any]]:
  """Returns the records of a file's complete lines; [] if it does not exist.

  Raises:
    BadRecord: a complete line is not a JSON object.
  """
  if not os.path.exists(path):
    return []
  with open(path, 'rb') as f:
    return parsed(f.read(), path)


def parsed(data: bytes, path: str | os.PathLike) -> list[dict[str, Any]]:
  """Returns the records of the complete lines among a file's bytes.

  Raises:
    BadRecord: a complete line is not a JSON object.
  """
  # Split at b'\n' only: texts may contain other characters that end a line.
  lines = data.split(b'\n')[:-1]
  return [
    _parsed(line.decode('utf-8', 'replace'), f'{path}:{i}')
    for i, line in enumerate(lines, 1)
  ]


def note(
  path: Any,
  settings: Mapping[str, Any],
  earlier: Mapping[str, Any] | None = None,
) -> None:
  """Writes the settings of a records file, or compares them with those of an
  existing file.

  Args:
    path: path of the records, a `pathlib.Path` or an `epath.Path`.
    settings: JSON values.
    earlier: values of the settings that files of earlier versions lack.

  Raises:
    ValueError: names the setting that differs, or the file that is missing, or
      the path has the suffix of the settings.
  """
  noted = path.with_suffix('.json')
  if noted == path:
    raise ValueError(
      f'{path} must end in .jsonl: the settings of its lines are in .json'
    )
  if not noted.exists():
    if path.exists():
      raise ValueError(
        f'{path} exists without {noted.name}; move it away, or name another '
        '--out'
      )
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = noted.with_name(f'.{noted.name}.unfinished')
    aside.write_text(json.dumps(settings, indent=1))
    aside.replace(noted)
  before = {**(earlier or {}), **_parsed(noted.read_text(), str(noted))}
  now = json.loads(json.dumps(settings))
  for key in before | now:
    if before.get(key) != now.get(key):
      raise ValueError(
        f'{path} was begun with {key}={before.get(key)!r}, not '
        f'{now.get(key)!r}; name another --out, or remove it'
      )


def cut_torn(path: str | os.PathLike) -> None:
  """Removes an unfinished last line."""
  if not os.path.exists(path):
    return
  with open(path, 'rb+') as f:
    data = f.read()
    f.truncate(data.rfind(b'\n') + 1)


def prompts(source) -> list[dict]:
  """Reads the lines of a file of prompts.

  Raises:
    ValueError: names the line without a prompt.
  """
  rows = []
  for number, row in read(source):
    kinds = {'prompt': str, 'messages': list}
    present = [k for k, kind in kinds.items() if isinstance(row.get(k), kind)]
    if not present:
      raise ValueError(
        f'{source}, prompt {number}: neither "prompt" (a text) nor "messages" '
        '(a list)'
      )
    rows.append(row)
  if not rows:
    raise ValueError(f'{source} has no prompts')
  return rows


def check_same(done: list[dict], rows: list[dict], n: int, out) -> None:
  """Raises an error if a file has other prompts, or another --n."""
  for i, line in enumerate(done):
    at = line.get('problem'), line.get('sample')
    row = rows[i // n] if i // n < len(rows) else {'': 0}
    # A line has its own values of fields such as `model`.
    kept = {k: v for k, v in problem_of(row).items() if k not in OPTIONAL}
    if at != (i // n, i % n) or any(line.get(k) != v for k, v in kept.items()):
      raise ValueError(
        f'{out}:{i + 1} is of another --file or --n; name another --out'
      )
