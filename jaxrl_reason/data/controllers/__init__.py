"""Controllers: choice of the next problems from the pool's statistics.

  CONTROLLERS   weights of problems within a source    data.controller.name
  STEERING      weights of sources                     data.controller.sources

A controller is a frozen record of its settings (docs/choosing.md has a table).
`start` returns its memory, a dict of arrays. `weigh` is a pure function of the
statistics and the stage's step. `observe` returns the memory after a batch. A
new controller is such a class with a name in a table below.
"""

from collections.abc import Mapping
from typing import Any

from jaxrl_reason import names as names_lib
from jaxrl_reason.data.controllers import by_problem as problems
from jaxrl_reason.data.controllers import by_source as sources

CONTROLLERS = {
  'uniform': problems.Uniform,
  'priority': problems.Priority,
  'learnability': problems.Learnability,
  'band': problems.Band,
  'greso': problems.Greso,
  'mastered': problems.Mastered,
  'drive': problems.Drive,
  'easy_to_hard': problems.EasyToHard,
  'adarft': problems.AdaRft,
  'ladder': problems.Ladder,
}
STEERING = {
  'weights': sources.Weights,
  'free': sources.Free,
  'consumed': sources.Consumed,
  'tokens': sources.Tokens,
  'sec': sources.Sec,
  'dump': sources.Dump,
}
# Controllers that read the difficulty of all problems.
BY_DIFFICULTY = ('easy_to_hard', 'adarft', 'ladder')
# Keys of the section that are not settings of a record.
OTHER = ('name', 'sources', 'window', 'refresh', 'memory', 'prior')


def _settings(kind: type, section: Mapping[str, Any]) -> dict[str, Any]:
  fields = kind.__dataclass_fields__
  return {k: v for k, v in section.items() if k in fields and v is not None}


def names(c: Mapping[str, Any]) -> tuple[str, str]:
  """Returns the controller and the steering that a section names; sources
  without a controller are drawn uniformly.
  """
  return 'uniform' if c['name'] == 'none' else c['name'], c['sources']


def make(c: Mapping[str, Any], weights: tuple = (1.0,)):
  """Builds the controller of problems and the steering of sources of a
  `data.controller` section.

  Args:
    weights: of the sources, numbers or schedules.

  Raises:
    ValueError: an unknown name, or a setting that neither of the two has.
  """
  chosen = []
  for key, table, name in zip(
    ('name', 'sources'), (CONTROLLERS, STEERING), names(c)
  ):
    if name not in table:
      raise ValueError(names_lib.choice(f'data.controller.{key}', name, table))
    chosen.append(table[name])
  known = {k for kind in chosen for k in kind.__dataclass_fields__}
  for key, value in c.items():
    if key not in OTHER and value is not None and key not in known:
      raise ValueError(
        f'data.controller.{key}={value!r} has no effect: neither {c["name"]!r} '
        f'nor data.controller.sources={c["sources"]!r} reads it; set it to None'
      )
  problem, steering = chosen
  return (
    problem(**_settings(problem, c)),
    steering(weights=weights, **_settings(steering, c)),
  )
