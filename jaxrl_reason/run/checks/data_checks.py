"""Rules of the data section: its task, its controller and its sources."""

import numbers
from collections.abc import Mapping
from typing import Any

from jaxrl_reason.config import RL, Controller, Data, nearest, rules
from jaxrl_reason.config.data import Files
from jaxrl_reason.data import controllers, example_files, mixture
from jaxrl_reason.verifiers import tasks

SECTIONS = ('files', 'knobs', 'harder')
# Type of a task's knob -> types that a recipe may use for it.
KNOBS = {
  int: int,
  float: numbers.Real,
  bool: bool,
  str: str,
  tuple: (list, tuple),
}


def check(rl: RL, d: Data, stages: tuple[str, ...]) -> None:
  """Refuses a task, controller or sources that cannot work.

  Raises:
    ValueError: names the key.
  """
  if d.controller != Data.controller:
    rules.refuse(controller_rules, d.controller, len(d.sources))
  if 'rl' in stages and d.controller.refresh:
    rules.refuse(refresh_rules, rl, d.controller)
  rules.refuse(task_rules, 'data', d)
  rules.refuse(knob_rules, 'data', d)
  if not d.sources:
    rules.refuse(range_rules, 'data', d)
  else:
    _check_sources(d, stages)


def _check_sources(d: Data, stages: tuple[str, ...]) -> None:
  for name, source in d.sources.items():
    key = f'data.sources.{name}'
    rules.refuse(rules.section, key, source, "dict(name='arithmetic')")
    rules.refuse(source_rules, key, source)
  for name, section in mixture.sections(d).items():
    rules.refuse(task_rules, f'data.sources.{name}', section)
    rules.refuse(knob_rules, f'data.sources.{name}', section)
    rules.refuse(range_rules, f'data.sources.{name}', section)
  weights = mixture.own(d, 'weight')
  for name, weight in zip(d.sources, weights):
    rules.refuse(weight_rules, f'data.sources.{name}.weight', weight)
  rules.refuse(mixture_rules, stages, d, [*map(_schedule, weights)])


def controller_rules(c: Controller, n_sources: int) -> rules.Rows:
  problem, _ = controllers.make(c.to_dict())  # refuses unread settings
  low, high = getattr(problem, 'low', 0.0), getattr(problem, 'high', 1.0)
  return (
    (
      c.name == 'band' and low > high,
      f'data.controller.low={low} is above data.controller.high={high}: no '
      'problem has such a solve rate',
    ),
    (
      n_sources > 1
      and c.name in controllers.BY_DIFFICULTY
      and c.sources != 'free',
      f'data.controller.sources={c.sources!r}: {c.name!r} goes by the '
      "difficulty of all problems, which the sources' shares would override; "
      "set it to 'free'",
    ),
    (
      not n_sources and c.sources != 'weights',
      f'data.controller.sources={c.sources!r} chooses between sources: name '
      'them in data.sources',
    ),
  )


def refresh_rules(c: RL, controller: Controller) -> rules.Rows:
  key = f'data.controller.refresh={controller.refresh}'
  return (
    (
      controller.refresh % c.steps_per_dispatch,
      f'{key} does not divide by rl.steps_per_dispatch={c.steps_per_dispatch}'
      ': the pool moves between two dispatches',
    ),
    *rules.apart(
      f' and {key}: another window has other problems with the same numbers; '
      'set one of them to its default',
      rl__staleness=c.staleness,
      rl__in_flight__batches=c.in_flight.batches,
      rl__archive=c.archive,
      rl__shaping__historical=c.shaping.historical,
      rl__temperature_control__residual=c.temperature_control.residual,
      rl__replay__by=c.replay.by if c.replay.by == 'failing' else '',
      rl__replay__mix=c.replay.mix if c.replay.mix == 'rows' else '',
    ),
  )


