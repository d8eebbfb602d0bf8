"""What a puzzle asks, as plain data: read, bounded and refused by name.

Every function takes the name of a field and its value, and returns the value
in the form a checker works on. What is wrong with an instance is an error
(`fields.FieldError`, which names the field), never a score: it is a bug of the
data set, not of the model.
"""

from collections.abc import Mapping, Sequence

from jaxrl_reason.rewards.fields import FieldError

MAX_ITEMS = 10_000  # numbers, clauses, edges, cells of one instance
MAX_NAME = 100  # characters of a name
MAX_INTEGER = 10**30


def refuse(field: str, why: str):
  raise FieldError(f'{field!r}: {why}')


def items(field: str, value, low: int = 0, high: int = MAX_ITEMS) -> list:
  """Checks a list of `low` to `high` things."""
  if isinstance(value, str) or not isinstance(value, Sequence):
    refuse(field, f'{value!r:.60} is no list')
  if not low <= len(value) <= high:
    refuse(field, f'{len(value)} of them, not {low} to {high}')
  return list(value)


def integer(field: str, value, low: int = 0, high: int = MAX_INTEGER) -> int:
  if isinstance(value, bool) or not isinstance(value, int):
    refuse(field, f'{value!r:.60} is no integer')
  if not low <= value <= high:
    refuse(field, f'{value} is not in {low} to {high:.6g}')
  return value


def flag(field: str, value) -> bool:
  if not isinstance(value, bool):
    refuse(field, f'{value!r:.60} is neither true nor false')
  return value


def choice(field: str, value, allowed: Sequence[str]) -> str:
  if value not in allowed:
    refuse(field, f'{value!r:.60} is none of {", ".join(allowed)}')
  return value


def integers(
  field: str,
  value,
  low: int = -MAX_INTEGER,
  high: int = MAX_INTEGER,
  *,
  at_least: int = 1,
  at_most: int = MAX_ITEMS,
) -> list[int]:
  found = items(field, value, at_least, at_most)
  return [integer(field, i, low, high) for i in found]


def matrix(field: str, value, size: int, low: int, high: int):
  """Checks `size` rows of `size` integers."""
  rows = items(field, value, size, size)
  bounds = dict(at_least=size, at_most=size)
  return [integers(field, row, low, high, **bounds) for row in rows]


def names(
  field: str, value, *, at_least: int = 1, at_most: int = 1000
) -> list[str]:
  """Checks that names differ, in more than upper and lower case."""
  found = items(field, value, at_least, at_most)
  for name in found:
    if not isinstance(name, str) or not 0 < len(name.strip()) <= MAX_NAME:
      refuse(field, f'{name!r:.60} is no name')
  if len({name.lower() for name in found}) < len(found):
    refuse(field, 'a name occurs twice')
  return found


def member(field: str, value, known: Sequence[str]) -> str:
  if not isinstance(value, str) or value not in known:
    refuse(field, f'{value!r:.60} is none of {", ".join(known)[:80]}')
  return value


def pairs(field: str, value, known: Sequence[str]) -> list[tuple[str, str]]:
  """Checks pairs of two different known names."""
  found = []
  for pair in items(field, value):
    first, second = (member(field, n, known) for n in items(field, pair, 2, 2))
    if first == second:
      refuse(field, f'{first!r} with itself')
    found.append((first, second))
  return found


def table(field: str, value, known: Sequence[str] | None = None) -> dict:
  """Checks a mapping of (known) names to anything."""
  if not isinstance(value, Mapping) or len(value) > 1000:
    refuse(field, f'{value!r:.60} is no mapping of at most 1000 names')
  if known is None:
    names(field, list(value), at_least=0)
  else:
    for name in value:
      member(field, name, known)
  return dict(value)
