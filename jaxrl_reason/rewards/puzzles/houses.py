"""Zebra puzzles: who lives where, from clues given as data."""

import operator
import re
from collections.abc import Mapping

from jaxrl_reason.rewards.puzzles import answers, instances
from jaxrl_reason.rewards.text import structure


def _left(a: int, b: int) -> bool:
  return a + 1 == b


def _right(a: int, b: int) -> bool:
  return _left(b, a)


def _next(a: int, b: int) -> bool:
  return abs(a - b) == 1


# On the positions, from 1, of two values.
CLUES = {
  'same': operator.eq,
  'different': operator.ne,
  'left': _left,
  'right': _right,
  'next': _next,
  'before': operator.lt,
  'after': operator.gt,
}
# On the position of a value, and a number.
PLACES = {'at': operator.eq, 'not_at': operator.ne}
NUMBER = re.compile(
  r'[^0-9A-Za-z]*(?:house|position)?\s*#?\s*([0-9]{1,3})\b', re.I
)


def zebra(text: str, *, attributes, clues) -> float | None:
  """Checks every value of every attribute at its house.

  attributes: {'colour': ['red', 'green', 'blue'], ...}, as many values each as
  there are houses, all different. clues: [kind, value, value] with a kind of
  same, different, left (directly), right, next, before, after; or ['at',
  value, house], ['not_at', value, house], from 1. Answers: a line for every
  house ("1: red, tea"), a line for every attribute ("colour: red, green"), or
  JSON of either. The share is that of the clues that hold.
  """
  table = instances.table('attributes', attributes)
  columns = {
    name: instances.names('attributes', values, at_most=20)
    for name, values in table.items()
  }
  values = [value for column in columns.values() for value in column]
  n = len(next(iter(columns.values()), ()))
  instances.names('attributes', [*columns, *values], at_least=2)
  if any(len(column) != n for column in columns.values()):
    instances.refuse('attributes', 'not as many values of each')
  rules = [_clue(clue, values, n) for clue in instances.items('clues', clues)]
  at = _placed(text, columns, n)
  if at is None:
    return None
  # A value at no house or at two, or a house without one.
  if any(
    {at.get(v) for v in c} != set(range(1, n + 1)) for c in columns.values()
  ):
    return 0.0
  holds = sum(
    PLACES[kind](at[a], b) if kind in PLACES else CLUES[kind](at[a], at[b])
    for kind, a, b in rules
  )
  return holds / len(rules) if rules else 1.0


def _clue(clue, values: list[str], n: int) -> tuple:
  kind, first, second = instances.items('clues', clue, 3, 3)
  instances.choice('clues', kind, (*CLUES, *PLACES))
  instances.member('clues', first, values)
  if kind in PLACES:
    instances.integer('clues', second, 1, n)
  else:
    instances.member('clues', second, values)
  return kind, first, second


def _placed(text: str, columns: Mapping, n: int) -> dict[str, int] | None:
  """value -> house; None if malformed or a value stands at two."""
  if len(text) > answers.MAX_CHARS:
    return None
  known = {v.lower(): v for column in columns.values() for v in column}
  longest = sorted(known, key=len, reverse=True)
  pattern = re.compile(
    r'(?<!\w)(?:' + '|'.join(map(re.escape, longest)) + r')(?!\w)', re.I
  )
  at: dict[str, int] = {}
  for head, body in _lines(text, columns):
    found = [known[m[0].lower()] for m in pattern.finditer(body)]
    if isinstance(head, int):
      found = [(value, head) for value in found]
    elif set(found) <= set(columns[head]) and len(found) == n:
      found = [(value, i) for i, value in enumerate(found, 1)]
    else:
      return None
    for value, house in found:
      if not 1 <= house <= n or at.setdefault(value, house) != house:
        return None
  return at or None


def _lines(text: str, columns: Mapping):
  """(house or attribute, text) of every line, or item of a JSON object."""
  proper = {name.lower(): name for name in columns}
  try:
    value = structure.find(text)
  except structure.JsonError:
    value = None
  if isinstance(value, list):
    value = {str(i): item for i, item in enumerate(value, 1)}
  if isinstance(value, dict):
    pairs = [(key, str(item)) for key, item in value.items()]
  else:
    pairs = [(line, line) for line in text.splitlines()]
  for head, body in pairs:
    name = head.split(':')[0].strip(' *|-').lower()
    number = NUMBER.match(head)
    if name in proper:
      yield proper[name], body
    elif number:
      yield int(number[1]), body
