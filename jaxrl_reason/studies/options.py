"""A study's file, changed as the command's flags say."""

import ast
import dataclasses
from typing import Any

from jaxrl_reason import command
from jaxrl_reason.studies import grid
from jaxrl_reason.studies.grid import Study


def study_of(flags: Any) -> Study:
  """Reads the study that flags name.

  Raises:
    ValueError: names the flag.
  """
  study = grid.load(flags.config)
  for flag in ('seeds', 'at_once'):
    value = getattr(flags, flag)
    if value < 0:
      raise ValueError(f'--{flag}={value}: must be at least 0')
    if value:
      study = dataclasses.replace(study, **{flag: value})
  if flags.settings:
    study = _only(study, command.listed('--settings', flags.settings, str))
  changes = dict(_changes(flags.set))
  recipe = grid.changed(study.recipe, changes, '--set=')
  return dataclasses.replace(study, recipe=recipe)


def _only(study: Study, names: tuple[str, ...]) -> Study:
  """The study of some of its settings; against the first where the one that
  others are compared with is not among them.
  """
  for name in names:
    command.one_of('--settings', name, study.settings)
  chosen = {name: study.settings[name] for name in names}
  base = study.base if study.base in chosen else ''
  return dataclasses.replace(study, settings=chosen, against=base)


def _changes(texts: list[str]):
  """(key, value) of every --set."""
  for text in texts:
    key, given, value = text.partition('=')
    if not given:
      raise ValueError(f'--set={text}: write KEY=VALUE')
    try:
      yield key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
      yield key, value  # a word
