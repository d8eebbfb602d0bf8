"""A study: its settings, its seeds, and the resulting runs.

configs/studies/*.py have a function `get_study()` that returns a `Study`.
"""

import copy
import dataclasses
import math
import pathlib
import re
import runpy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason import trees
from jaxrl_reason.config import Run, recipe_file, recipes
from jaxrl_reason.config import changes as changes_lib
from jaxrl_reason.config.run import NO_ROLLOUTS
from jaxrl_reason.names import nearest_path
from jaxrl_reason.studies.verdicts import Claim

# Sections that the warm start reads, beside those of the kinds of its stages.
# Changes of other keys leave it as it is.
WARM = 'data init_from model model_dir named stages'.split()
# Keys and sections of the last stage alone, so that all begin with the same
# weights.
LAST = ('model.numerics', 'data.controller')
# Keys of a source of the data that only RL reads, and those that only other
# stages read.
OF_SOURCE = re.compile(r'data\.sources\.[^.]+\.(weight|difficulty)(\.|$)')
OF_TEACHING = re.compile(r'data\.sources\.[^.]+\.supervised$')


@dataclasses.dataclass(frozen=True)
class Tuning:
  """Chooses one number for every setting, on seeds that are not evaluated.

  Attributes:
    key: of the recipe, such as 'rl.optimizer.lr'.
    factors: the values tried are the setting's own times these.
    metric: the largest final mean is chosen.
    seeds: number of seeds, those after the seeds of the study.
    copies: setting -> the setting whose chosen value it has, for controls.
    keys: setting -> the key that is tuned in place of `key`.
  """

  key: str
  factors: Sequence[float]
  metric: str
  seeds: int = 2
  copies: Mapping[str, str] = dataclasses.field(default_factory=dict)
  keys: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def key_of(self, setting: str) -> str:
    """Returns the key of the number that is tuned for a setting."""
    return self.keys.get(setting, self.key)


@dataclasses.dataclass(frozen=True)
class Study:
  """A comparison of settings over seeds.

  Attributes:
    recipe: its last stage is that of every cell, the stages before it are the
      warm start, both with the changes of a setting.
    settings: name -> {dotted key of the recipe: value}; {} is the recipe.
    seeds: number of seeds of every setting, for weights, problems, order and
      noise.
    against: the setting that others are compared with; '': the first.
    shown: final metrics in the table.
    target: (metric, value): the table has the steps and tokens to reach it. If
      the value is the name of a setting, the target is the best value of the
      run of this setting with the same seed.
    at_once: most cells in one program.
    warm: 'each': every seed has a warm start of its own; 'shared': all seeds
      begin with that of the first.
    claims: decided at the end.
    tuning: of one number, beforehand.
    first_seed: the lowest seed.
    old: sources of the data. `old/pass@1` is the mean of their accuracies. Its
      gain is below 0 if a run forgets them.
    kl_on: source of the data, on whose held-out problems the column `kl_base`
      measures the KL divergence of a run to its warm start; '': no column.
    tokens: sampled tokens at which the columns `budget/<metric>` compare the
      settings; 0: no such columns.
    smoke: {dotted key: value}, changes of the smoke version, for criteria whose
      metric a nearly untrained model lacks.
  """

  recipe: ml_collections.ConfigDict | Run
  settings: Mapping[str, Mapping[str, Any]]
  seeds: int = 5
  against: str = ''
  shown: Sequence[str] = ('eval/heldout/pass@1', 'eval/heldout/greedy')
  target: tuple[str, float | str] = ('train/reward_mean', 0.8)
  at_once: int = 20
  warm: str = 'each'
  claims: Sequence[Claim] = ()
  tuning: Tuning | None = None
  first_seed: int = 0
  old: Sequence[str] = ()
  kl_on: str = ''
  tokens: int = 0
  smoke: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def base(self) -> str:
    """Returns the name of the setting that others are compared with."""
    return self.against or next(iter(self.settings))


@dataclasses.dataclass(frozen=True)
class Cell:
  """A run of a study.

  Attributes:
    warm: name of its warm start, '' without one.
  """

  setting: str
  seed: int
  config: Run
  warm: str = ''

  @property
  def name(self) -> str:
    """Returns the name of the folder of the run."""
    return f'{self.setting}--s{self.seed}'


def load(name: str) -> Study:
  """Reads a study's file.

  Args:
    name: FILE.py, or FILE.py:smoke for a version that runs in seconds.

  Raises:
    ValueError: names the file and the missing function, or the argument.
  """
  path, colon, argument = name.partition(':')
  if colon and argument != recipes.SMOKE:
    raise ValueError(
      f'--config={name}: the argument of a study is {recipes.SMOKE}'
    )
  study = recipe_file.call(path, 'get_study')
  if not isinstance(study, Study):
    raise ValueError(f'{path}: get_study() returned {study!r:.60}, no Study')
  return smoke(study) if colon else study


def recipe_beside(
  file: str, name: str, *arguments: str
) -> ml_collections.ConfigDict:
  """Returns the recipe of another file.

  Args:
    file: `__file__` of the study; name: path of the recipe from its folder.
    arguments: of the recipe.
  """
  path = pathlib.Path(file).parent / name
  return runpy.run_path(str(path))['get_config'](*arguments)


