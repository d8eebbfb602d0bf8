"""The Python environment of a run: `rl.turns` with `rl.path='host'`."""

import concurrent.futures
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxrl_reason import envs
from jaxrl_reason.base import Model
from jaxrl_reason.config import RL, Data
from jaxrl_reason.config.rl_sections import Turns
from jaxrl_reason.data import chat, mixture
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.names import choice, nearest
from jaxrl_reason.rollouts import chain, episode, turns
from jaxrl_reason.rollouts.host_episodes import Player
from jaxrl_reason.rollouts.verdict_arrays import CHARACTERS, Writer
from jaxrl_reason.verifiers import tools
from jaxrl_reason.verifiers.pool import PoolError, VerifierPool
from jaxrl_reason.verifiers.tools import calculator, calls, serve
from jaxrl_reason.verifiers.verdict import Verdict, all_invalid

# Texts that end a turn of the package's own environments.
STOPS = {'calculator': calculator.STOPS}
TRIED = 4  # problems to try before a run begins
# For templates that require a call before its reply.
_CALL = {'name': 'f', 'arguments': {}}
_MARK = 'jaxrl-reason-answer-of-a-tool'


def check(c: RL) -> None:
  """Refuses settings that do not work with an environment in Python."""
  t = c.turns
  if t.env == chain.NAME or t.env in {*envs.ENVS} - {*tools.ENVS}:
    raise ValueError(
      f"rl.turns.env={t.env!r} is inside the program: set rl.path='fused', or "
      f'choose one in Python, {", ".join(tools.ENVS)}'
    )
  if not tools.is_known(t.env):
    raise ValueError(
      f'rl.turns.env={t.env!r}: with rl.path="host" choose '
      f'{", ".join(tools.ENVS)}, or path/to/file.py:name'
    )
  if c.staleness:
    raise ValueError(
      f'rl.staleness={c.staleness}: with rl.turns.env={t.env!r} only 0 goes'
    )
  if t.calls not in calls.PARSERS:
    raise ValueError(choice('rl.turns.calls', t.calls, calls.PARSERS))
  if t.env == 'tools' and not t.tools:
    raise ValueError(
      "rl.turns.env='tools' needs rl.turns.tools, one at least: "
      "name={'tool': ..., 'args': {...}}"
    )
  for name, part in t.tools.items():
    if not _is_tool(part):
      raise ValueError(
        f'rl.turns.tools.{name}={part!r}: must be '
        "{'tool': name or path, 'args': {...}}"
      )
    if ':' not in part['tool'] and part['tool'] not in tools.TOOLS:
      raise ValueError(
        f'rl.turns.tools.{name}.tool={part["tool"]!r}: choose '
        f'{", ".join(tools.TOOLS)}, or path/to/file.py:function.'
        f'{nearest(part["tool"], tools.TOOLS)}'
      )


def _is_tool(part: Any) -> bool:
  """Returns whether a value has the form of a tool in `rl.turns.tools`."""
  return (
    isinstance(part, Mapping)
    and isinstance(part.get('tool'), str)
    and isinstance(part.get('args', {}), Mapping)
    and not set(part) - {'tool', 'args'}
  )


class Pool:
  """The processes of an environment, started when the first turn is over."""

  def __init__(self, t: Turns):
    args = dict(t.args)
    if t.env == 'tools':
      args |= {'calls': t.calls, 'tools': t.tools}
    most = CHARACTERS * t.observation
    self._env = {'name': t.env, 'args': args, 'most': most}
    self._limits = dict(
      workers=t.workers,
      timeout_s=t.timeout_s,
      start_s=t.start_s,
      chunk=1,  # a turn waits only for its own tool
    )
    self._pool = None

  def submit(self, cases: Sequence) -> concurrent.futures.Future:
    """Returns a future of the environment's replies."""
    if self._pool is None:
      self._pool = VerifierPool(
        {'env': self._env}, **self._limits, **serve.POOL
      )
    return self._pool.submit(cases)

  def stats(self) -> dict[str, float]:
    """Returns counts since the start; none before the start."""
    return self._pool.stats() if self._pool is not None else {}

  def close(self) -> None:
    """Ends the processes; the next turn starts new ones."""
    if self._pool is not None:
      self._pool.close()
      self._pool = None


class NullVerifier:
  """Replaces the verifier pool if all rewards come from the environment."""

  def submit(self, cases: Sequence) -> concurrent.futures.Future:
    """Returns a future of verdicts without a score."""
    future = concurrent.futures.Future()
    future.set_result([Verdict(0.0) for _ in cases])
    return future

  def stats(self) -> dict[str, float]:
    """Returns no counts."""
    return {}

  def progress(self) -> str:
    """Returns '': there is nothing to wait for."""
    return ''

  def close(self) -> None:
    """Does nothing: there are no processes."""


