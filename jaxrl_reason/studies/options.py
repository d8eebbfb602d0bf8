"""Reads a study's file, with changes by flags of the command."""

import copy
import dataclasses
from typing import Any

from jaxrl_reason import command
from jaxrl_reason.config import changes
from jaxrl_reason.studies import grid
from jaxrl_reason.studies.grid import Study


def study_of(flags: Any) -> Study:
  """Reads the study that the flags name.

  Raises:
    ValueError: names the flag.
  """
  study = grid.load(flags.config)
  for flag in ('seeds', 'first_seed', 'at_once'):
    value = getattr(flags, flag)
    if value < 0:
      raise ValueError(f'--{flag}={value}: must be at least 0')
    if value:
      study = dataclasses.replace(study, **{flag: value})
  if flags.settings:
    study = _only(study, command.listed('--settings', flags.settings, str))
  for path, _ in map(changes.parsed, flags.changes):
    _refuse_without_effect(study, path)
  recipe = copy.deepcopy(study.recipe)
  changes.apply(recipe, flags.changes)
  return dataclasses.replace(study, recipe=recipe)


def _refuse_without_effect(study: Study, path: str) -> None:
  """Refuses a change of a key that every setting sets itself."""
  if all(
    any(f'{path}.'.startswith(f'{key}.') for key in changed)
    for changed in study.settings.values()
  ):
    raise ValueError(
      f'--config.{path} has no effect: every setting of the study sets it. '
      'Change it in the study, or leave it out'
    )


def _only(study: Study, names: tuple[str, ...]) -> Study:
  """Restricts a study to some settings, and to the claims about them; if the
  base setting is not among them, the first setting is the base.
  """
  for name in names:
    command.one_of('--settings', name, study.settings)
  chosen = {name: study.settings[name] for name in names}
  base = study.base if study.base in chosen else ''
  claims = [
    claim
    for claim in study.claims
    if all({c.of, c.over or c.of} <= set(names) for c in claim.criteria)
  ]
  if tuning := study.tuning:
    own = {
      field: {k: v for k, v in getattr(tuning, field).items() if k in chosen}
      for field in ('copies', 'keys')
    }
    tuning = dataclasses.replace(tuning, **own)
  return dataclasses.replace(
    study, settings=chosen, against=base, claims=claims, tuning=tuning
  )
