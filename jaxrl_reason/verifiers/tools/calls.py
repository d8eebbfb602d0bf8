"""Parses tool calls in several formats, and defines the ends of turns.

  tags      <search>the words</search>       one tool, one argument: its first
  hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>    Qwen too
  llama     {"name": ..., "parameters": {...}}            perhaps <|python_tag|>
  mistral   [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]

A turn without a call ends the episode. With tags the closing tag ends the turn.
In the other formats the model's stop token ends it, and a turn may have several
calls.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from jaxrl_reason.verifiers.text import structure, tool_calls
from jaxrl_reason.verifiers.text.tool_calls import Call

# Closing tags that are not calls.
WORDS = ('answer', 'think', 'thinking', 'reasoning', 'final')
_CLOSED = re.compile(r'</([A-Za-z_][\w.-]*)>\s*\Z')
_PYTHON = '<|python_tag|>'
_MISTRAL = '[TOOL_CALLS]'


class Malformed(ValueError):
  """An invalid call."""


def _tags(text: str, first: Mapping[str, str]) -> list[Call]:
  closed = _CLOSED.search(text)
  if not closed or closed[1] in WORDS:
    return []
  name = closed[1]
  before, opened, inside = text[: closed.start()].rpartition(f'<{name}>')
  del before
  if not opened:
    raise Malformed(f'</{name}> without <{name}>')
  return [Call(name, {first.get(name, 'text'): inside})]


def _json(value: str) -> list[Call]:
  try:
    return tool_calls.read(structure.loads(value))
  except (structure.JsonError, tool_calls.CallError) as e:
    raise Malformed(str(e)) from e


def _hermes(text: str, first) -> list[Call]:
  del first
  if tool_calls.OPEN not in text and tool_calls.CLOSE not in text:
    return []
  try:
    return tool_calls.parse(text)
  except (structure.JsonError, tool_calls.CallError) as e:
    raise Malformed(str(e)) from e


def _llama(text: str, first) -> list[Call]:
  del first
  body = text.strip()
  if _PYTHON in body:
    return _json(body.rpartition(_PYTHON)[2])
  return _json(body) if body.startswith('{') and '"name"' in body else []


def _mistral(text: str, first) -> list[Call]:
  del first
  body = text.strip()
  if _MISTRAL in body:
    return _json(body.rpartition(_MISTRAL)[2])
  # [TOOL_CALLS] is a special token, which is not in the text.
  return _json(body) if body.startswith('[{') and '"name"' in body else []


PARSERS: dict[str, Callable] = {
  'tags': _tags,
  'hermes': _hermes,
  'llama': _llama,
  'mistral': _mistral,
}


def parse(form: str, text: str, first: Mapping[str, str]) -> list[Call]:
  """Parses the calls of a turn; [] without calls.

  Args:
    form: a name in `PARSERS`.
    first: name of a tool -> name of its first argument.

  Raises:
    Malformed: a call is invalid.
  """
  return PARSERS[form](text, first)


def stops(form: str, names: Sequence[str]) -> list[bytes]:
  """Returns the bytes that end a turn, in addition to stop tokens."""
  return [f'</{name}>'.encode() for name in names] if form == 'tags' else []