def pool_rules(d: Data) -> rules.Rows:
  """Refuses windows of problems that all are in the pool."""
  c = d.controller
  return rules.apart(
    f': data.name={d.name!r} is a data set, all of which is the pool; set it '
    'to its default',
    data__controller__refresh=c.refresh,
    data__controller__window=c.window != Controller.window and c.window,
  )


def heldout_rules(d: Data) -> rules.Rows:
  """Refuses a share of held-out problems if test files have these."""
  changed = [
    (c.files.heldout, c.dir)
    for c in mixture.prompted(d)
    if c.name == example_files.NAME
    and c.files.heldout not in (0, Files.heldout)
  ]
  tested = [example_files.paths_of(folder)['test'] for _, folder in changed]
  share, folder = (*changed, 2 * ('',))[0]
  return (
    (
      changed and all(tested),
      f'data.files.heldout={share} has no effect: data.dir={folder} has test '
      f'files, which are the held-out problems; set it to {Files.heldout}',
    ),
  )


def knob_rules(key: str, d: Data) -> rules.Rows:
  """Refuses knobs that the task does not have, and values of another type."""
  task = tasks.get(d.name) if tasks.is_known(d.name) else None
  known, choices = (task.knobs, task.choices) if task else ({}, {})
  knobs = [
    (f'{key}.{section}.{name}', name, value)
    for section in ('knobs', 'harder')
    for name, value in d[section].items()
  ]
  unknown = next((x for x in knobs if x[1] not in known), ('', '', None))
  wrong = next((x for x in knobs if _is_wrong(known.get(x[1]), x[2])), unknown)
  texts = [x for x in knobs if x[1] in choices and isinstance(x[2], str)]
  other = next(
    (x for x in texts if not x[2] or {*x[2]} - {*choices[x[1]]}), None
  )
  return (
    (
      unknown[0],
      f'{unknown[0]}: {key}.name={d.name!r} has no such knob.'
      f'{nearest(unknown[1], known)} It has {", ".join(known) or "none"}',
    ),
    (
      wrong[0],
      f'{wrong[0]}={wrong[2]!r}: must be a '
      f'{type(known.get(wrong[1])).__name__}',
    ),
    (
      other,
      f'{other and other[0]}={other and other[2]!r}: must have one or more of '
      f'the characters {other and choices[other[1]]}',
    ),
  )


def range_rules(key: str, d: Data) -> rules.Rows:
  """Refuses knobs of a split whose smallest value is above the largest."""
  ranges = [
    (f'{key}.{section}', name, low, f'max_{name[4:]}', knobs)
    for section, knobs in _knobs_of_splits(d).items()
    for name, low in knobs.items()
    if name.startswith('min_') and rules.is_number(low)
  ]
  empty = [
    (section, name, low, other, knobs[other])
    for section, name, low, other, knobs in ranges
    if rules.is_number(knobs.get(other)) and low > knobs[other]
  ]
  section, name, low, other, high = (*empty, 5 * ('',))[0]
  return (
    (
      empty,
      f'{section}: {name}={low} is above {other}={high}, so there is no such '
      f'problem; lower {name}, or raise {other}',
    ),
  )


def _knobs_of_splits(d: Data) -> dict[str, dict]:
  """Returns all knobs of the train split, and of the harder one if the section
  changes its knobs, by the key of these changes.
  """
  if not tasks.is_known(d.name):
    return {}
  task, own = tasks.get(d.name), dict(knobs=d.knobs, harder=d.harder)
  splits = {'knobs': 'train'} | ({'harder': 'harder'} if d.harder else {})
  return {k: tasks.split_knobs(task, x, **own) for k, x in splits.items()}


def _is_wrong(default: Any, value: Any) -> bool:
  """Returns whether a knob's value has another type than its default."""
  return not isinstance(value, KNOBS.get(type(default), object))