def smoke(study: Study) -> Study:
  """Returns the study with two seeds and a few steps of a tiny model, with
  the same settings and claims, and without tuning.
  """
  config = recipes.smoke(copy.deepcopy(study.recipe))
  config.rl.steps = 4  # a slope needs three values
  # As many samples: claims name pass@k.
  evaluation = {k: study.recipe.eval[k] for k in ('samples', 'batch')}
  config.eval.update(evaluation, problems=4)
  config.update_from_flattened_dict(study.smoke)
  short = dict(seeds=2, tuning=None, tokens=min(study.tokens, 1))
  return dataclasses.replace(study, recipe=config, **short)


def warm_starts(study: Study) -> dict[str, Run]:
  """Returns the config of every warm start, by its name."""
  out = {}
  for setting in study.settings:
    for seed in _seeds(study):
      name, config = _warm(study, setting, seed)
      if config:
        out[name] = config
  return out


def _seeds(study: Study) -> range:
  return range(study.first_seed, study.first_seed + study.seeds)


def _warm(study: Study, setting: str, seed: int) -> tuple[str, Run | None]:
  """Returns the name and config of a warm start; '' and None if the setting has
  one stage. Settings that begin alike share it.
  """
  if study.warm == 'shared':
    seed = study.first_seed

  def of(setting: str) -> Run:
    changes = study.settings[setting]
    config = changed(study, setting, changes)
    *kinds, last = kinds_of(config.stages, config.named)
    of_last = f'named.{config.stages[-1]}.'
    keys = [k for k in changes if _is_of_any(k, {*WARM, *kinds})]
    keys = [k for k in keys if not k.startswith(of_last)]
    if last != 'rl':  # the recipe's own sources are those of the warm start
      keys = [k for k in keys if not OF_TEACHING.match(k)]
    own = {k: changes[k] for k in keys}
    config = changed(study, setting, own | {'seed': seed})
    return config.changed({'stages': tuple(config.stages[:-1])})

  config = of(setting)
  if not config.stages:
    return '', None
  first = next(s for s in study.settings if of(s) == config)
  return f'{first}--s{seed}', config


def kinds_of(stages: Sequence[str], named: Mapping[str, dict]) -> list[str]:
  """Returns the kinds of all stages."""
  return [named[s]['kind'] if s in named else s for s in stages]


def _is_of_any(key: str, sections: set[str]) -> bool:
  """Returns whether a key is of these sections, and not read by the last stage
  alone.
  """
  last = any(f'{key}.'.startswith(f'{name}.') for name in LAST)
  last |= OF_SOURCE.match(key) is not None
  return key.split('.')[0] in sections and not last


def changed(study: Study, setting: str, changes: Mapping[str, Any]) -> Run:
  """Returns the recipe with changes; errors name the setting."""
  try:
    for key in changes:
      changes_lib.annotation_of(key, key)
    return config_lib.read(study.recipe).changed(changes)
  except ValueError as e:
    raise ValueError(f'setting {setting!r}: {e}') from e


def cells(study: Study, folder: str) -> list[Cell]:
  """Lists the runs of a study, ordered by setting.

  Args:
    folder: of the warm starts.
  """
  out = []
  for setting, changes in study.settings.items():
    config = changed(study, setting, {**changes, **NO_ROLLOUTS})
    for seed in _seeds(study):
      warm, _ = _warm(study, setting, seed)
      own = {'seed': seed, 'stages': tuple(config.stages[-1:])}
      if warm:
        own |= {'init_from': f'{folder}/{warm}'}
      out.append(Cell(setting, seed, config.changed(own), warm))
  return out


def trials(study: Study) -> Study | None:
  """Returns the study that tries the values of `tuning`; None without it."""
  t = study.tuning
  if t is None:
    return None
  settings = {
    f'{name}~{factor:g}': {
      **changes,
      t.key_of(name): value_of(study, name) * factor,
    }
    for name, changes in study.settings.items()
    if name not in t.copies
    for factor in t.factors
  }
  seeds = dict(seeds=t.seeds, first_seed=study.first_seed + study.seeds)
  rest = dict(against='', claims=(), tuning=None, kl_on='')
  return dataclasses.replace(study, settings=settings, **rest, **seeds)


def value_of(study: Study, setting: str) -> Any:
  """Returns the value that a setting has before it is tuned.

  Raises:
    ValueError: the key does not exist.
  """
  config = changed(study, setting, study.settings[setting])
  key = study.tuning.key_of(setting)
  values = trees.flatten(config.json_values())
  values = {k.replace('/', '.'): x for k, x in values.items()}
  if key not in values:
    near = nearest_path(key, values)
    raise ValueError(
      f'tuning of {key}: setting {setting!r} has no such key.{near}'
    )
  return values[key]


def tuned(study: Study, score: Callable[[str], float]) -> Study:
  """Returns the study with the best value for every setting.

  Args:
    score: name of a setting of `trials` -> its final metric, -inf without one.

  Raises:
    ValueError: no value of a setting has a score.
  """
  chosen, tried, t = {}, trials(study).settings, study.tuning
  for name in filter(lambda name: name not in t.copies, study.settings):
    scores = {k: score(k) for k in tried if k.rpartition('~')[0] == name}
    best = max(scores, key=scores.get)
    if not math.isfinite(scores[best]):
      raise ValueError(
        f'setting {name!r}: with every value of {t.key_of(name)}, a run has '
        f'diverged or lacks the metric {t.metric!r}'
      )
    chosen[name] = tried[best][t.key_of(name)]
  settings = {
    name: {**changes, t.key_of(name): chosen[t.copies.get(name, name)]}
    for name, changes in study.settings.items()
  }
  return dataclasses.replace(study, settings=settings)