def limits(
  c: Turns, completion_len: int, tokenizer, weight: float
) -> episode.Limits:
  """Returns the limits of turns, with the bytes that end a turn."""
  room = completion_len
  own = c.stops or STOPS.get(c.env, ())
  stops = [text.encode() for text in own]
  if c.env == 'tools':
    stops += calls.stops(c.calls, list(c.tools))
  return episode.Limits(
    most=c.most,
    tokens=min(c.tokens or room, room),
    observation=c.observation,
    chunk=c.chunk,
    weight=weight,
    stops=turns.automaton(stops, tokenizer.token_bytes()),
  )


def player(
  c: RL,
  data: Data,
  model: Model,
  tokenizer,
  pool: Pool,
  *,
  n_samples: int,
  weight: float,
  mesh: jax.sharding.Mesh | None = None,
) -> Player:
  """Builds the player of episodes with the environment of `rl.turns`.

  Raises:
    ValueError: there are no tokens left for a reply.
  """
  return Player(
    limits(c.turns, data.completion_len, tokenizer, weight),
    model,
    n_samples=n_samples,
    max_new=data.completion_len,
    pool=pool,
    write=writer(c.turns, tokenizer, mixture.uses_chat(data)),
    decode=tokenizer.decode,
    burst=c.turns.burst,
    routes=c.replay_routes,
    mesh=mesh,
  )


def writer(t: Turns, tokenizer, in_chat: bool) -> Writer:
  """Builds the writer of replies.

  Args:
    in_chat: write them between the chat template's tokens around a reply.
  """
  room, encode = t.observation, tokenizer.encode_data
  if not in_chat:
    return Writer(encode, room=room)
  role = 'tool' if t.env == 'tools' or t.args.get('form') else 'user'
  before, after, quoted = reply_frame(tokenizer.template, tokenizer, role)
  if len(before) + len(after) >= room:
    raise ValueError(
      f'rl.turns.observation={room}: the chat template alone has '
      f'{len(before) + len(after)} tokens around an answer'
    )
  if quoted:
    encode = _quoting(encode)
  return Writer(encode, before, after, room)


def _quoting(encode: Callable) -> Callable:
  """Returns `encode` for a text within the quotes of JSON."""
  return lambda text: encode(json.dumps(text, ensure_ascii=False)[1:-1])


def reply_frame(template: chat.ChatTemplate, tokenizer: Any, role: str):
  """Returns the tokens of a chat template around a reply.

  Args:
    role: of the reply: tool, or user.

  Returns:
    (ids after the assistant's last token and before the reply, ids after it up
    to the assistant's next token, whether the reply is within quotes).

  Raises:
    ValueError: the template does not show such a reply.
  """
  call = {'type': 'function', 'function': _CALL, 'id': 'a23456789'}
  said, answer = {'content': 'x'}, {'role': role, 'content': _MARK}
  tools_ = None
  if role == 'tool':
    said = {'content': '', 'tool_calls': [call]}
    answer |= {'name': 'f', 'tool_call_id': call['id']}
    tools_ = [tool_schema('f')]
  before_it = [{'role': 'user', 'content': 'x'}, {'role': 'assistant'} | said]
  text = template.render([*before_it, answer], tools=tools_)
  before, mark, after = text.partition(_MARK)
  if not mark:
    raise ValueError(f'the chat template does not show what a {role} answers')
  ends = {tokenizer.token_text(i) for i in tokenizer.eos_ids}
  spoken = max((before.rfind(end) + len(end), end) for end in ends)
  if before.rfind(spoken[1]) >= 0:
    before = before[spoken[0] :]
  quoted = before.endswith('"') and after.startswith('"')
  ids = [tuple(chat.encode_after(tokenizer, x)) for x in (before, after)]
  return *ids, quoted


def tool_schema(name: str) -> dict:
  """Returns the schema of a tool without arguments, for templates that need
  tools.
  """
  parameters = {'type': 'object', 'properties': {}, 'required': []}
  function = {'name': name, 'description': name, 'parameters': parameters}
  return {'type': 'function', 'function': function}


def try_out(c: Turns, problems: Problems) -> None:
  """Starts the environment, and runs it on the first turns of the first
  problems, before anything is compiled.

  Raises:
    ValueError: it does not start, or no turn has a valid verdict.
  """
  env, pool = c.env, Pool(c)
  examples = [problems.train[i] for i in range(min(TRIED, len(problems.train)))]
  cases = [(_first(e), {'example': e, 'state': None}) for e in examples]
  try:
    verdicts = pool.submit(cases).result()
  except PoolError as e:
    raise ValueError(f'rl.turns.env={env!r}: {e}') from e
  finally:
    pool.close()
  if failed := all_invalid(verdicts, c.timeout_s, 'rl.turns.timeout_s'):
    raise ValueError(
      f'rl.turns.env={env!r}: tried on the first problems, before anything is '
      f'compiled: {failed.replace("the reward", "the environment")}'
    )


def _first(example: dict) -> str:
  """Returns the first turn of the reference solution."""
  return example.get('turns', [[example.get('solution') or '', '']])[0][0]
