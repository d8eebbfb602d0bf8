"""Values that have no effect, because a setting that they belong to is off.

The `read_with` of a record names those settings, separated by spaces. A setting
is KEY, which is on unless it is 0, False or empty, or KEY=VALUE, or KEY!=VALUE.
A value such as 'spread+band' equals both 'spread' and 'band'.
The values are read if one of the settings is on. A key is looked up in the
record, then in the records around it; a dotted key in the whole config.
"""

import dataclasses
import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxrl_reason.config import rules
from jaxrl_reason.config.record import Record
from jaxrl_reason.config.run import STAGES, Run

SETTING = re.compile(r'(?P<key>[\w.]+)(?:(?P<test>!?=)(?P<value>.*))?')
WORDS = {'=': '=', '!=': ' other than '}

# A record and the dotted key of its section, from the outermost inwards.
Place = tuple[tuple[str, Record], ...]
Unread = tuple[str, Any, Any, str]  # key, value, default, settings it needs


def unread_rules(stages: Mapping[str, Run]) -> rules.Rows:
  """Refuses the first value that has no effect in any stage.

  The message also has the defaults of other values that need the same setting.
  Sections of kinds of stages that are not run keep their values, for other
  lists of stages.

  Args:
    stages: configs of stages by the prefix of their messages.
  """
  each = {at: [*_unread((('', run),), Run())] for at, run in stages.items()}
  keys = {at: {key for key, *_ in found} for at, found in each.items()}

  def is_refused(at: str, key: str, value: Any, *_) -> bool:
    section = key.partition('.')[0]
    if section in STAGES and section not in stages[at].stages:
      return False
    return not any(
      key not in keys[other] and operator.attrgetter(key)(run) == value
      for other, run in stages.items()
    )

  refused = [
    (at, *unread)
    for at, found in each.items()
    for unread in found
    if is_refused(at, *unread)
  ]
  at, key, value, _, needs = (*refused, 5 * ('',))[0]
  defaults = {k: d for _, k, _, d, other in refused if other == needs}
  rest = ', '.join(f'{k}={d!r}' for k, d in defaults.items())
  return (
    (
      key,
      f'{at}{key}={value!r} has no effect without {needs}: set that, or {rest}',
    ),
  )


def _unread(place: Place, default: Record) -> Iterator[Unread]:
  """Yields the values of a record, and of those in it, that have no effect."""
  prefix, record = place[-1]
  fields = [f.name for f in dataclasses.fields(record)]
  for keys, settings in record.read_with.items():
    named = [_named(place, setting) for setting in settings.split()]
    if any(on for _, on in named):
      continue
    needs = ' or '.join(name for name, _ in named)
    others = [f for f in fields if f not in settings.split()]
    for key in others if keys == '*' else keys.split():
      for inner, value, other in changed(record[key], default[key]):
        yield f'{prefix}{key}{inner}', value, other, needs
  for name in fields:
    if isinstance(record[name], Record):
      inner = f'{prefix}{name}.', record[name]
      yield from _unread((*place, inner), default[name])


def changed(value: Any, default: Any) -> Iterator[tuple[str, Any, Any]]:
  """Yields (dotted key, value, default) of the values that differ."""
  if isinstance(value, Record):
    for f in dataclasses.fields(value):
      for key, *values in changed(value[f.name], default[f.name]):
        yield f'.{f.name}{key}', *values
  elif value != default:
    yield '', value, default


def _named(place: Place, setting: str) -> tuple[str, bool]:
  """Returns a setting with its dotted key, and whether it holds."""
  key, test, wanted = SETTING.fullmatch(setting).groups()
  prefix, record = place[0]
  *outer, last = key.split('.')
  for name in outer:
    prefix, record = f'{prefix}{name}.', record[name]
  if not outer:
    prefix, record = next(x for x in reversed(place) if hasattr(x[1], key))
  value = record[last]
  if not test:
    return prefix + last, bool(value)
  equal = wanted in value.split('+')
  name = f'{prefix}{last}{WORDS[test]}{wanted!r}'
  return name, equal == (test == '=')