def source_rules(key: str, source: Mapping) -> rules.Rows:
  """Refuses a source with unknown keys or values of the wrong type."""
  known = (*mixture.KEYS, *mixture.SOURCE_KEYS)
  unknown = next((name for name in source if name not in known), '')
  warm, hard = source.get('supervised', True), source.get('difficulty')
  return (
    (
      unknown,
      f'unknown key {key}.{unknown}.{nearest(unknown, known)} A source has '
      f'{", ".join(known)}',
    ),
    *(
      (
        not isinstance(source.get(name, {}), Mapping),
        f'{key}.{name}={source.get(name)!r}: must be a section',
      )
      for name in SECTIONS
    ),
    (
      not isinstance(warm, bool),
      f'{key}.supervised={warm!r}: must be True or False',
    ),
    (
      hard is not None and not rules.is_number(hard),
      f'{key}.difficulty={hard!r}: must be a number',
    ),
  )


def task_rules(key: str, d: Data) -> rules.Rows:
  known = ('gsm8k', 'files', *tasks.TASKS, *tasks.GAMES)
  if tasks.is_known(d.name) or d.name in known:
    return ()
  return (
    (
      example_files.is_source(d.name),
      f'{key}.name={d.name!r}: write {key}.name=files and {key}.dir={d.name}',
    ),
    (
      True,
      f'{key}.name={d.name!r}: choose one of {", ".join(known)}, or '
      f'gym:<family>.{nearest(d.name, known)}',
    ),
  )


def weight_rules(key: str, weight: Any) -> rules.Rows:
  return (
    (
      _schedule(weight) is None,
      f'{key}={weight!r}: must be a number of at least 0, or '
      "{'by': 'step', 'at': [...], 'values': [...]} with as many values as "
      'points, which rise',
    ),
  )


def mixture_rules(stages: tuple, d: Data, schedules: list) -> rules.Rows:
  """Refuses sources if none is sampled, or none is trained on.

  Args:
    schedules: (points, values) of every source's weight.
  """
  keys = ', '.join(f'data.sources.{name}.weight' for name in d.sources)
  chats = {c.template == 'chat' for c in mixture.prompted(d)}
  times = sorted({t for at, _ in schedules for t in at})
  empty = [t for t in times if not any(_at(*s, t) > 0 for s in schedules)]
  return (
    (
      not any(max(values) > 0 for _, values in schedules),
      f'{keys}: all are 0; nothing would be drawn',
    ),
    (
      empty,
      f'data.sources: all weights are 0 at step {[*empty, 0][0]:g}; nothing '
      'would be drawn',
    ),
    (
      len(chats) == 2,
      "data.sources: template='chat' of some sources only: all completions of "
      'a run end with the same token; set it for all sources, or for none',
    ),
    (
      {'pretrain', 'sft'} & {*stages} and not any(mixture.own(d, 'supervised')),
      f'stages={stages}: no source of data.sources has supervised=True to '
      'train on',
    ),
  )


def _schedule(weight: Any) -> tuple[list, list] | None:
  """Returns the points and values of a weight; None: it is no weight."""
  at, values = [0], [weight]
  if isinstance(weight, Mapping):
    at, values = (weight.get(key) for key in ('at', 'values'))
    if not all(isinstance(x, list | tuple) for x in (at, values)):
      return None
    if {*weight} - {'by', 'at', 'values'} or weight.get('by') != 'step':
      return None
  numbers_ = all(rules.is_number(x) and 0 <= x < 1e9 for x in (*values, *at))
  rises = all(a < b for a, b in zip(at, at[1:]))
  sound = values and len(at) == len(values) and numbers_ and rises
  return (at, values) if sound else None


def _at(at: list, values: list, time: float) -> float:
  """Returns a weight at a step, as `sources.Weights.wanted` has it."""
  if time <= at[0]:
    return values[0]
  for (a, x), (b, y) in zip(zip(at, values), zip(at[1:], values[1:])):
    if time <= b:
      return x + (y - x) * (time - a) / (b - a)
  return values[-1]
