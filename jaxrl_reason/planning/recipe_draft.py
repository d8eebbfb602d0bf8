"""A recipe that is being written: its keys, and its text as a Python file."""

import dataclasses
import pathlib
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from jaxrl_reason import config as config_lib

WIDTH = 80  # of a line of the recipe
# From full training to what needs least memory, tried in this order.
ADAPTERS = {'lora.rank': 32, 'rl.optimizer.lr': 1e-4}
WAYS: tuple[tuple[str, dict], ...] = (
  ('every weight', {}),
  ('LoRA on bfloat16 weights', ADAPTERS | {'frozen_dtype': 'bfloat16'}),
  ('LoRA on int8 weights', ADAPTERS | {'frozen_dtype': 'int8'}),
)


@dataclasses.dataclass
class Draft:
  """A recipe that is being written.

  Attributes:
    notes: lines of the docstring.
    values: of keys, by path.
    found: lines of settings that the planner found.
    changes: values of keys that the user set; they replace `values`.
  """

  notes: list[str]
  values: dict[str, Any] = dataclasses.field(default_factory=dict)
  found: list[str] = dataclasses.field(default_factory=list)
  changes: dict[str, Any] = dataclasses.field(default_factory=dict)

  def set(self, section: str, **values: Any) -> None:
    """Sets keys of a section; '': keys of the run."""
    prefix = f'{section}.' if section else ''
    self.values |= {f'{prefix}{key}': value for key, value in values.items()}

  def ways(self) -> Iterator[tuple[str, 'Draft']]:
    """Yields (its name, a copy) for each choice of trained weights; one if the
    user set it.
    """
    own = {k: v for k, v in self.changes.items() if k in WAYS[-1][1]}
    own.pop('rl.optimizer.lr', None)
    given = ' and '.join(f'{key}={value}' for key, value in own.items())
    for what, values in ((given, {}),) if own else WAYS:
      yield what, dataclasses.replace(self, values=self.values | values)

  def config(self) -> config_lib.Run:
    """Returns the config that the values make."""
    return config_lib.Run().changed(self.values | self.changes)

  def lines(self) -> list[str]:
    """Returns the lines of get_config."""
    sections: dict[str, dict] = {}
    for path, value in (self.values | self.changes).items():
      section, _, key = path.rpartition('.')
      sections.setdefault(section, {})[key] = value
    out = [f'c.{k} = {v!r}' for k, v in sections.pop('', {}).items()]
    for section, values in sections.items():
      keys = [f'{key}={value!r}' for key, value in values.items()]
      for some in _wrapped(keys, WIDTH - len(f'  c.{section}.update()')):
        out.append(f'c.{section}.update({some})')
    return out + self.found

  def text(self, command: str) -> str:
    """Returns the recipe as a file."""
    notes = '\n'.join(textwrap.fill(note, WIDTH) for note in self.notes)
    body = '\n'.join(f'  {line}' for line in self.lines())
    return (
      f'"""{notes}\n\n  {command}\n"""\n\n'
      'from jaxrl_reason import config as config_lib\n\n\n'
      '@config_lib.recipe()\ndef get_config():\n'
      f'  c = config_lib.default()\n{body}\n  return c\n'
    )


def _wrapped(words: list[str], width: int) -> list[str]:
  """Joins words by commas to lines of at most `width` characters."""
  lines = ['']
  for word in words:
    longer = f'{lines[-1]}, {word}' if lines[-1] else word
    if len(longer) <= width or not lines[-1]:
      lines[-1] = longer
    else:
      lines.append(word)
  return lines


def file_name(model: str, data: str) -> str:
  """Returns a file name for a recipe of a model and data."""
  parts = (model.rpartition('/')[2] or 'small', pathlib.Path(data).stem)
  return re.sub(r'\W+', '_', '_'.join(parts)).strip('_').lower() + '.py'
