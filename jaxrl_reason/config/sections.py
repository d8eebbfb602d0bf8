"""Defines the mutable form of a config, for recipes and the command line.

A `Section` has fixed keys; an `Open` section accepts new keys. `section` builds
both from a record (`config/record.py`), which has the keys and their defaults.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_collections
from ml_collections.config_dict import placeholder

from jaxrl_reason.config.record import Record, kind_of
from jaxrl_reason.names import nearest


class Ordered(ml_collections.ConfigDict):
  """A section that keeps the order in which its keys were set: the first of
  `rl.rewards` is the verifier, and the links of a chain follow each other.
  """

  def __init__(self, values: Mapping | None = None, *args, **kwargs):
    super().__init__(values, *args, **kwargs | {'sort_keys': False})


class Section(Ordered):
  """A section with fixed keys: setting an unknown key raises an error."""

  def __getitem__(self, key: str) -> Any:
    if isinstance(key, str) and key not in self and '.' not in key:
      raise KeyError(self._unknown(key))
    return super().__getitem__(key)

  def __setitem__(self, key: str, value: Any) -> None:
    if self.is_locked and key not in self:
      raise KeyError(self._unknown(key))
    old = self[key] if key in self else None
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      if isinstance(old, Open):
        value = type(old)(value)
      elif isinstance(old, Section):
        value = _replaced(old, value)
    super().__setitem__(key, value)

  def _unknown(self, key: str) -> str:
    keys = f' The keys here are: {", ".join(sorted(self))}'
    return f'unknown key {key!r}.{nearest(key, self.keys()) or keys}'


class Open(Ordered):
  """A section that accepts new keys. Its reader checks the keys."""

  def __init__(self, values: Mapping | None = None, *args, **kwargs):
    super().__init__(None, *args, **kwargs)
    for key, value in (values or {}).items():
      self[key] = value

  def __getitem__(self, key: str) -> Any:
    if isinstance(key, str) and key not in self and '.' not in key:
      has = ', '.join(self.keys()) or 'none yet'
      raise KeyError(f'no key {key!r} here, only {has}: set the whole section')
    return super().__getitem__(key)

  def __setitem__(self, key: str, value: Any) -> None:
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      value = type(self)(value)
    super().__setitem__(key, value)

  def lock(self) -> 'Open':
    return self


class Named(Open):
  """An open section that creates inner sections when one of their keys is set.

  So the command line can set keys of a stage that the recipe does not have.
  """

  def __getitem__(self, key: str) -> Any:
    # Python looks up __deepcopy__ and others on every object.
    new = isinstance(key, str) and key not in self
    if new and '.' not in key and not key.startswith('_'):
      self[key] = Named()
    return super().__getitem__(key)


def _replaced(old: Section, values: Mapping) -> Section:
  """Returns a copy of a section with some of its values replaced."""
  new = Section(old)
  new.lock()
  # Plain values, because two configs cannot share placeholders.
  plain = values.to_dict() if hasattr(values, 'to_dict') else values
  new.update(plain)
  return new


def section(record: Record) -> Section:
  """Returns a section with the keys and values of a record."""
  values = {}
  for field in dataclasses.fields(record):
    value, kind = record[field.name], kind_of(field.type)
    if isinstance(value, Record):
      value = section(value)
    elif kind.type is dict:
      value = (Named if field.name == 'named' else Open)(value)
    elif kind.optional:
      value = placeholder(kind.type) if value is None else value
    values[field.name] = value
  return Section(values).lock()
