"""Refuses invalid studies, before their first run."""

import re

from jaxrl_reason import config as config_lib
from jaxrl_reason.config import rules
from jaxrl_reason.studies import grid, metric_names
from jaxrl_reason.studies.grid import Study
from jaxrl_reason.studies.metric_names import START, TARGET
from jaxrl_reason.studies.verdicts import Criterion


def check(study: Study) -> None:
  """Refuses invalid studies.

  Raises:
    ValueError: names the setting and the key.
  """
  if not study.settings:
    raise ValueError('the study has no settings')
  if study.seeds < 1 or study.at_once < 1:
    raise ValueError('seeds and at_once of a study must be at least 1')
  if study.tokens < 0:
    raise ValueError(f'tokens of a study: {study.tokens} is below 0')
  if study.base not in study.settings:
    near = config_lib.nearest(study.base, study.settings)
    raise ValueError(f'against={study.base!r} is no setting.{near}')
  metric, best_of = study.target
  if isinstance(best_of, str) and best_of not in study.settings:
    near = config_lib.nearest(best_of, study.settings)
    raise ValueError(
      f'target=({metric!r}, {best_of!r}): the value is a number or a setting '
      f'of the study.{near}'
    )
  if study.warm not in ('each', 'shared'):
    raise ValueError(f"warm={study.warm!r} of a study: 'each' or 'shared'")
  for name in study.settings:
    _check_setting(study, name)
  for criterion in (c for claim in study.claims for c in claim.criteria):
    _check_criterion(study, criterion)
  settings = study.settings.items()
  configs = [grid.changed(study, *setting) for setting in settings]
  metric_names.check(
    _compared(study),
    configs,
    has_old=bool(study.old),
    has_kl=bool(study.kl_on),
    has_budget=study.tokens > 0,
  )
  if study.tuning:
    _check_tuning(study)


def _check_setting(study: Study, name: str) -> None:
  """Refuses a name, a change of the seed, and sources that a setting lacks."""
  changes = study.settings[name]
  if not re.fullmatch(r'[\w.=+-]+', name):
    raise ValueError(f'setting {name!r}: use letters, digits and _.=+-')
  if 'seed' in changes:
    raise ValueError(
      f'setting {name!r} changes seed: the seeds are those of the study'
    )
  config = grid.changed(study, name, changes)
  named = [('old', source) for source in study.old]
  if study.kl_on:
    named.append(('kl_on', study.kl_on))
  for key, source in named:
    if source not in config.data.sources:
      near = config_lib.nearest(source, config.data.sources)
      raise ValueError(
        f'setting {name!r}: {key}={source!r} is not in data.sources.{near}'
      )
  if study.kl_on and len(config.stages) < 2:
    raise ValueError(
      f'setting {name!r} has one stage, and kl_on={study.kl_on!r} measures the '
      'KL divergence to a warm start: add a stage before the last one'
    )


def _check_criterion(study: Study, criterion: Criterion) -> None:
  """Refuses unknown settings, and metrics that cannot be compared so."""
  for name in filter(None, (criterion.of, criterion.over)):
    if name not in study.settings:
      near = config_lib.nearest(name, study.settings)
      raise ValueError(f'a claim names {name!r}, which is no setting.{near}')
  if not criterion.metric.startswith((TARGET, START)):
    return
  if not criterion.over:
    raise ValueError(
      f'a claim about {criterion.metric} of {criterion.of!r} names no other '
      'setting: the metric does not change during the run'
    )
  if criterion.of_gain:
    raise ValueError(
      f'a claim about {criterion.metric} of {criterion.of!r} has of_gain: '
      'the metric has no gain. Set of_gain=False'
    )


def _compared(study: Study) -> list[str]:
  """Lists the metrics that a study names."""
  criteria = [c for claim in study.claims for c in claim.criteria]
  tuned = [study.tuning.metric] if study.tuning else []
  metrics = (c.metric for c in criteria)
  return [*study.shown, study.target[0], *tuned, *metrics]


def _check_tuning(study: Study) -> None:
  """Refuses a tuning of no key, or without a number to choose."""
  t = study.tuning
  if not t.factors or t.seeds < 1:
    raise ValueError(
      f'tuning of {t.key} needs at least one factor and one seed; it has '
      f'factors={t.factors!r} and seeds={t.seeds}'
    )
  if t.metric.startswith(TARGET) and isinstance(study.target[1], str):
    raise ValueError(
      f'tuning of {t.key} by {t.metric}: target={study.target!r} is known only '
      'after the tuning; tune by another metric, or set a number as the target'
    )
  for name, source in t.copies.items():
    if not {name, source} <= study.settings.keys() or source in t.copies:
      raise ValueError(
        f'tuning of {t.key}: copies[{name!r}]={source!r} must name two '
        'settings, of which the second is tuned'
      )
  for name in t.keys.keys() - study.settings.keys():
    near = config_lib.nearest(name, study.settings)
    raise ValueError(f'tuning has keys[{name!r}], which is no setting.{near}')
  for name in study.settings:
    value = grid.value_of(study, name)
    if not rules.is_number(value):
      raise ValueError(
        f'tuning of {t.key_of(name)}: it is {value!r} in setting {name!r}, and '
        'must be a number'
      )
