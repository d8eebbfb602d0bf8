"""Verifies structured answers: JSON, JSON Schema, regular expressions.

  completion -> its answer -> JSON text -> value -> schema

JSON is that of RFC 8259: no NaN, no infinity, no repeated key, at most
`MAX_DEPTH` brackets deep and `MAX_CHARS` long. No completion raises an error.
An invalid schema or pattern in an example does.
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
MAX_DIGITS = 400  # largest number of digits of an integer
MAX_PATTERN_TEXT = 10_000  # largest length of a text to match
# Strings are matched first, so that their brackets do not count.
BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.S)
FENCE = re.compile(r'```[A-Za-z]*[ \t]*\n(.*?)```', re.S)


class JsonError(ValueError):
  """Text that is not one JSON value within the limits."""


def loads(text: str):
  """Parses a JSON text.

  Raises:
    JsonError: has the reason why the text is invalid.
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
  value = dict(pairs)
  if len(value) < len(pairs):
    raise JsonError('a key occurs twice')
  return value


def _refuse(constant: str):
  raise JsonError(f'{constant} is not JSON')


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
  """Parses the JSON value of an answer.

  The JSON text is the whole answer. Unless `strict`, it may also be the last
  fenced block, or the text from the first opening to the last closing bracket.

  Raises:
    JsonError: the answer has no JSON value.
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
  """Returns (value, None), or (None, the verdict) if the completion has no
  JSON.
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
  """Returns 1 if the answer is JSON. `strict` allows no text around the
  JSON.
  """
  _, problem = found(completion, part, strict)
  return problem or Verdict(1.0)


def matches_schema(
  completion: str,
  example: dict,
  *,
  part: str = 'answer',
  strict: bool = False,
) -> Verdict:
  """Returns 1 if the answer is JSON that is valid under example['schema'].

  The schema is a dict, a bool or JSON text; `json_schema` lists the supported
  keywords. `detail` has the path of the first error.
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

  The order of keys is ignored. 1 equals 1.0, and differs from true.
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

  The pattern must match the whole stripped answer, or with `whole=False` a part
  of it. An answer of more than MAX_PATTERN_TEXT characters does not match. The
  pattern of a data set is trusted: Python cannot interrupt a pattern that
  backtracks exponentially, so only the time limit of the pool stops it. To
  avoid this, write possessive quantifiers (`a++`) or atomic groups (`(?>...)`).
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
