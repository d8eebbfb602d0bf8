"""Runs an environment's turns in a worker of a pool, with limits.

  (text, {'example', 'state'}) -> Reply

The pool ends an environment that takes too long or too much memory. This module
bounds the rest: an observation becomes text of bounded length, printed output
is dropped, the state becomes JSON of bounded length, and processes that the
environment started and left are ended.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping

from jaxrl_reason.verifiers import tools
from jaxrl_reason.verifiers.code.sandbox import client
from jaxrl_reason.verifiers.pool import limited, linux, procfs
from jaxrl_reason.verifiers.verdict import Verdict

MAX_STATE = 1 << 20  # characters of JSON
SWEEP_S = 2.0  # to end processes of an environment
EVENTS = ('', 'malformed', 'unknown', 'failed')


@dataclasses.dataclass(frozen=True, slots=True)
class Reply(Verdict):
  """An environment's answer as a verdict; the score is the turn's reward."""

  observation: str | None = None  # None: the episode is over
  state: str | None = None  # JSON
  event: str = ''


# Arguments of the `VerifierPool` of an environment.
POOL = {'build': f'{__name__}:build', 'verdicts': Reply}


def build(spec: Mapping) -> 'Server':
  """Builds the function that workers call, from {'env': {'name', 'args',
  'most'}}.
  """
  env = spec['env']
  environment = tools.make(env['name'], env['args'])
  return Server(environment, env['most'], call_context=_Alone)


class Server:
  """Calls an environment and limits its answers."""

  def __init__(self, env, most: int, call_context=contextlib.nullcontext):
    """Args:
    most: characters of an observation.
    call_context: makes the context of a call, which ends leftover processes.
    """
    self._env, self._most, self._call_context = env, most, call_context

  def __call__(self, text: str, case: Mapping) -> Reply:
    state = case['state']
    state = None if state is None else json.loads(state)
    with self._call_context():
      return self._reply(self._env(text, case['example'], state))

  def _reply(self, result) -> Reply:
    if not isinstance(result, tuple) or not 3 <= len(result) <= 4:
      raise TypeError(
        'an environment returns (observation or None, state, reward), not '
        f'{result!r:.80}'
      )
    answer = tools.Answer(*result)
    if answer.event not in EVENTS:
      raise ValueError(f'event {answer.event!r}: must be one of {EVENTS[1:]}')
    return Reply(
      float(answer.reward),
      observation=_text(answer.observation, self._most),
      state=_state(answer.state),
      event=answer.event,
    )


def _state(state) -> str:
  """Converts a state to JSON, because the trainer and other workers must not
  read a pickle of an environment.
  """
  try:
    text = json.dumps(state)
  except (TypeError, ValueError, RecursionError) as e:
    raise TypeError(
      'the state of an episode must be plain data (None, bool, numbers, text, '
      f'lists, and dicts with text as keys): {e}'
    ) from e
  if len(text) > MAX_STATE:
    raise ValueError(
      f'the state of an episode has {len(text)} characters of JSON; at most '
      f'{MAX_STATE}'
    )
  return text


def _text(observation: str | bytes | None, most: int) -> str | None:
  """Converts an observation to valid UTF-8 text, cut after `most` + 1
  characters.
  """
  if observation is None:
    return None
  if isinstance(observation, (bytes, bytearray)):
    return bytes(observation[: 4 * most + 4]).decode('utf-8', 'replace')[
      : most + 1
    ]
  if not isinstance(observation, str):
    raise TypeError(f'an observation is text, not {type(observation).__name__}')
  # A lone surrogate has no bytes.
  return observation[: most + 1].encode('utf-8', 'replace').decode()


def _hush() -> None:
  """Discards printed output, also of child processes."""
  with open(os.devnull, 'w') as nowhere:
    for descriptor in (1, 2):
      os.dup2(nowhere.fileno(), descriptor)


class _Alone:
  """The context of a call: ends other processes, and forks that return."""

  def __enter__(self):
    self._pid = os.getpid()
    _hush()
    if linux.AVAILABLE:
      linux.adopt_orphans()
    self._before = set(procfs.children(self._pid))

  def __exit__(self, *raised):
    if os.getpid() != self._pid:
      os._exit(0)  # a fork made by the call must not send an answer
    keep = self._before | client.processes() | limited.processes()
    if not procfs.end_children(SWEEP_S, keep=keep):
      os._exit(1)  # they multiply, so the pool ends the whole group
