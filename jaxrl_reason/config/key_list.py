"""Lists the keys of a recipe. Their meanings are comments in the source."""

import functools
import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

from jaxrl_reason.config import changes
from jaxrl_reason.config.record import Record, kind_of
from jaxrl_reason.config.rl_sections import Loss
from jaxrl_reason.config.run import Run
from jaxrl_reason.losses import defaults
from jaxrl_reason.names import nearest, nearest_path

# A field of a record or an entry of DEFAULTS: name, value, comment behind it.
FIELD = re.compile(r'  (\w+)\s*(?::[^=#]*)?=\s*[^#]*?(?:  # (.*))?$')
NOTE = re.compile(r'  # (?!---)(.*)')
KINDS = {
  bool: 'true or false',
  dict: 'a section of any keys',
  float: 'a number',
  int: 'a whole number',
  str: 'text',
  tuple: 'values with commas between',
}


class Key(NamedTuple):
  """A key of a recipe.

  Attributes:
    path: dotted path, such as rl.samples.
    allowed: type or range of its values.
  """

  path: str
  default: str
  allowed: str
  meaning: str


def meanings(source: str) -> dict[str, str]:
  """Returns the comment of each field of a record's source.

  A comment is at the end of the line of its field, or on the lines before it.
  """
  found, notes = {}, []
  for line in source.splitlines():
    if note := NOTE.fullmatch(line):
      notes.append(note[1])
    elif field := FIELD.fullmatch(line):
      # Keep the first: later tables of a file may repeat the names.
      found.setdefault(field[1], ' '.join([*notes, field[2] or '']).strip())
      notes = []
    else:
      notes = []
  return found


@functools.cache
def _comments(record: type[Record]) -> dict[str, str]:
  """Returns the comments of a record's fields, those of its bases included."""
  if record is Loss:
    return meanings(inspect.getsource(defaults))
  bases = [c for c in record.__mro__ if issubclass(c, Record) and c != Record]
  sources = [meanings(inspect.getsource(c)) for c in reversed(bases)]
  return {k: v for source in sources for k, v in source.items() if v}


def _allowed_setting(name: str) -> str:
  """Returns the choices or the range of a setting of the loss, or ''."""
  if name in defaults.CHOICES:
    return f'one of {", ".join(map(str, defaults.CHOICES[name]))}'
  low, high = defaults.RANGES.get(name, (None, None))
  bounds = {'at least': low, 'at most': high}
  words = [f'{k} {x:g}' for k, x in bounds.items() if x is not None]
  return f'a number of {" and ".join(words)}' if words else ''


def keys() -> Iterator[Key]:
  """Yields every key of a recipe."""
  for path, record, field in changes.fields():
    value = functools.reduce(getattr, path.split('.'), Run())
    allowed = _allowed_setting(field.name) if record is Loss else ''
    kind = kind_of(field.type)
    allowed = allowed or str(kind.range or KINDS[kind.type])
    meaning = _comments(record).get(field.name, '')
    yield Key(path, repr(value), allowed, meaning)


def chosen(path: str, word: str) -> list[Key]:
  """Returns the keys below a path whose path or meaning contains a word.

  Raises:
    ValueError: there is no such key.
  """
  known = list(keys())
  prefix = path.removeprefix('config.')
  below = [k for k in known if f'{k.path}.'.startswith(f'{prefix}.')]
  if path and not below:
    near = nearest_path(prefix, _paths(known))
    raise ValueError(f'{path}: unknown key.{near}')
  found = [
    k
    for k in (below if path else known)
    if word.lower() in f'{k.path} {k.meaning}'.lower()
  ]
  if not found:
    words = re.findall(r'[a-z]+', ' '.join(k.path for k in known))
    near = nearest(word, sorted(set(words)))
    raise ValueError(
      f'--search={word}: no key contains this word{near and f".{near}"}'
    )
  return found


def _paths(known: list[Key]) -> list[str]:
  """Returns the paths of keys and of their sections."""
  parts = [k.path.split('.') for k in known]
  return sorted({'.'.join(p[:n]) for p in parts for n in range(1, len(p) + 1)})
