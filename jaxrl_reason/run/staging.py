"""The stages of a run as a list: a name, a kind and settings of its own each.

  stages = ('sft', 'short', 'long')
  named = {
    'short': dict(kind='rl', rl=dict(steps=50), data=dict(completion_len=8)),
    'long': dict(kind='rl', keep=('optimizer',)),
  }

`each` gives every stage its own whole config, which is the run's but for what
the stage changes: what a stage is made of never asks whose it is.
"""

import collections
import copy
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import ml_collections

from jaxrl_reason import config as config_lib

# What of the state of the stage before may go on instead of beginning anew:
# key of `named.<name>.keep` -> field of the TrainState.
KEEP = {
  'optimizer': 'opt_state',
  'reference': 'ref_params',
  'critic': 'critic',
  'control': 'control',
}
START = 'start'  # `named.<name>.weights`: those that the run began with
OWN = ('kind', 'weights', 'keep')
# Keys that a stage may change besides its kind's section.
CHANGES = re.compile(
  r'data\.(completion_len|solutions|controller\..*)'
  r'|eval\.every|checkpoint\.every|log_every'
)
_SECTION = Mapping | ml_collections.ConfigDict


@dataclasses.dataclass(frozen=True)
class Planned:
  """One stage of a run.

  Attributes:
    name: as in config.stages; of a stage that comes again with its number, as
      rl#2.
    kind: a name in config.STAGES.
    config: the run's, as it is for this stage; its `stages` are (kind,).
    weights: '': of the stage before; START, or the name of an earlier stage.
    keep: names in KEEP.
  """

  name: str
  kind: str
  config: ml_collections.ConfigDict
  weights: str = ''
  keep: tuple[str, ...] = ()

  @property
  def origin(self) -> str:
    """Returns what a checkpoint notes of the stage: other kinds of one name
    differ.
    """
    plain = self.name.partition('#')[0] == self.kind
    return self.name if plain else f'{self.name}:{self.kind}'


def each(config: ml_collections.ConfigDict) -> list[Planned]:
  """Gives the stages of a run, in their order.

  Raises:
    ValueError: names the key of a stage that cannot be.
  """
  _check_named(config)
  out, seen = [], collections.Counter()
  for given in config.stages:
    seen[given] += 1
    name = f'{given}#{seen[given]}' if seen[given] > 1 else given
    planned = _planned(config, given, name)
    _name_archive(planned, out)
    _check_order(planned, out)
    out.append(planned)
  return out


def last_of_each_kind(config: ml_collections.ConfigDict):
  """Gives one config with every kind of stage once, as its last is: for a plan
  of what a run compiles.
  """
  last = {p.kind: p.config for p in each(config)}
  out = copy.deepcopy(config)
  for kind, own in last.items():
    out[kind] = own[kind]
  out.data = (last.get('rl') or [*last.values()][-1]).data
  out.named, out.stages = config_lib.Open(), tuple(last)
  return out


def one(config: ml_collections.ConfigDict, name: str):
  """Gives the config of one stage, by its name in metrics: `rl#2` of two.

  Raises:
    ValueError: there is no such stage.
  """
  stages = {p.name: p.config for p in each(config)}
  if name not in stages:
    near = config_lib.nearest(name, stages)
    raise ValueError(f'stage {name!r}: choose of {", ".join(stages)}.{near}')
  return stages[name]


def _planned(config, given: str, name: str) -> Planned:
  own = copy.deepcopy(config)
  own.named = config_lib.Open()
  if given not in config.named:
    own.stages = (given,)
    return Planned(name, given, own)
  values = _plain(config.named[given])
  kind = values['kind']
  own.stages = (kind,)
  rest = {k: v for k, v in values.items() if k not in OWN}
  weights, keep = values.get('weights', ''), values.get('keep', ())
  keep = (keep,) if isinstance(keep, str) else tuple(keep)
  _warm(own[kind], keep)
  _change(own, rest, f'named.{given}.', kind)
  return Planned(name, kind, own, weights, keep)


def _warm(section, keep: tuple[str, ...]) -> None:
  """Leaves out the warm-up of optimizers whose means go on."""
  if 'optimizer' in keep:
    section.optimizer.warmup_steps = 0
  if 'critic' in keep and 'critic' in section:
    section.critic.optimizer.warmup_steps = 0


def _plain(section) -> dict:
  return section.to_dict() if hasattr(section, 'to_dict') else dict(section)


