"""What a pool's worker runs for a turn: the environment, and its limits.

  (text, {'example', 'state'}) -> Reply

The pool ends what takes too long or too much memory. Here is the rest: what an
environment says becomes text of bounded length, what it prints goes nowhere,
its state is bounded and pickled before it leaves, and processes that it started
and left are ended.
"""

import contextlib
import dataclasses
import os
import pickle
import signal
import time
from collections.abc import Mapping

from jaxrl_reason import tools
from jaxrl_reason.rewards.code.sandbox import client, linux
from jaxrl_reason.rewards.pool import procfs
from jaxrl_reason.rewards.verdict import Verdict

MAX_STATE = 1 << 20  # bytes, pickled
SWEEP_S = 2.0  # to end what an environment left behind
EVENTS = ('', 'malformed', 'unknown', 'failed')


@dataclasses.dataclass(frozen=True, slots=True)
class Reply(Verdict):
  """What an environment said, as a pool's verdict; the score is the turn's
  reward.
  """

  observation: str | None = None  # None: the episode is over
  state: bytes | None = None  # pickled
  event: str = ''


def build(spec: Mapping) -> 'Server':
  """Makes what workers call, of {'env': {'name', 'args', 'most'}}."""
  env = spec['env']
  made = tools.make(env['name'], env['args'])
  return Server(made, env['most'], around=_Alone)


class Server:
  """Calls an environment and bounds what it gives."""

  def __init__(self, env, most: int, around=contextlib.nullcontext):
    """Args:
    most: characters of an observation.
    around: makes a context of a call, which ends what the call has left.
    """
    self._env, self._most, self._around = env, most, around

  def __call__(self, text: str, case: Mapping) -> Reply:
    state = case['state']
    state = None if state is None else pickle.loads(state)
    with self._around():
      return self._reply(self._env(text, case['example'], state))

  def _reply(self, said) -> Reply:
    if not isinstance(said, tuple) or not 3 <= len(said) <= 4:
      raise TypeError(
        'an environment returns (observation or None, state, reward), not '
        f'{said!r:.80}'
      )
    answer = tools.Answer(*said)
    if answer.event not in EVENTS:
      raise ValueError(f'event {answer.event!r} is none of {EVENTS[1:]}')
    state = pickle.dumps(answer.state)
    if len(state) > MAX_STATE:
      raise ValueError(
        f'the state of an episode has {len(state)} bytes; {MAX_STATE} at most'
      )
    return Reply(
      float(answer.reward),
      observation=_text(answer.observation, self._most),
      state=state,
      event=answer.event,
    )


def _text(said: str | bytes | None, most: int) -> str | None:
  """An observation as text that has UTF-8 bytes, cut after `most` characters
  and one.
  """
  if said is None:
    return None
  if isinstance(said, (bytes, bytearray)):
    return bytes(said[: 4 * most + 4]).decode('utf-8', 'replace')[: most + 1]
  if not isinstance(said, str):
    raise TypeError(f'an observation is text, not {type(said).__name__}')
  # Half of a surrogate pair has no bytes.
  return said[: most + 1].encode('utf-8', 'replace').decode()


def _hush() -> None:
  """Sends what is printed nowhere, a child's words too: it is no answer, and
  may be a gigabyte in the run's own log.
  """
  with open(os.devnull, 'w') as nowhere:
    for descriptor in (1, 2):
      os.dup2(nowhere.fileno(), descriptor)


class _Alone:
  """A call after which this is the only process, and the right one."""

  def __enter__(self):
    self._pid = os.getpid()
    _hush()
    if linux.AVAILABLE:
      linux.adopt_orphans()
      self._before = set(procfs.children(self._pid))

  def __exit__(self, *raised):
    if os.getpid() != self._pid:
      os._exit(0)  # a fork of the call's, which would answer as well
    end = time.monotonic() + SWEEP_S
    while linux.AVAILABLE and time.monotonic() < end:
      left = set(procfs.children(self._pid)) - self._before
      left -= client.processes()
      if not left:
        return
      for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if linux.AVAILABLE:
      os._exit(1)  # they multiply: the pool ends the whole group
