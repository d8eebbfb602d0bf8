"""Tool calls: are they well formed, allowed by the tools, and the right ones?

  completion -> calls (name, arguments) -> the tools' schemas -> the gold calls

Forms: any number of `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`
(Hermes, Qwen), or the answer is JSON: one call, a list, or {"tool_calls":
[...]}. A call may be wrapped as {"type": "function", "function": {...}}, its
arguments may be JSON text, and be named 'parameters'. Nothing is executed.

With partial credit a pair of calls of one name scores

  (1 + arguments that are equal) / (1 + arguments that either has)

and the completion the best one-to-one pairing's sum, divided by the number of
calls of the side that has more: a missing and a superfluous call both cost.
(Compare the tool-use rewards of https://arxiv.org/abs/2504.13958.)
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.text import json_schema, structure
from jaxrl_reason.verifiers.text.json_schema import canonical
from jaxrl_reason.verifiers.verdict import Verdict

MAX_CALLS = 10  # in one completion: pairing takes 2^n steps
TAGGED = re.compile(r'<tool_call>(.*?)</tool_call>', re.S)
OPEN, CLOSE = '<tool_call>', '</tool_call>'
# Marks of a begun call in the formats of chat templates; with a name and
# arguments, JSON or not, a text is one, too.
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
  """A text or value that should be tool calls and is not."""


class Call(NamedTuple):
  name: str
  arguments: dict


def read(value) -> list[Call]:
  """Reads the calls of a JSON value; CallError if it is none."""
  if isinstance(value, Mapping) and 'tool_calls' in value:
    value = value['tool_calls']
  items = value if isinstance(value, list) else [value]
  # A <tool_call> may hold a list too.
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
    raise CallError(f'the arguments of {item["name"]!r:.40} are no object')
  return Call(item['name'], arguments)


def parse(text: str) -> list[Call]:
  """Reads the calls of a response; [] if it has none.

  Raises CallError or structure.JsonError where a call is begun but not right.
  """
  if OPEN in text or CLOSE in text:
    n = text.count(OPEN)
    if n > MAX_CALLS:  # before the pattern, which is quadratic in them
      raise CallError(f'{n} calls, more than {MAX_CALLS}')
    bodies = TAGGED.findall(text)
    if not len(bodies) == n == text.count(CLOSE):
      raise CallError(f'{OPEN} without {CLOSE}, or the other way round')
    return read([structure.loads(body) for body in bodies])
  try:
    value = structure.find(text) if '"name"' in text else []
  except structure.JsonError:
    return []  # prose
  return read(value)


def attempted(text: str, tools: Iterable[str] = ()) -> bool:
  """Returns whether a text begins a call, well formed or not.

  Args:
    tools: names, which begin a call as `name(` or `<name>`.
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
  """Reads name -> schema of the arguments, checked."""
  found = {}
  for tool in tools:
    if isinstance(tool, Mapping) and isinstance(tool.get('function'), Mapping):
      tool = tool['function']
    if not isinstance(tool, Mapping) or not isinstance(tool.get('name'), str):
      raise fields.FieldError(f"'tools': {tool!r:.80} has no name")
    found[tool['name']] = tool.get('parameters') or ANY_ARGUMENTS
    try:
      json_schema.check(found[tool['name']])
    except json_schema.SchemaError as e:
      raise fields.FieldError(f"'tools': {tool['name']!r}: {e}") from e
  return found


def problem(call: Call, tools: Mapping[str, Mapping | bool]) -> str | None:
  """Returns the reason why the tools do not allow the call; None if they do.

  An argument that the schema does not list is refused, unless the schema says
  something of 'additionalProperties'.
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
  found: Sequence[Call], gold: Sequence[Call], *, ordered: bool = False
) -> float:
  """Computes the best one-to-one pairing's score, in [0, 1]; 1 if all are
  equal.
  """
  if not found and not gold:
    return 1.0
  best = {0: 0.0}  # gold calls taken (bits) -> highest sum
  for call in found:
    scores = [similarity(call, other) for other in gold]
    for taken, total in list(best.items()):
      for i, score in enumerate(scores):
        free = not taken >> i if ordered else not taken >> i & 1
        if score and free:
          key = taken | 1 << i
          best[key] = max(best.get(key, 0.0), total + score)
  return max(best.values()) / max(len(found), len(gold))


def _read_completion(completion: str, part: str):
  """(calls, None), or (None, the verdict on a completion without)."""
  text = fields.final(completion, part)
  if text is None:
    return None, Verdict(0.0, 'no_answer')
  try:
    return parse(text), None
  except (CallError, structure.JsonError) as e:
    return None, Verdict(0.0, 'unparsed', detail=str(e)[:200])


def valid(completion: str, example: dict, *, part: str = 'response') -> Verdict:
  """Returns 1 if there are tool calls and example['tools'] allow every one."""
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

  In any order unless `ordered`; score='partial' pays as the module says. With
  an example['tools'], one call that these do not allow makes all of it wrong.
  Without gold calls the completion must not call a tool: a call that is begun
  and malformed is wrong, too.
  """
  if score not in SCORES:
    raise ValueError(f'score {score!r} is none of {", ".join(SCORES)}')
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
    return Verdict(0.0, 'unparsed', detail='a malformed call; none is right')
  for call in calls if allowed is not None else ():
    wrong = problem(call, allowed)
    if wrong is not None:
      return Verdict(0.0, detail=wrong[:200])
  total = pairing(calls, gold, ordered=ordered)
  return Verdict(float(total == 1.0) if score == 'all' else total)
