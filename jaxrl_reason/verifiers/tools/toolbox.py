"""Parses and runs the tool calls of a turn: the environment `tools`.

Errors of a call are returned as text and counted: `malformed` (no valid call,
or wrong arguments), `unknown` (no such tool), `failed` (the tool raised). A
tool is any function of named arguments that returns a text. If it has an
argument `example`, it receives the problem. A tool with state has `keeps =
True` and an argument `state`, and returns (text, state).
"""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_reason.verifiers import tools
from jaxrl_reason.verifiers.text import tool_calls
from jaxrl_reason.verifiers.tools import calls

OURS = ('example', 'state')  # arguments that are not the policy's
_READ = {'integer': int, 'number': float, 'boolean': json.loads}
_TYPES = {str: 'string', int: 'integer', float: 'number', bool: 'boolean'}


def schemas(spec: Mapping) -> list[dict]:
  """Returns the schemas of the tools of `build` for chat templates, from
  signatures and docstrings, without instances.
  """
  return [_schema(name, part) for name, part in spec.items()]


def prompted(rl: Any) -> list[dict] | None:
  """Returns the schemas of the tools for the chat template of prompts. Returns
  None without tools, and for calls as tags, which a recipe explains in its own
  prompt.

  Args:
    rl: the section of a run's config.
  """
  c = rl.turns
  shown = rl.path == 'host' and c.env == 'tools' and c.calls != 'tags'
  return schemas(c.tools) if shown else None


def _schema(name: str, part: Mapping) -> dict:
  call, fixed = tools.load(part['tool']), part.get('args', {})
  if inspect.isclass(call):
    call, fixed = call.__call__, {}
  parameters = {
    key: p
    for key, p in inspect.signature(call).parameters.items()
    if key not in OURS and key != 'self' and key not in fixed
  }
  required = [k for k, p in parameters.items() if p.default is p.empty]
  types = {k: _TYPES.get(p.annotation) for k, p in parameters.items()}
  return {
    'type': 'function',
    'function': {
      'name': name,
      'description': (inspect.getdoc(call) or name).split('\n\n')[0],
      'parameters': {
        'type': 'object',
        'properties': {k: {'type': t} if t else {} for k, t in types.items()},
        'required': required,
      },
    },
  }


def build(spec: Mapping) -> dict[str, Callable]:
  """Builds the tools of {name: {'tool', 'args'}}."""
  return {
    name: tools.make(part['tool'], part.get('args', {}))
    for name, part in spec.items()
  }


class Toolbox:
  """Runs the tool calls of a turn. A turn without calls ends the episode."""

  def __init__(self, calls: str, tools: Mapping):
    """Args:
    calls: format of calls, a name in `calls.PARSERS`.
    tools: {name: {'tool': name or path, 'args': {...}}}.
    """
    self._form, self._tools = calls, build(tools)
    self._allowed = tool_calls.schemas(schemas(tools))
    self._first = {
      name: next(iter(schema['properties']), 'text')
      for name, schema in self._allowed.items()
    }
    self._kinds = {
      name: schema['properties'].get(self._first[name], {}).get('type')
      for name, schema in self._allowed.items()
    }

  def __call__(self, text: str, example: dict, state) -> tools.Answer:
    try:
      requested = calls.parse(self._form, text, self._first)
    except calls.Malformed as e:
      return tools.Answer(f'error: {e}'[:200], state, 0.0, 'malformed')
    if not requested:
      return tools.Answer(None, state)
    states, results, event = dict(state or {}), [], ''
    for call in requested:
      words, problem = self._call(call, example, states)
      results.append(words)
      event = event or problem
    return tools.Answer('\n'.join(results), states, 0.0, event)

  def _typed(self, call):
    """Converts the argument of a call in tags to the type of the tool's
    argument.
    """
    read = _READ.get(self._kinds.get(call.name))
    if self._form != 'tags' or read is None:
      return call
    try:
      arguments = {k: read(v.strip()) for k, v in call.arguments.items()}
    except (ValueError, RecursionError):  # the tool itself reports the error
      return call
    return call._replace(arguments=arguments)

  def _call(self, call, example: dict, states: dict) -> tuple[str, str]:
    """Runs one call; returns (text, event to count)."""
    call = self._typed(call)
    wrong = tool_calls.problem(call, self._allowed)
    if wrong:
      known = call.name in self._tools
      return f'error: {wrong}', 'malformed' if known else 'unknown'
    tool = self._tools[call.name]
    more = {'example': example} if _wants(tool, 'example') else {}
    try:
      if getattr(tool, 'keeps', False):
        more['state'] = states.get(call.name)
        result, states[call.name] = tool(**call.arguments, **more)
      else:
        result = tool(**call.arguments, **more)
    # A tool may raise anything: the policy reads the error, and the run counts
    # it.
    except Exception as e:
      return f'error: {type(e).__name__}: {e}'[:400], 'failed'
    return _words(result), ''


def _words(result) -> str:
  if isinstance(result, bytes | bytearray):
    return bytes(result).decode('utf-8', 'replace')
  return result if isinstance(result, str) else str(result)


def _wants(tool: Callable, name: str) -> bool:
  return name in inspect.signature(tool).parameters
