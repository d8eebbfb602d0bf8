"""What a run's configuration must satisfy, checked before anything is compiled.

Errors name the key and show the arithmetic. `check` needs the configuration
only; the others are about the model it names.
"""

import copy
import numbers
import re
from collections.abc import Iterable
from typing import Any

import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason import tasks
from jaxrl_reason.checkpoints import emergency
from jaxrl_reason.data import mixture
from jaxrl_reason.models.adapters import frozen
from jaxrl_reason.models.config import Config
from jaxrl_reason.rewards import compose
from jaxrl_reason.run import (
  compile_log,
  pool_checks,
  ranges,
  rl_checks,
  source_checks,
  staging,
  trackers,
)
from jaxrl_reason.update import optim

# Type of a task's knob -> what a recipe may give.
KNOBS = {int: int, float: numbers.Real, bool: bool, str: str}


def check_keys(
  config: ml_collections.ConfigDict,
  wanted: ml_collections.ConfigDict,
  prefix: str = '',
) -> None:
  """Refuses a config with other keys, or values of other types, than the
  default's: one that was unlocked, or not made by `config.default`.

  Raises:
    ValueError: names the key.
  """
  for key in config:
    if key not in wanted:
      near = config_lib.nearest(key, wanted.keys())
      raise ValueError(f'unknown key {prefix}{key}.{near}')
  for key, default in wanted.items():
    name = f'{prefix}{key}'
    if key not in config:
      raise ValueError(f'{name} is missing; start from config.default()')
    value = config[key]
    if isinstance(default, ml_collections.ConfigDict):
      if not isinstance(value, ml_collections.ConfigDict):
        raise ValueError(f'{name}={value!r}: must be a section')
      if not isinstance(default, config_lib.Open):
        check_keys(value, default, f'{name}.')
    elif default is not None and name not in ranges.RANGES:
      _check_type(name, value, type(default))


def _check_type(name: str, value: Any, kind: type) -> None:
  if not isinstance(value, (list, tuple) if kind is tuple else kind):
    raise ValueError(f'{name}={value!r}: must be a {kind.__name__}')


def _flat(section: ml_collections.ConfigDict, prefix: str = '') -> dict:
  """The values by dotted key."""
  out = {}
  for key, value in section.items():
    inside = isinstance(value, ml_collections.ConfigDict)
    found = _flat(value, f'{prefix}{key}.') if inside else {prefix + key: value}
    out |= found
  return out


def _check_knobs(prefix: str, d: ml_collections.ConfigDict) -> None:
  """Refuses knobs that the task of a `data` section does not have."""
  known = tasks.get(d.name).knobs if tasks.is_known(d.name) else {}
  for section in ('knobs', 'harder'):
    for key, value in d[section].items():
      if key not in known:
        has = ', '.join(known) or 'none'
        raise ValueError(
          f'{prefix}.{section}.{key}: {prefix}.name={d.name!r} has no such '
          f'knob.{config_lib.nearest(key, known)} It has {has}'
        )
      kind = type(known[key])
      if kind in KNOBS and not isinstance(value, KNOBS[kind]):
        raise ValueError(
          f'{prefix}.{section}.{key}={value!r}: must be a {kind.__name__}'
        )


def _check_open(config: ml_collections.ConfigDict) -> None:
  """Refuses keys of the open sections that nothing would read."""
  _check_knobs('data', config.data)
  for name, section in mixture.sections(config.data).items():
    _check_knobs(f'data.sources.{name}', section)
  nothing = not (config.rl.rewards or config.rl.turns.env)
  if nothing and 'rl' in config.stages:
    raise ValueError(
      "rl.rewards is empty: name a reward, as answer=dict(reward='task'), or "
      'an environment, rl.turns.env'
    )
  for name, part in config.rl.rewards.items():
    if not isinstance(part, ml_collections.ConfigDict):
      raise ValueError(
        f'rl.rewards.{name}={part!r}: must be a section such as '
        "dict(reward='task', weight=1.0)"
      )
    for key in part:
      if key not in compose.KEYS:
        near = config_lib.nearest(key, compose.KEYS)
        raise ValueError(
          f'unknown key rl.rewards.{name}.{key}.{near} A reward has '
          f'{", ".join(sorted(compose.KEYS))}'
        )
    if 'reward' not in part:
      raise ValueError(f'rl.rewards.{name} lacks the key reward')


def _check_regex(name: str, pattern: str) -> None:
  try:
    re.compile(pattern)
  except re.error as e:
    raise ValueError(f'{name}={pattern!r} is no regular expression: {e}') from e


def check_trainable(
  config: ml_collections.ConfigDict, paths: Iterable[str]
) -> None:
  """Refuses a `trainable` that names no parameter.

  Args:
    paths: those of the model's parameters.

  Raises:
    ValueError: names the key and some of the paths.
  """
  paths = sorted(paths)
  pattern = config_lib.trainable(config)
  if not any(re.fullmatch(pattern, path) for path in paths):
    raise ValueError(
      f'trainable={pattern!r} matches none of the parameters, so nothing would '
      f'be trained; their paths are like {", ".join(paths[:3])}'
    )


