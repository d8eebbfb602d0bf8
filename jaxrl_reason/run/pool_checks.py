"""What `data.controller` and `data.sources` must satisfy; errors name a key."""

from collections.abc import Mapping
from typing import Any

import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason import tasks
from jaxrl_reason.data import controllers, mixture
from jaxrl_reason.run import ranges

SECTIONS = ('files', 'knobs', 'harder')


def check(config: ml_collections.ConfigDict) -> None:
  """Refuses a controller or sources that cannot work.

  Raises:
    ValueError: names the key.
  """
  _check_controller(config.data.controller)
  for name, source in config.data.sources.items():
    _check_source(f'data.sources.{name}', source)
  c = config.data.controller
  if len(config.data.sources) > 1 and c.name in controllers.BY_DIFFICULTY:
    if c.sources != 'free':
      raise ValueError(
        f'data.controller.sources={c.sources!r}: {c.name!r} goes by the '
        "difficulty of all problems, and would be held to the sources' shares; "
        "set it to 'free'"
      )
  if 'rl' in config.stages and config.data.controller.refresh:
    _check_refresh(config)
  if config.data.sources:
    _check_names(config.data)
    _check_weights(config.data)
    supervised = {'pretrain', 'sft'} & {*config.stages}
    if supervised and not any(mixture.own(config.data, 'supervised')):
      raise ValueError(
        f'stages={config.stages}: no source of data.sources has '
        'supervised=True to train on'
      )
  elif config.data.controller.sources != 'weights':
    raise ValueError(
      f'data.controller.sources={config.data.controller.sources!r} steers '
      'between sources: name them in data.sources'
    )


def _check_refresh(config: ml_collections.ConfigDict) -> None:
  n, c = config.data.controller.refresh, config.rl
  key = f'data.controller.refresh={n}'
  if not controllers.is_on(config.data):
    raise ValueError(
      f'{key} moves the window of a pool, and there is none: set '
      'data.controller.name'
    )
  if n % c.steps_per_dispatch:
    raise ValueError(
      f'{key} does not divide by rl.steps_per_dispatch={c.steps_per_dispatch}: '
      'the pool moves between two dispatches'
    )
  by_problem = {
    'rl.staleness': c.staleness,
    'rl.archive': c.archive,
    'rl.shaping.historical': c.shaping.historical,
    'rl.replay.by': c.replay.by if c.replay.by == 'failing' else '',
    'rl.replay.mix': c.replay.mix if c.replay.mix == 'rows' else '',
  }
  for name, value in by_problem.items():
    if value:
      raise ValueError(
        f'{key} and {name}={value!r}: another window has other problems under '
        'the same numbers; set one of them to its default'
      )


def _check_controller(c: ml_collections.ConfigDict) -> None:
  given = {k: v for k, v in c.items() if v is not None}
  ranges.check(given, ranges.CONTROLLER, 'data.controller.')
  problem, _ = controllers.make(c.to_dict())
  if c.name == 'band' and problem.low > problem.high:
    raise ValueError(
      f'data.controller.low={problem.low} is above data.controller.high='
      f'{problem.high}: no problem has such a solve rate'
    )


def _check_source(key: str, source: Any) -> None:
  """Refuses a source with unknown keys, or of an unknown task."""
  if not isinstance(source, ml_collections.ConfigDict):
    raise ValueError(
      f"{key}={source!r}: must be a section such as dict(name='arithmetic')"
    )
  known = (*mixture.KEYS, *mixture.OWN)
  for name in source:
    if name not in known:
      near = config_lib.nearest(name, known)
      raise ValueError(
        f'unknown key {key}.{name}.{near} A source has {", ".join(known)}'
      )
  for name in SECTIONS:
    if name in source and not isinstance(
      source[name], ml_collections.ConfigDict
    ):
      raise ValueError(f'{key}.{name}={source[name]!r}: must be a section')
  if not isinstance(source.get('supervised', True), bool):
    raise ValueError(f'{key}.supervised={source.supervised!r}: True or False')
  hard = source.get('difficulty')
  if hard is not None and (
    isinstance(hard, bool) or not isinstance(hard, int | float)
  ):
    raise ValueError(f'{key}.difficulty={hard!r}: must be a number')


def _check_weights(data: ml_collections.ConfigDict) -> None:
  values = []
  for name, weight in zip(data.sources, mixture.own(data, 'weight')):
    values.append(_values(f'data.sources.{name}.weight', weight))
  if not any(max(v) > 0 for v in values):
    keys = ', '.join(f'data.sources.{name}.weight' for name in data.sources)
    raise ValueError(f'{keys}: all are 0; nothing would be drawn')
  times = {t for w in mixture.own(data, 'weight') for t in _times(w)}
  for t in sorted(times):
    if not any(_at(w, t) > 0 for w in mixture.own(data, 'weight')):
      raise ValueError(
        f'data.sources: all weights are 0 at step {t:g}; nothing would be drawn'
      )


def _times(weight) -> list:
  return list(weight['at']) if isinstance(weight, Mapping) else []


def _at(weight, time: float) -> float:
  """A weight at a step, as `sources.Weights.wanted` has it."""
  if not isinstance(weight, Mapping):
    return weight
  at, values = weight['at'], weight['values']
  if time <= at[0]:
    return values[0]
  for (a, x), (b, y) in zip(zip(at, values), zip(at[1:], values[1:])):
    if time <= b:
      return x + (y - x) * (time - a) / (b - a)
  return values[-1]


def _values(key: str, weight: Any) -> list[float]:
  """The numbers of a weight; refuses what is neither number nor schedule."""
  values, at = [weight], [0]
  if isinstance(weight, Mapping):
    values, at = list(weight.get('values', ())), list(weight.get('at', ()))
    if set(weight) - {'by', 'at', 'values'} or weight.get('by') != 'step':
      values = []
  numbers = [
    isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x < 1e9
    for x in (*values, *at)
  ]
  increasing = all(a < b for a, b in zip(at, at[1:]))
  if not values or len(at) != len(values) or not all(numbers) or not increasing:
    raise ValueError(
      f'{key}={weight!r}: must be a number of at least 0, or '
      "{'by': 'step', 'at': [...], 'values': [...]} with as many values as "
      'points, which increase'
    )
  return values


def _check_names(data: ml_collections.ConfigDict) -> None:
  """Refuses a source of a data set or task that does not exist."""
  for name, section in mixture.sections(data).items():
    known = ('gsm8k', 'files', *tasks.TASKS)
    if not tasks.is_known(section.name) and section.name not in known:
      raise ValueError(
        f'data.sources.{name}.name={section.name!r}: choose one of '
        f'{", ".join(known)}, or gym:<family>.'
        f'{config_lib.nearest(section.name, known)}'
      )
