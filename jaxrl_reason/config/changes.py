"""Changes single keys of a config: `--config.rl.samples=16`.

A key is a dotted path through the records of `config.run.Run`. Some sections,
such as `rl.rewards`, accept any keys and values.
"""

import ast
import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ml_collections

from jaxrl_reason import trees
from jaxrl_reason.config.record import Record, kind_of, value_of
from jaxrl_reason.config.run import Run
from jaxrl_reason.names import (
  ALIASES,
  closest,
  closest_path,
  nearest_path,
  program,
)
from jaxrl_reason.verifiers.compose import KEYS as REWARD_KEYS

WORDS = re.compile(r'[(\[]?\s*\w+(\s*,\s*\w+)*\s*,?\s*[)\]]?')
# Sections whose keys have an order, which their values do not show.
ORDERED = (
  'rl.rewards',
  'rl.roles',
  'rl.step_parts',
  'rl.turns.links',
  'rl.turns.tools',
  'data.sources',
)
BOOLEANS = {'true': True, '1': True, 'false': False, '0': False}


def fields(
  record: type[Record] = Run, prefix: str = ''
) -> Iterator[tuple[str, type[Record], dataclasses.Field]]:
  """Yields (path, record, field) of every key whose value is not a section."""
  for field in dataclasses.fields(record):
    path, kind = f'{prefix}{field.name}', kind_of(field.type).type
    if issubclass(kind, Record):
      yield from fields(kind, f'{path}.')
    else:
      yield path, record, field


def orders(values: Mapping) -> dict[str, str]:
  """Returns the keys of each section of ORDERED, in their order, by its dotted
  key, also of named stages.

  Args:
    values: plain values of a config; other values have no orders.
  """
  out = {}
  for path in ORDERED:
    section: Any = values
    for name in path.split('.'):
      section = section.get(name) if isinstance(section, Mapping) else None
    if isinstance(section, Mapping) and len(section) > 1:
      out[path] = ', '.join(map(str, section))
  named = values.get('named') if isinstance(values, Mapping) else None
  for name, own in named.items() if isinstance(named, Mapping) else ():
    out |= {f'named.{name}.{path}': keys for path, keys in orders(own).items()}
  return out


def flat(values: Mapping) -> dict[str, Any]:
  """Returns the values of a config by path, and the `orders` of keys."""
  return trees.flatten(values) | orders(values)


def apply(config: ml_collections.ConfigDict, changes: Iterable[str]) -> None:
  """Changes a config in place.

  A change of data.name removes the recipe's knobs: they belong to the task of
  the recipe.

  Args:
    changes: texts such as 'rl.samples=16'; 'rl.replay_routes' alone sets a
      switch.

  Raises:
    ValueError: names a key that does not exist, or a value it cannot have.
  """
  changes = [*changes]
  same = f'data.name={config.data.name}'
  if any(c.startswith('data.name=') and c != same for c in changes):
    config.data.knobs = config.data.harder = {}
  for change in changes:
    path, value = parsed(change)
    put(config, path, value, f'--config.{path}')


def parsed(change: str) -> tuple[str, Any]:
  """Returns (path, value) of a text such as 'rl.samples=16'.

  Raises:
    ValueError: names a key that does not exist, or a value it cannot have.
  """
  path, equals, text = change.partition('=')
  name = f'--config.{path}'
  if not all(part.isidentifier() for part in path.split('.')):
    raise ValueError(f'{name}: a key has only letters, digits and _')
  annotation = annotation_of(path, name)
  if annotation is bool and not equals:
    text, equals = 'true', '='
  if not equals:
    raise ValueError(f'{name}: write {name}=VALUE')
  return path, _read(name, text, annotation)


def annotation_of(path: str, name: str) -> Any:
  """Returns the annotation of a key, or None in a section of any keys.

  Args:
    name: the key as errors show it.

  Raises:
    ValueError: there is no such key, or it is a section.
  """
  annotation, at_end = Run, False
  for part in path.split('.'):
    kind = kind_of(annotation).type
    if kind is dict:
      return None
    at_end = not issubclass(kind, Record)
    known = {} if at_end else {f.name: f.type for f in dataclasses.fields(kind)}
    if part not in known:
      near = nearest_path(path, (p for p, *_ in fields()))
      raise ValueError(f'{name}: unknown key.{near}')
    annotation = known[part]
  if issubclass(kind_of(annotation).type, Record):
    raise ValueError(
      f'{name} is a section: set one of its keys ("{program()} keys {path}" '
      'prints them)'
    )
  return annotation


def flag_hint(word: str) -> str:
  """Returns ' Did you mean ...?' with the flag that changes a key, or ''.

  Args:
    word: a key, perhaps misspelt, or its last name alone.
  """
  path = word.removeprefix('config.')
  known = [key for key, *_ in fields()]
  part, _, last = path.rpartition('.')
  if re.fullmatch(r'rl\.rewards\.\w+', part):
    path = f'{part}.{closest(last, sorted(REWARD_KEYS)) or last}'
  try:
    annotation_of(path, path)
  except ValueError:
    names = {key.rpartition('.')[2] for key in known}
    if '.' not in path and ALIASES.get(path, path) not in names:
      return ''
    path = closest_path(path, known)
  return f" Did you mean '--config.{path}'?" if path else ''


def put(
  values: ml_collections.ConfigDict, path: str, value: Any, name: str
) -> None:
  """Sets one key of a config in place.

  Args:
    name: the key as errors show it.

  Raises:
    ValueError: there is no such key, or its value has another type.
  """
  *sections, last = path.split('.')
  try:
    for section in sections:
      values = values[section]
    values[last] = value
  except (KeyError, TypeError, AttributeError) as e:
    why = e.args[0] if e.args else e
    raise ValueError(f'{name}={value!r}: {why}') from e


def _read(name: str, text: str, annotation: Any) -> Any:
  """Parses a text as the value of a key.

  Raises:
    ValueError: the value has another type, or is outside the key's range.
  """
  if annotation is None:
    return _literal(text)
  kind = kind_of(annotation)
  if kind.optional and text == 'None':
    return None
  value = text
  with contextlib.suppress(ValueError):  # the text is refused below
    if kind.type in (int, float):
      value = kind.type(text)
    elif kind.type is bool:
      value = BOOLEANS.get(text.lower(), text)
    elif kind.type is tuple:
      value = _tuple(text)
    elif kind.type is dict:
      value = _literal(text)
  value_of(name, value, annotation)
  return value


def _tuple(text: str) -> tuple:
  """Reads sft,rl and (1,2) and ['a', 'b'] as tuples."""
  if WORDS.fullmatch(text) and not re.search(r'\b\d', text):
    return tuple(re.findall(r'\w+', text))
  value = _literal(text)
  return tuple(value) if isinstance(value, list | tuple) else (value,)


def _literal(text: str) -> Any:
  """Returns the Python literal of a text, or the text itself."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text
