"""Defines tools and environments in Python, for episodes (docs/tools.md).

An environment is a function or an object in a worker process of a pool:

  env(text, example, state) -> Answer

`text` is the policy's turn. `state` is the state that the episode's last call
returned (None at first). It is plain data that is sent as JSON (tuples become
lists). So any worker can play any turn, and a killed worker loses nothing. A
class is called once with the recipe's arguments when the processes start; a
function receives them with every call.

Workers import this package, so it must not import jax.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxrl_reason.verifiers import resolve

__all__ = ['Answer', 'ENVS', 'TOOLS', 'load', 'make']

# Tools by their names in `rl.turns.tools`.
TOOLS = {
  'calculate': 'jaxrl_reason.verifiers.tools.calculator:calculate',
  'python': 'jaxrl_reason.verifiers.tools.python:Python',
  'search': 'jaxrl_reason.verifiers.tools.search:Search',
  'sql': 'jaxrl_reason.verifiers.tools.sql_queries:Sql',
}
# Environments by their names in `rl.turns.env` on the host path; others are
# package.module:name or path/to/file.py:name.
ENVS = {
  'calculator': 'jaxrl_reason.verifiers.tools.calculator:step',
  'objects': 'jaxrl_reason.verifiers.tools.object_environments:Objects',
  'retry': 'jaxrl_reason.verifiers.tools.retry:Retry',
  'tools': 'jaxrl_reason.verifiers.tools.toolbox:Toolbox',
  'verifiers': 'jaxrl_reason.verifiers.tools.prime_environments:Verifiers',
}


class Answer(NamedTuple):
  """The answer of an environment to a turn."""

  observation: str | bytes | None  # None: the episode is over
  state: Any = None  # plain data
  reward: float = 0.0  # of this turn
  event: str = ''  # the event to count: malformed, unknown or failed


def is_known(name: str) -> bool:
  """Returns whether `rl.turns.env` can have this value on the host path."""
  return name in ENVS or ':' in name


def load(name: str) -> Callable:
  """Loads the function or class of a name, without an instance."""
  return resolve.load({**TOOLS, **ENVS}.get(name, name))


def make(name: str, args: Mapping) -> Callable:
  """Builds an environment or a tool from its name and arguments.

  Raises:
    RewardError: the name is unknown; TypeError: wrong arguments.
  """
  target = load(name)
  if inspect.isclass(target):
    return target(**args)
  return functools.partial(target, **args) if args else target
