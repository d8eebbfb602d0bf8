"""Reads files like data/equivalence.txt: pairs of answers, equal or not."""

import os

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data')


def groups(
  name: str = 'equivalence.txt',
) -> list[tuple[int, str, list[str], list[str]]]:
  """Yields (line, gold, equal answers, other answers)."""
  found = []
  with open(os.path.join(DATA, name), encoding='utf-8') as f:
    for number, line in enumerate(f, 1):
      line = line.rstrip('\n')
      if not line or line.startswith('#'):
        continue
      equal, _, other = line.partition(' !! ')
      gold, *equal = equal.split(' ;; ')
      found.append((number, gold, equal, other.split(' ;; ') if other else []))
  return found


def pairs(name: str = 'equivalence.txt') -> list[tuple[str, str, bool]]:
  """Yields (prediction, gold, equal)."""
  return [
    (text, gold, same)
    for _, gold, equal, other in groups(name)
    for same, texts in ((True, equal), (False, other))
    for text in texts
  ]
