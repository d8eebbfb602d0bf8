"""Structured answers: JSON, JSON against a schema, regular expressions.

  completion -> its answer -> JSON text -> value -> schema

The JSON is that of RFC 8259 and no more: no NaN, no infinity, no key twice, at
most `MAX_DEPTH` brackets deep and `MAX_CHARS` long. Nothing here raises on any
completion; what is wrong with an example (a bad schema or pattern) does raise.
"""

import json
import math
import re
from collections.abc import Mapping

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.text import json_schema
from jaxrl_reason.verifiers.verdict import Verdict

MAX_CHARS = 200_000
MAX_DEPTH = 64
MAX_DIGITS = 400  # of an integer
MAX_PATTERN_TEXT = 10_000  # characters that a pattern is tried on
# Strings first, so that a bracket in one does not count.
BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.S)
FENCE = re.compile(r'```[A-Za-z]*[ \t]*\n(.*?)```', re.S)


class JsonError(ValueError):
  """Text that is not one JSON value within the limits."""


def loads(text: str):
  """Reads the value of a JSON text; JsonError, with the reason, if it has
  none.
  """
  if len(text) > MAX_CHARS:
    raise JsonError(f'longer than {MAX_CHARS} characters')
  if _depth(text) > MAX_DEPTH:
    raise JsonError(f'nested deeper than {MAX_DEPTH}')
  try:
    return json.loads(
      text,
      object_pairs_hook=_object,
      parse_constant=_refuse,
      parse_float=_float,
      parse_int=_int,
    )
  except ValueError as e:
    raise JsonError(str(e)) from e


def _depth(text: str) -> int:
  deepest = depth = 0
  for match in BRACKETS.finditer(text):
    if match[0] in ('[', '{'):
      depth += 1
      deepest = max(deepest, depth)
    elif match[0] in (']', '}'):
      depth -= 1
  return deepest


def _object(pairs: list) -> dict:
  made = dict(pairs)
  if len(made) < len(pairs):
    raise JsonError('a key occurs twice')
  return made


def _refuse(constant: str):
  raise JsonError(f'{constant} is no JSON')


def _float(digits: str) -> float:
  value = float(digits)
  if not math.isfinite(value):
    raise JsonError(f'{digits:.40} is too large')
  return value


def _int(digits: str) -> int:
  if len(digits) > MAX_DIGITS:
    raise JsonError(f'an integer has more than {MAX_DIGITS} digits')
  return int(digits)


def find(text: str, *, strict: bool = False):
  """Finds the JSON value of an answer; JsonError if it has none.

  The whole text; unless `strict`, also the last fenced block, or what stands
  between the first opening and the last closing bracket.
  """
  candidates = [text.strip()]
  if not strict:
    candidates += FENCE.findall(text)[-1:]
    starts = [i for i in map(text.find, '[{') if i >= 0]
    end = max(map(text.rfind, ']}')) + 1
    if starts and end > min(starts):
      candidates.append(text[min(starts) : end])
  problem = JsonError('no text')
  for candidate in candidates:
    try:
      return loads(candidate)
    except JsonError as e:
      problem = e  # the last one is the most specific
  raise problem


def found(completion: str, part: str, strict: bool):
  """Returns (value, None), or (None, the verdict on a completion without
  JSON).
  """
  text = fields.final(completion, part)
  if text is None or not text.strip():
    return None, Verdict(0.0, 'no_answer')
  try:
    return find(text, strict=strict), None
  except JsonError as e:
    return None, Verdict(0.0, 'unparsed', detail=str(e)[:200])


def valid_json(
  completion: str,
  example: dict,
  *,
  part: str = 'answer',
  strict: bool = False,
) -> Verdict:
  """Returns 1 if the answer is JSON; `strict` wants nothing around it."""
  _, problem = found(completion, part, strict)
  return problem or Verdict(1.0)


def matches_schema(
  completion: str,
  example: dict,
  *,
  part: str = 'answer',
  strict: bool = False,
) -> Verdict:
  """Returns 1 if the answer is JSON that example['schema'] allows.

  The schema is a dict, a bool or JSON text; see `json_schema` for what it may
  say. `detail` names the place where the answer first breaks it.
  """
  schema = fields.field(example, 'schema', (Mapping, bool, str))
  schema = loads(schema) if isinstance(schema, str) else schema
  json_schema.check(schema)
  value, problem = found(completion, part, strict)
  if problem is not None:
    return problem
  error = json_schema.first_error(value, schema)
  return Verdict(float(error is None), detail=error)


def equal_json(
  completion: str,
  example: dict,
  *,
  part: str = 'answer',
  strict: bool = False,
) -> Verdict:
  """Returns 1 if the answer is the JSON value example['answer'].

  Objects have no order; 1 is 1.0 and is not true.
  """
  gold = loads(fields.field(example, 'answer', str))
  value, problem = found(completion, part, strict)
  if problem is not None:
    return problem
  same = json_schema.canonical(value) == json_schema.canonical(gold)
  return Verdict(float(same))


def matches_pattern(
  completion: str,
  example: dict,
  *,
  part: str = 'answer',
  whole: bool = True,
) -> Verdict:
  """Returns 1 if the answer matches example['pattern'], a Python regular
  expression.

  All of it, or `whole=False` somewhere in it. The answer is stripped and may
  have MAX_PATTERN_TEXT characters; a longer one does not match. The pattern is
  the data set's and is trusted: one that backtracks exponentially cannot be
  interrupted from within Python, so only the pool's limit ends it. Write
  possessive quantifiers (`a++`) or atomic groups (`(?>...)`) where it matters.
  """
  pattern = fields.field(example, 'pattern', str)
  try:
    compiled = re.compile(pattern)
  except re.error as e:
    raise fields.FieldError(f"'pattern' {pattern!r:.80}: {e}") from e
  text = fields.final(completion, part)
  if text is None:
    return Verdict(0.0, 'no_answer')
  text = text.strip()
  if len(text) > MAX_PATTERN_TEXT:
    return Verdict(0.0, detail=f'longer than {MAX_PATTERN_TEXT} characters')
  match = compiled.fullmatch(text) if whole else compiled.search(text)
  return Verdict(float(match is not None), extracted=text[:200])
