"""Defines records: the typed, frozen sections of a config.

  values (plain dictionaries) --read--> Run, a tree of records

A record's fields are the keys of its section, with type, range and default.
Only `read` makes records from values, so every record is checked.
"""

import copy
import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from jaxrl_reason.names import nearest
from jaxrl_reason.ranges import Range


class Record:
  """A section of a config: a frozen dataclass whose fields are the keys.

  Attributes:
    read_with: keys of the section ('*': all others) -> the settings without
      which they have no effect (`unread.py`).
  """

  read_with: ClassVar[Mapping[str, str]] = {}

  def __getitem__(self, key: str) -> Any:
    return getattr(self, key)

  def to_dict(self) -> dict[str, Any]:
    """Returns the values as nested dictionaries."""
    return dataclasses.asdict(self)

  def json_values(self) -> dict[str, Any]:
    """Returns the values as a JSON file would return them: lists for tuples."""
    return json.loads(json.dumps(self.to_dict()))

  def changed(
    self, changes: Mapping[str, Any] | None = None, **values: Any
  ) -> Self:
    """Returns a copy of this record with checked changes.

    Args:
      changes: values by dotted key, such as {'optimizer.lr': 1e-4}.
      values: values by key; `optimizer__lr` means optimizer.lr.

    Raises:
      ValueError: names a key that does not exist, or a value it cannot have.
    """
    changes = dict(changes or {})
    changes |= {k.replace('__', '.'): x for k, x in values.items()}
    values = self.to_dict()
    for key, value in changes.items():
      *outer, last = key.split('.')
      section = values
      for name in outer:
        section = section.setdefault(name, {})
        if not isinstance(section, dict):
          raise ValueError(f'{key}: {name} is not a section')
      # A later change may be of a key inside it.
      section[last] = copy.deepcopy(value)
    return read(values, type(self))


class Kind(typing.NamedTuple):
  """The type of a field.

  Attributes:
    type: type of a value that is not None.
    range: allowed range of a number; None: any value of the type.
    optional: True if None is allowed.
  """

  type: type
  range: Range | None
  optional: bool


def kind_of(annotation: Any) -> Kind:
  """Returns the type, range and optionality of a field's annotation."""
  optional = typing.get_origin(annotation) in (typing.Union, types.UnionType)
  if optional:
    annotation = typing.get_args(annotation)[0]
  if typing.get_origin(annotation) is typing.Annotated:
    kind, range_ = typing.get_args(annotation)
    return Kind(kind, range_, optional)
  return Kind(annotation, None, optional)


def mapping(**default: Any) -> Any:
  """Returns a field for a section that accepts any keys."""
  return dataclasses.field(default_factory=default.copy)


R = typing.TypeVar('R', bound=Record)


def read(values: Mapping, record: type[R], prefix: str = '') -> R:
  """Builds a record and its nested records from values.

  Args:
    prefix: prefix of keys in errors, such as 'rl.'.

  Raises:
    ValueError: names a key that is unknown or missing, or a value of the wrong
      type or outside its range.
  """
  fields = {f.name: f.type for f in dataclasses.fields(record)}
  for key in values:
    if key not in fields:
      raise ValueError(f'unknown key {prefix}{key}.{nearest(key, fields)}')
  for key in fields:
    if key not in values:
      raise ValueError(f'{prefix}{key} is missing; start from config.default()')
  return record(**{
    key: value_of(f'{prefix}{key}', values[key], annotation)
    for key, annotation in fields.items()
  })  # fmt: skip


def leaves(
  values: Mapping, record: type[Record], prefix: str = ''
) -> dict[str, Any]:
  """Flattens nested dictionaries to values by the dotted keys of a record.

  Args:
    prefix: prefix of keys in errors.

  Raises:
    ValueError: names a key that the record does not have.
  """
  fields = {f.name: kind_of(f.type).type for f in dataclasses.fields(record)}
  out = {}
  for key, value in values.items():
    if key not in fields:
      raise ValueError(f'unknown key {prefix}{key}.{nearest(key, fields)}')
    if issubclass(fields[key], Record) and isinstance(value, Mapping):
      inner = leaves(value, fields[key], f'{prefix}{key}.')
      out |= {f'{key}.{k}': x for k, x in inner.items()}
    elif issubclass(fields[key], Record):
      raise ValueError(f'{prefix}{key}={value!r}: must be a section')
    else:
      out[key] = value
  return out


def value_of(name: str, value: Any, annotation: Any) -> Any:
  """Checks the value of one field and returns it with the field's type."""
  kind = kind_of(annotation)
  if kind.optional and value is None:
    return None
  if kind.range:
    if not kind.range.holds(value):
      raise ValueError(f'{name}={value!r}: {kind.range.refusal(value)}')
    return kind.type(value)
  if kind.type is dict or issubclass(kind.type, Record):
    if not isinstance(value, Mapping):
      raise ValueError(f'{name}={value!r}: must be a section')
    if kind.type is dict:
      return dict(value)
    return read(value, kind.type, f'{name}.')
  allowed = {tuple: (list, tuple), float: (int, float)}
  if not isinstance(value, allowed.get(kind.type, kind.type)):
    raise ValueError(f'{name}={value!r}: must be a {kind.type.__name__}')
  return kind.type(value)