def _divides(what: str, total: int, **parts: int):
  product, shown = 1, []
  for name, n in parts.items():
    product *= n
    shown.append(f'{name} {n}')
  if total % product:
    raise ValueError(
      f'{what} = {total} does not divide by {" x ".join(shown)} = {product}'
    )


def check(config: ml_collections.ConfigDict, n_row_shards: int) -> None:
  """Refuses impossible configurations.

  Args:
    n_row_shards: devices over which rows are split (data x fsdp).

  Raises:
    ValueError: names the key and shows the arithmetic.
  """
  check_keys(config, config_lib.default())
  planned = staging.each(config)
  named = [p for p in planned if p.name.partition('#')[0] in config.named]
  plain = dict.fromkeys(p.kind for p in planned if p not in named)
  if plain:
    own = copy.deepcopy(config)
    own.stages, own.named = tuple(plain), config_lib.Open()
    _check_stages(own, n_row_shards)
  room = config.data.completion_len
  for p in named:
    try:
      _check_stages(p.config, n_row_shards)
      if p.config.data.completion_len > room:
        raise ValueError(
          f'data.completion_len={p.config.data.completion_len} is above the '
          f"run's own, {room}, which evaluations have room for; raise that"
        )
    except ValueError as e:
      raise ValueError(f'named.{p.name}: {e}') from e


def _check_stages(config: ml_collections.ConfigDict, n_row_shards: int) -> None:
  """Refuses a config none of whose stages has settings of its own."""
  ranges.check(_flat(config), ranges.RANGES)
  pool_checks.check(config)
  _check_open(config)
  _check_regex('trainable', config.trainable)
  _check_regex('lora.targets', config.lora.targets)
  # Evaluations and checkpoints fall between two lines of metrics.
  for key in ('eval.every', 'checkpoint.every'):
    section, name = key.split('.')
    _divides(key, config[section][name], log_every=config.log_every)
  emergency.check(config.checkpoint)
  if 'rl' in config.stages:
    source_checks.check(config.rl)
  for stage in set(config.stages):
    c = config[stage]
    dispatch = {f'{stage}.steps_per_dispatch': c.steps_per_dispatch}
    _divides(f'{stage}.steps', c.steps, **dispatch)
    _divides('log_every', config.log_every, **dispatch)
    _check_optimizer(f'{stage}.optimizer', c.optimizer, c.steps)
    _check_rows(stage, c, n_row_shards)
  if config.rl.reference_memory not in ('device', 'host'):
    raise ValueError(
      f'rl.reference_memory={config.rl.reference_memory!r}: device or host'
    )
  if config.frozen_dtype not in frozen.DTYPES:
    raise ValueError(
      f'frozen_dtype={config.frozen_dtype!r}: choose one of '
      f'{", ".join(frozen.DTYPES)}'
    )
  compile_log.profiled(config.profile.steps)
  trackers.names(config.track)
  if 'rl' in config.stages:
    o = config.rl.critic.optimizer
    _check_optimizer('rl.critic.optimizer', o, config.rl.steps)
    rl_checks.check(config)


def check_experts(config: ml_collections.ConfigDict, experts: int) -> None:
  """Refuses settings of experts for a model without.

  Raises:
    ValueError: names the key.
  """
  keys = {f'{s}.balance_coef': config[s].balance_coef for s in config.stages}
  keys['rl.replay_routes'] = config.rl.replay_routes
  for key, value in keys.items():
    if value and not experts:
      raise ValueError(
        f'{key}={value}: the model has no experts; set it to its default, or '
        'model.experts'
      )


def check_positions(c: ml_collections.ConfigDict, shape: Config) -> None:
  """Refuses rows of another room than generation's where that matters.

  Args:
    c: the rl section.
    shape: the model's.

  Raises:
    ValueError: names the keys.
  """
  longrope = any(r.kind == 'longrope' for r in shape.rope_tables)
  if longrope and c.padding not in ('whole', 'shared:1'):
    raise ValueError(
      f'rl.padding={c.padding!r}: the longrope positions of this model depend '
      'on the room of a program; choose whole or shared:1'
    )


def _check_optimizer(
  name: str, c: ml_collections.ConfigDict, steps: int
) -> None:
  try:
    optim.make(c, steps)
  except ValueError as e:
    raise ValueError(f'{name}: {e}') from e


def _check_rows(stage: str, c: ml_collections.ConfigDict, shards: int) -> None:
  micro = {f'{stage}.micro_batches': c.micro_batches}
  shards = {'row shards (mesh data x fsdp)': shards}
  if stage != 'rl':
    _divides(f'{stage}.rows', c.rows, **micro, **shards)
    return
  name = f'rl.prompts {c.prompts} x rl.samples {c.samples}'
  mini = {'rl.minibatches': c.minibatches}
  replayed, extra = c.replay.rows, c.extra.groups * c.samples
  name += f' + rl.replay.rows {replayed}' if replayed else ''
  name += f' + rl.extra.groups {c.extra.groups} x rl.samples' if extra else ''
  n = c.prompts * c.samples + replayed + extra
  _divides(name, n, **mini, **micro, **shards)
  _divides('rl.extra.groups', c.extra.groups, **shards)
  # Episodes are not played in parts.
  in_parts = c.path == 'host' and not c.turns.env
  parts = {'rl.parts': c.parts} if in_parts else {}
  _divides('rl.prompts', c.prompts, **parts, **shards)
