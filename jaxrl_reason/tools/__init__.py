"""Tools and environments in Python, for turns with a policy (docs/turns.md).

A function, or an object of a class, in a worker process of a pool:

  env(text, example, state) -> Answer

`text` is what the policy said in a turn, `state` what the call before gave of
this episode (None at first): plain data, pickled, so that any worker may answer
any turn and one that was killed has lost nothing. A class is called once with
the recipe's arguments where the processes start, before anybody waits; a
function gets them with every call.

This package needs no jax: workers import it.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxrl_reason.rewards import resolve

# Tools by the name under which `rl.turns.tools` asks for them.
TOOLS = {
  'calculate': 'jaxrl_reason.tools.calculator:calculate',
  'python': 'jaxrl_reason.tools.python:Python',
  'search': 'jaxrl_reason.tools.search:Search',
  'sql': 'jaxrl_reason.tools.sql:Sql',
}
# Environments by the name that `rl.turns.env` has on the host path; others are
# package.module:name or path/to/file.py:name.
ENVS = {
  'calculator': 'jaxrl_reason.tools.calculator:step',
  'objects': 'jaxrl_reason.tools.objects:Objects',
  'retry': 'jaxrl_reason.tools.retry:Retry',
  'tools': 'jaxrl_reason.tools.toolbox:Toolbox',
  'verifiers': 'jaxrl_reason.tools.verifiers:Verifiers',
}


class Answer(NamedTuple):
  """What an environment says to a turn."""

  observation: str | bytes | None  # None: the episode is over
  state: Any = None
  reward: float = 0.0  # of this turn
  event: str = ''  # that is counted: malformed, unknown or failed


def is_known(name: str) -> bool:
  """Tells whether `rl.turns.env` can be that on the host path."""
  return name in ENVS or ':' in name


def load(name: str) -> Callable:
  """Loads the function or class of that name, not made yet."""
  return resolve.load({**TOOLS, **ENVS}.get(name, name))


def make(name: str, args: Mapping) -> Callable:
  """Makes an environment, or a tool, of its name and arguments.

  Raises:
    RewardError: there is none of that name; TypeError: other arguments.
  """
  found = load(name)
  if inspect.isclass(found):
    return found(**args)
  return functools.partial(found, **args) if args else found
