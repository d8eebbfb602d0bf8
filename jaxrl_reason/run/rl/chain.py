"""The chain of parts of the rl stage, built from its configuration.

The order matters: filters select rows before rewards are shaped, the dump
records the batch as it is trained on, and problem statistics read which rows
remain. `rl.step_parts` adds user parts after the shaped rewards.
"""

from collections.abc import Mapping

import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason.parts import Chain, Part
from jaxrl_reason.rollouts import archive, filters, progress, reward_shaping
from jaxrl_reason.run.rl import problem_pool, reward_functions
from jaxrl_reason.run.rl.problem_pool import Facts
from jaxrl_reason.run.rl.temperature_control import TemperatureControl
from jaxrl_reason.update import refresh
from jaxrl_reason.update.rollout_dump import RolloutDump
from jaxrl_reason.verifiers import resolve


def make(config: ml_collections.ConfigDict, tx, facts: Facts) -> Chain:
  """Builds the chain of the rl stage.

  Args:
    tx: the policy's optimizer, which a reset of the reference may reinitialize.
    facts: of the problems of the pool.
  """
  c, n = config.rl, len(facts.source)
  parts = (
    _selection(config),
    _shaping(config, n),
    _archive(config, n),
    *_own(c.step_parts),
    _rollout_dump(config),
    progress.Progress(c.hints.room > 0) if _keeps_progress(c) else None,
    problem_pool.statistics(config, facts),
    _refresh(config, tx),
    _temperature_control(c),
  )
  return Chain(tuple(part for part in parts if part is not None))


def _selection(config) -> filters.Selection | None:
  c = config.rl
  chosen = filters.make(c.filter, c.filter_args)
  if chosen is None and not c.overlong:
    return None
  return filters.Selection(chosen, c.overlong, config.data.completion_len)


def _shaping(config, n_problems: int) -> reward_shaping.Shaping | None:
  terms = {
    k: tuple(v) if isinstance(v, list) else v
    for k, v in config.rl.shaping.to_dict().items()
  }
  sizes = config.rl.samples, config.data.completion_len, n_problems
  shaping = reward_shaping.Shaping(*sizes, **terms)
  return shaping if shaping.is_on else None


def _archive(config, n_problems: int) -> archive.Archive | None:
  c = config.rl
  if not c.archive:
    return None
  columns = config_lib.prompt_room(config)
  sizes = columns, config.data.completion_len, n_problems
  return archive.Archive(c.archive, c.samples, *sizes)


def _own(parts: Mapping) -> list[Part]:
  """Builds the parts that `rl.step_parts` names.

  Raises:
    ValueError: names the key of one that cannot be built.
  """
  made = []
  for name, settings in parts.items():
    key = f'rl.step_parts.{name}'
    if not isinstance(settings, dict) or 'part' not in settings:
      raise ValueError(
        f'{key}={settings!r}: must be a section such as '
        "dict(part='my_recipe.py:MyPart', kwargs=dict(weight=0.1))"
      )
    try:
      part = resolve.load(settings['part'])(**settings.get('kwargs', {}))
    except (resolve.RewardError, TypeError) as e:
      raise ValueError(f'{key}.part={settings["part"]!r}: {e}') from e
    if not isinstance(part, Part):
      raise ValueError(
        f'{key}.part={settings["part"]!r} is no jaxrl_reason.parts.Part'
      )
    object.__setattr__(part, 'name', name)
    made.append(part)
  return made


def _rollout_dump(config) -> RolloutDump | None:
  c = config.rollouts
  problems = min(c.problems, config.rl.prompts)
  return RolloutDump(c.every, problems, config.rl.samples) if c.every else None


def _keeps_progress(c: ml_collections.ConfigDict) -> bool:
  """Returns whether any setting of the rl section depends on the progress."""
  scheduled = reward_functions.is_scheduled(c.rewards)
  return bool(scheduled or c.hints.room or c.reference.patience)


def _refresh(config, tx) -> refresh.Refresh | None:
  settings = config.rl.reference.to_dict()
  trainable = config_lib.trainable(config)
  part = refresh.Refresh(**settings, tx=tx, trainable=trainable)
  return part if part.is_on else None


def _temperature_control(
  c: ml_collections.ConfigDict,
) -> TemperatureControl | None:
  settings = c.temperature_control.to_dict()
  if not settings['entropy']:
    return None
  return TemperatureControl(**settings, first=c.temperature)
