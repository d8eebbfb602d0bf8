"""Plays environments of the package `verifiers` (the protocol of its versions
0.2 and 0.3: `SingleTurnEnv`, `MultiTurnEnv`, `ToolEnv`).

Such an environment plays a whole episode and requests the model's turns from a
client. Here the client has the policy's turns so far. At the next request it
ends the replay, and the messages after the policy's last turn are the
observation. So the state that is sent is the list of turns, as for `objects`:
every turn replays the earlier turns, and environments must be deterministic.
The rubric scores a finished episode.

The problem's `meta` is the environment's own row (prompt, answer, info):
`env.get_dataset().to_json('train.jsonl')` writes such files for
`data.name='files'`.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence

from jaxrl_reason.names import install
from jaxrl_reason.verifiers import resolve
from jaxrl_reason.verifiers.tools import Answer, calls


class _Asked(BaseException):
  """The environment requests a turn that does not exist yet. It is not an
  Exception, because environments catch those.
  """

  def __init__(self, messages: Sequence):
    self.messages = messages


class Verifiers:
  """Plays an environment of the package, one turn at a time."""

  def __init__(self, make: str, args: Mapping | None = None, form: str = ''):
    """Args:
    make: function that returns the environment, 'package:load_environment' or
      'file.py:name'; 'verifiers:load_environment' loads installed ones.
    args: its arguments by name.
    form: format of tool calls, a name in `calls.PARSERS`; '': a turn is text.
    """
    if form and form not in calls.PARSERS:
      raise ValueError(f'form={form!r}: choose {", ".join(calls.PARSERS)}')
    try:
      from verifiers.clients import Client
    except ImportError as e:
      raise ValueError(
        'this needs the protocol of verifiers 0.2 and 0.3, which cannot be '
        f'imported ({e}): {install("verifiers")}'
      ) from e
    self._env = resolve.load(make)(**dict(args or {}))
    self._form, self._client = form, _client_of(Client)
    if self._env.rubric.has_group_rewards:
      raise ValueError(
        f'make={make!r}: its rubric compares the rollouts of a group, which '
        'an environment that answers one episode cannot; use one without'
      )

  def __call__(self, text: str, example: dict, state) -> Answer:
    turns = [*(state or ()), text]
    read = [self._read(words) for words in turns]
    event = '' if read[-1][1] is not None else 'malformed'
    try:
      reward = asyncio.run(self._play(read, dict(example['meta'])))
    except _Asked as e:
      return Answer(_words(e.messages), turns, 0.0, event)
    return Answer(None, turns, reward, event)

  def _read(self, text: str) -> tuple[str, list | None]:
    """Returns (text, its calls); None for invalid calls."""
    if not self._form:
      return text, []
    tools = {
      tool.name: next(iter(tool.parameters.get('properties', {})), 'text')
      for tool in self._env.tool_defs or ()
    }
    try:
      return text, calls.parse(self._form, text, tools)
    except calls.Malformed:
      return text, None

  async def _play(self, read: list, row: dict) -> float:
    """Plays an episode to its end, and scores it."""
    row.setdefault('example_id', 0)
    state = await self._env.rollout(row, self._client(read), 'policy', {})
    if state['error'] is not None:
      raise RuntimeError(f'the environment failed: {state["error"]!r}'[:400])
    await self._env.rubric.score_rollout(state)
    await self._env.rubric.cleanup(state)
    return float(state['reward'])


def _words(messages: Sequence) -> str:
  """Returns the messages since the policy's last one."""
  spoke = [i for i, m in enumerate(messages) if m.role == 'assistant']
  return '\n'.join(_content(m.content) for m in messages[spoke[-1] + 1 :])


def _content(content) -> str:
  if isinstance(content, str):
    return content
  return ''.join(getattr(part, 'text', '') for part in content or ())


def _client_of(base: type) -> type:
  """Builds a client that returns [(text, its calls)], one per request."""
  from verifiers.types import Response, ResponseMessage, ToolCall

  class Said(base):
    def setup_client(self, config):
      return config

    async def to_native_tool(self, tool):
      return tool

    async def to_native_prompt(self, messages):
      return messages, {}

    async def get_native_response(self, prompt, *_, **more):
      del more
      if not self.client:
        raise _Asked(prompt)
      text, found = self.client.pop(0)
      made = [
        ToolCall(id=f'call{i}', name=c.name, arguments=json.dumps(c.arguments))
        for i, c in enumerate(found or ())
      ]
      message = ResponseMessage(
        content=text, tool_calls=made or None, finish_reason='stop',
        is_truncated=False,
      )  # fmt: skip
      return Response(id='', created=0, model='policy', message=message)

    async def raise_from_native_response(self, response):
      pass

    async def from_native_response(self, response):
      return response

    async def close(self):
      pass

  return Said
