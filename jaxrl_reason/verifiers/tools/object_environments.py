"""Plays environments of other libraries: objects with `reset` and `step`.

  Gymnasium     reset(seed) -> (seen, info)   step(action) -> (seen, reward,
                terminated, truncated, info)
  OpenEnv       reset(seed) -> observation    step(Action(message=...)) ->
                observation with `.reward` and `.done`

Such an object has the state of its episode, which other processes lack. So the
state that is sent is the list of the policy's turns, and every turn replays the
earlier turns. Environments must be deterministic by their seed. The first
observation has to be part of the problem's prompt (`opening`).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_reason.verifiers import resolve
from jaxrl_reason.verifiers.tools import Answer

HIDDEN = ('done', 'reward', 'metadata')  # of an observation of OpenEnv


class Objects:
  """Plays an environment of another library, one turn at a time."""

  def __init__(
    self,
    make: str,
    args: Mapping | None = None,
    action: str = '',
    field: str = 'message',
  ):
    """Args:
    make: 'package.module:Class', or a function that returns an environment.
    args: its arguments by name.
    action: class of an action with the text as its `field`; '': the text, or
      its number if it is the number of an action.
    """
    self._make, self._args = resolve.load(make), dict(args or {})
    self._action = resolve.load(action) if action else None
    self._field = field

  def opening(self, seed: int) -> str:
    """Returns the beginning of an episode, for a problem's prompt."""
    return _words(_begun(self._make(**self._args), seed)[1])

  def __call__(self, text: str, example: dict, state) -> Answer:
    turns = [*(state or ()), text]
    env, _ = _begun(self._make(**self._args), _seed(example))
    answer, done, reward = '', False, 0.0
    for words in turns:
      if done:
        raise ValueError('the environment is not deterministic by its seed')
      answer, done, reward = _heard(env.step(self._as_action(env, words)))
    return Answer(None if done else answer, turns, reward)

  def _as_action(self, env, text: str) -> Any:
    if self._action is not None:
      return self._action(**{self._field: text})
    space = getattr(env, 'action_space', None)
    number = text.strip().strip('>;')
    if hasattr(space, 'n') and number.isdecimal():
      return int(number)
    return text


def _seed(example: Mapping) -> int:
  """Returns a problem's seed: meta['seed'], or 0."""
  return int((example.get('meta') or {}).get('seed', 0))


def _begun(env, seed: int) -> tuple[Any, Any]:
  """Returns (a new environment, its first observation)."""
  first = env.reset(seed=seed)
  return env, first[0] if isinstance(first, tuple) else first


def _heard(result) -> tuple[str, bool, float]:
  """Converts a result of `step` to (text, whether it is over, reward)."""
  if isinstance(result, tuple):
    observation, reward, *ended, _ = result
    return _words(observation), any(ended), float(reward)
  return _words(result), bool(result.done), float(result.reward or 0.0)


def _words(observation) -> str:
  """Converts an observation to text: itself, or its fields as JSON."""
  if isinstance(observation, str):
    return observation
  dump: Callable | None = getattr(observation, 'model_dump', None)
  if dump is None:
    return str(observation)
  fields = {k: v for k, v in dump(mode='json').items() if k not in HIDDEN}
  values = list(fields.values())
  if len(values) == 1 and isinstance(values[0], str):
    return values[0]
  return json.dumps(fields)