def _change(config, values: Mapping, where: str, kind: str, prefix='') -> None:
  """Sets keys of a config, in place.

  Args:
    where: of the values, for errors; prefix: of config's keys.
  """
  for key, value in values.items():
    path, section = f'{prefix}{key}', config
    if key not in section:
      near = config_lib.nearest(key, section.keys())
      raise ValueError(f'unknown key {where}{path}.{near}')
    old = section[key]
    if isinstance(old, config_lib.Section):
      if not isinstance(value, _SECTION):
        raise ValueError(f'{where}{path}={value!r}: must be a section')
      _change(old, value, where, kind, f'{path}.')
      continue
    if not (path.startswith(f'{kind}.') or CHANGES.fullmatch(path)):
      raise ValueError(
        f'{where}{path}: a stage of kind {kind!r} changes keys of {kind}, '
        'data.completion_len, data.solutions, data.controller, eval.every, '
        "checkpoint.every and log_every; set the run's own"
      )
    try:
      section[key] = tuple(value) if isinstance(old, tuple) else value
    except TypeError as e:
      raise ValueError(
        f'{where}{path}={value!r}: must be a {type(old).__name__}'
      ) from e


def _check_named(config) -> None:
  """Refuses names of stages that are none, and stages that are not named."""
  kinds = config_lib.STAGES
  for name, given in config.named.items():
    key = f'named.{name}'
    if name in kinds or not re.fullmatch(r'\w+', name):
      raise ValueError(f'{key}: a stage needs another name than {kinds}')
    if not isinstance(given, _SECTION) or 'kind' not in given:
      raise ValueError(
        f"{key}={_shown(given)}: must be a section such as dict(kind='rl', "
        'rl=dict(steps=50))'
      )
    if given['kind'] not in kinds:
      raise ValueError(
        f'{key}.kind={given["kind"]!r}: choose one of {", ".join(kinds)}'
      )
    _planned(config, name, name)
  known = [*kinds, *config.named]
  unknown = [s for s in config.stages if s not in known]
  if unknown or not config.stages:
    near = config_lib.nearest(str(unknown[0]), known) if unknown else ''
    raise ValueError(f'stages={config.stages}: choose from {known}.{near}')


def _shown(given: Any) -> str:
  return f'{_plain(given) if isinstance(given, _SECTION) else given!r}'


def _archives(stages: list[Planned]) -> list[str]:
  return [p.name for p in stages if p.kind == 'rl' and p.config.rl.archive]


def _name_archive(planned: Planned, before: list[Planned]) -> None:
  """Names the newest archive, in place, where the stage that is named has come
  several times: stages that take turns read what the last turn has found.
  """
  data, keeps = planned.config.data, _archives(before)
  turns = [n for n in keeps if n.partition('#')[0] == data.solutions]
  if turns:
    data.solutions = turns[-1]


def _check_order(planned: Planned, before: list[Planned]) -> None:
  """Refuses what a stage asks of those before it."""
  key = f'named.{planned.name}'
  names = [p.name for p in before]
  if planned.weights not in ('', START, *names):
    raise ValueError(
      f'{key}.weights={planned.weights!r}: {START!r}, or a stage before it: '
      f'{", ".join(names) or "there is none"}'
    )
  keeps = _archives(before)
  wanted = planned.config.data.solutions
  if wanted and wanted not in keeps:
    raise ValueError(
      f'{key}.data.solutions={wanted!r}: a stage before it with rl.archive '
      f'above 0: {", ".join(keeps) or "there is none"}'
    )
  for what in planned.keep:
    if what not in KEEP:
      raise ValueError(f'{key}.keep={what!r}: choose of {", ".join(KEEP)}')
  if not planned.keep:
    return
  if planned.weights:
    raise ValueError(
      f'{key}.keep={planned.keep} goes on with the state of the stage before, '
      f'and {key}.weights={planned.weights!r} with other weights; set one'
    )
  moves = before and before[-1].config.data.controller.refresh
  if 'control' in planned.keep and moves:
    raise ValueError(
      f"{key}.keep='control': the problems of the stage before have moved on "
      f'(data.controller.refresh={moves}), and this one begins with the first'
    )
  if not before or before[-1].kind != planned.kind:
    has = before[-1].name if before else 'none'
    raise ValueError(
      f'{key}.keep={planned.keep}: the stage before ({has}) is of no kind '
      f'{planned.kind!r}'
    )
