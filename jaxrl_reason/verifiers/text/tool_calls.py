"""Verifies tool calls: their form, the tools' schemas, and the gold calls.

  completion -> calls (name, arguments) -> the tools' schemas -> the gold calls

Forms: any number of `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`
(Hermes, Qwen), or a JSON answer: one call, a list, or {"tool_calls": [...]}. A
call may be wrapped as {"type": "function", "function": {...}}. Its arguments
may be JSON text, and their key may be 'parameters'. No call is executed.

With partial credit, the score of two calls with the same name is

  (1 + number of equal arguments) / (1 + number of arguments in either call)

The score of a completion is the sum of the best one-to-one pairing, divided by
the larger number of calls. So missing and superfluous calls reduce the score.
(Compare the tool-use rewards of https://arxiv.org/abs/2504.13958.)
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.text import json_schema, structure
from jaxrl_reason.verifiers.text.json_schema import canonical
from jaxrl_reason.verifiers.verdict import Verdict

MAX_CALLS = 10  # in one completion, because pairing takes 2^n steps
TAGGED = re.compile(r'<tool_call>(.*?)</tool_call>', re.S)
OPEN, CLOSE = '<tool_call>', '</tool_call>'
# Marks of an attempted call in the formats of chat templates. A text with a
# name and arguments is an attempted call too, even if it is not JSON.
MARKS = re.compile(
  r'tool[_▁](?:call|use|code)|<\|python_tag\|>|<function|<invoke\b|to=\w'
  r'|["\'](?:function_call|recipient_name)|^\s*action input:',
  re.I | re.M,
)
OBJECT = re.compile(
  r'\{\s{0,9}["\'](?:name|tool|function|action)["\']\s{0,9}:', re.I
)
NAME = re.compile(
  r'["\']?\b(?:name|tool|function|action)["\']?\s{0,9}[:=]', re.I
)
ARGUMENTS = re.compile(
  r'\b(?:arguments|parameters|args|action_input|input)'
  r'(?:["\']\s{0,9}[:=]|\s{0,9}[:=]\s{0,9}\{)',
  re.I,
)
SCORES = ('all', 'partial')
ANY_ARGUMENTS: Mapping = {'type': 'object'}


class CallError(ValueError):
  """A text or value that is not a valid list of tool calls."""


class Call(NamedTuple):
  name: str
  arguments: dict


def read(value) -> list[Call]:
  """Reads the calls of a JSON value.

  Raises:
    CallError: the value is not a call or a list of calls.
  """
  if isinstance(value, Mapping) and 'tool_calls' in value:
    value = value['tool_calls']
  items = value if isinstance(value, list) else [value]
  # A <tool_call> may also contain a list.
  items = [
    i for item in items for i in (item if isinstance(item, list) else [item])
  ]
  if len(items) > MAX_CALLS:
    raise CallError(f'{len(items)} calls, more than {MAX_CALLS}')
  return [_call(item) for item in items]


def _call(item) -> Call:
  if isinstance(item, Mapping) and isinstance(item.get('function'), Mapping):
    item = item['function']
  if not isinstance(item, Mapping) or not isinstance(item.get('name'), str):
    raise CallError(f'{item!r:.80} has no name')
  arguments = item.get('arguments', item.get('parameters', {}))
  if isinstance(arguments, str):
    arguments = structure.loads(arguments)
  if not isinstance(arguments, dict):
    raise CallError(f'the arguments of {item["name"]!r:.40} are not an object')
  return Call(item['name'], arguments)


def parse(text: str) -> list[Call]:
  """Reads the calls of a response; [] if it has none.

  Raises:
    CallError, structure.JsonError: a call is malformed.
  """
  if OPEN in text or CLOSE in text:
    n = text.count(OPEN)
    if n > MAX_CALLS:  # checked first, because the pattern is quadratic in n
      raise CallError(f'{n} calls, more than {MAX_CALLS}')
    bodies = TAGGED.findall(text)
    if not len(bodies) == n == text.count(CLOSE):
      raise CallError(f'{OPEN} without {CLOSE}, or {CLOSE} without {OPEN}')
    return read([structure.loads(body) for body in bodies])
  try:
    value = structure.find(text) if '"name"' in text else []
  except structure.JsonError:
    return []  # prose
  return read(value)


def attempted(text: str, tools: Iterable[str] = ()) -> bool:
  """Returns whether a text contains a call, well-formed or malformed.

  Args:
    tools: names of tools; `name(` and `<name>` are calls too.
  """
  names = '|'.join(map(re.escape, tools)) or r'(?!)'
  return bool(
    MARKS.search(text)
    or (NAME.search(text) and ARGUMENTS.search(text))
    or OBJECT.search(text)
    or re.search(rf'\b(?:{names})\(|<(?:{names})>', text)
  )


# --- the tools -----------------------------------------------------------


def schemas(tools: Sequence) -> dict[str, Mapping | bool]:
  """Reads and checks the tools: name -> schema of the arguments."""
  out = {}
  for tool in tools:
    if isinstance(tool, Mapping) and isinstance(tool.get('function'), Mapping):
      tool = tool['function']
    if not isinstance(tool, Mapping) or not isinstance(tool.get('name'), str):
      raise fields.FieldError(f"'tools': {tool!r:.80} has no name")
    out[tool['name']] = tool.get('parameters') or ANY_ARGUMENTS
    try:
      json_schema.check(out[tool['name']])
    except json_schema.SchemaError as e:
      raise fields.FieldError(f"'tools': {tool['name']!r}: {e}") from e
  return out


def problem(call: Call, tools: Mapping[str, Mapping | bool]) -> str | None:
  """Returns the reason why a call is not allowed, or None if it is allowed.

  An argument that the schema does not list is refused, unless the schema has
  the key 'additionalProperties'.
  """
  if call.name not in tools:
    return f'there is no tool {call.name!r:.40}'
  schema = tools[call.name]
  if isinstance(schema, Mapping) and 'properties' in schema:
    schema = {'additionalProperties': False, **schema}
  return json_schema.first_error(call.arguments, schema)


# --- the right calls -----------------------------------------------------


def similarity(a: Call, b: Call) -> float:
  """Computes the score of a pair, in [0, 1]; 1 if they are equal."""
  if a.name != b.name:
    return 0.0
  either = a.arguments.keys() | b.arguments.keys()
  equal = sum(
    canonical(a.arguments[k]) == canonical(b.arguments[k])
    for k in a.arguments.keys() & b.arguments.keys()
  )
  return (1 + equal) / (1 + len(either))


def pairing(
  calls: Sequence[Call], gold: Sequence[Call], *, ordered: bool = False
) -> float:
  """Computes the score of the best one-to-one pairing, in [0, 1]; 1: equal."""
  if not calls and not gold:
    return 1.0
  best = {0: 0.0}  # gold calls taken (bits) -> highest sum
  for call in calls:
    scores = [similarity(call, other) for other in gold]
    for taken, total in list(best.items()):
      for i, score in enumerate(scores):
        free = not taken >> i if ordered else not taken >> i & 1
        if score and free:
          key = taken | 1 << i
          best[key] = max(best.get(key, 0.0), total + score)
  return max(best.values()) / max(len(calls), len(gold))


def _read_completion(completion: str, part: str):
  """Returns (calls, None), or (None, the verdict) if there are no calls."""
  text = fields.final(completion, part)
  if text is None:
    return None, Verdict(0.0, 'no_answer')
  try:
    return parse(text), None
  except (CallError, structure.JsonError) as e:
    return None, Verdict(0.0, 'unparsed', detail=str(e)[:200])


def valid(completion: str, example: dict, *, part: str = 'response') -> Verdict:
  """Returns 1 if there are tool calls and example['tools'] allows all
  of them.
  """
  tools = schemas(fields.field(example, 'tools', (list, tuple)))
  calls, wrong = _read_completion(completion, part)
  if wrong is not None:
    return wrong
  if not calls:
    return Verdict(0.0, 'no_answer')
  problems = [p for p in (problem(call, tools) for call in calls) if p]
  return Verdict(float(not problems), detail=problems[0] if problems else None)


def reward(
  completion: str,
  example: dict,
  *,
  score: str = 'all',
  ordered: bool = False,
  part: str = 'response',
) -> Verdict:
  """Returns 1 if the calls are those of example['answer'] (a list, or JSON
  text).

  The order is ignored unless `ordered`. The module describes score='partial'.
  If the example has 'tools', a call that they do not allow makes the completion
  wrong. Without gold calls the completion must not call a tool, and a malformed
  call is wrong too.
  """
  if score not in SCORES:
    raise ValueError(f'score {score!r}: must be one of {", ".join(SCORES)}')
  answer = fields.field(example, 'answer', (str, list, dict))
  gold = read(structure.loads(answer) if isinstance(answer, str) else answer)
  tools = fields.field(example, 'tools', (list, tuple), default=None)
  calls, wrong = _read_completion(completion, part)
  if wrong is not None:
    return wrong
  if not calls and gold:
    return Verdict(0.0, 'no_answer')
  allowed = None if tools is None else schemas(tools)
  if not calls and attempted(
    fields.final(completion, part) or '', allowed or ()
  ):
    return Verdict(
      0.0, 'unparsed', detail='a malformed call; no call is the gold answer'
    )
  for call in calls if allowed is not None else ():
    wrong = problem(call, allowed)
    if wrong is not None:
      return Verdict(0.0, detail=wrong[:200])
  total = pairing(calls, gold, ordered=ordered)
  return Verdict(float(total == 1.0) if score == 'all' else total)
