"""A study: its settings, its seeds, and the resulting runs.

configs/studies/*.py have a function `get_study()` that returns a `Study`.
"""

import dataclasses
import pathlib
import re
import runpy
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason.config import Run, recipe_file
from jaxrl_reason.config import changes as changes_lib

# Keys that all cells share, or that a study sets itself.
SHARED = ('seed', 'stages', 'init_from', 'model_dir', 'pretrain', 'sft')


@dataclasses.dataclass(frozen=True)
class Study:
  """A comparison of settings over seeds.

  Attributes:
    recipe: of the warm start and, with the changes of a setting, of the rl
      stage of every cell.
    settings: name -> {dotted key of the recipe: value}; {} is the recipe.
    seeds: number of seeds of every setting, for problems, order and noise.
    against: the setting that others are compared with; '': the first.
    shown: final metrics in the table.
    target: (metric, value): the table has the steps and tokens to reach it.
    at_once: most cells in one program.
  """

  recipe: ml_collections.ConfigDict | Run
  settings: Mapping[str, Mapping[str, Any]]
  seeds: int = 5
  against: str = ''
  shown: Sequence[str] = ('eval/heldout/pass@1', 'eval/heldout/greedy')
  target: tuple[str, float] = ('train/reward_mean', 0.8)
  at_once: int = 20

  @property
  def base(self) -> str:
    """Returns the name of the setting that others are compared with."""
    return self.against or next(iter(self.settings))


@dataclasses.dataclass(frozen=True)
class Cell:
  """A run of a study: its setting, its seed and its configuration."""

  setting: str
  seed: int
  config: Run

  @property
  def name(self) -> str:
    """Returns the name of the folder of the run."""
    return f'{self.setting}--s{self.seed}'


def load(path: str) -> Study:
  """Reads a study's file.

  Raises:
    ValueError: names the file and the missing function.
  """
  study = recipe_file.call(path, 'get_study')
  if not isinstance(study, Study):
    raise ValueError(f'{path}: get_study() returned {study!r:.60}, no Study')
  return study


def recipe_beside(file: str, name: str) -> ml_collections.ConfigDict:
  """Returns the recipe of another file in a study's folder.

  Args:
    file: `__file__` of the study.
  """
  return runpy.run_path(str(pathlib.Path(file).with_name(name)))['get_config']()


def check(study: Study) -> None:
  """Refuses invalid studies.

  Raises:
    ValueError: names the setting and the key.
  """
  if not study.settings:
    raise ValueError('the study has no settings')
  if study.seeds < 1 or study.at_once < 1:
    raise ValueError('seeds and at_once of a study must be at least 1')
  if study.base not in study.settings:
    near = config_lib.nearest(study.base, study.settings)
    raise ValueError(f'against={study.base!r} is no setting.{near}')
  stages = study.recipe.stages
  if not stages or stages[-1] != 'rl' or 'rl' in stages[:-1]:
    raise ValueError(f'stages={stages}: the last one of a study is rl')
  for name, changes in study.settings.items():
    if not re.fullmatch(r'[\w.=+-]+', name):
      raise ValueError(f'setting {name!r}: use letters, digits and _.=+-')
    for key in changes:
      if key.split('.')[0] in SHARED:
        raise ValueError(
          f'setting {name!r} changes {key}: all settings have one warm start, '
          'and the seeds are those of the study'
        )


def warm_config(study: Study) -> Run | None:
  """Returns the config of the warm start, or None if rl is the only stage."""
  before = tuple(study.recipe.stages[:-1])
  recipe = config_lib.read(study.recipe)
  return recipe.changed({'stages': before}) if before else None


def cells(study: Study, warm: str) -> list[Cell]:
  """Lists the runs of a study, ordered by setting.

  Args:
    warm: workdir of the warm start; '': there is none.
  """
  shared = {'stages': ('rl',), 'rollouts.every': 0}
  if warm:
    shared |= {'init_from': warm}
  out, recipe = [], config_lib.read(study.recipe).changed(shared)
  for setting, changes in study.settings.items():
    try:
      for key in changes:
        changes_lib.annotation_of(key, key)
      config = recipe.changed(changes)
    except ValueError as e:
      raise ValueError(f'setting {setting!r}: {e}') from e
    for seed in range(study.seeds):
      out.append(Cell(setting, seed, config.changed({'seed': seed})))
  return out
