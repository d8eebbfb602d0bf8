"""Sudoku and n queens."""

import itertools
import math
from collections import Counter, defaultdict

from jaxrl_reason.rewards.puzzles import answers, instances


def _lines(r: int, c: int) -> tuple:
  """Names the row, the column and both diagonals of a square."""
  return ('row', r), ('column', c), ('falling', r - c), ('rising', r + c)


def sudoku(text: str, *, grid) -> float | None:
  """Checks the filled grid: every row, column and box has each digit once.

  grid: 4 rows of 4 or 9 rows of 9 digits; 0 is a free cell. The share is that
  of the rows, columns and boxes that are right; 0 if a given digit changed.
  """
  size = len(instances.items('grid', grid, 4, 9))
  if size not in (4, 9):
    instances.refuse('grid', f'{size} rows, neither 4 nor 9')
  given = instances.matrix('grid', grid, size, 0, size)
  rows = answers.grid(text, size, '123456789'[:size])
  if rows is None:
    return None
  cells = list(itertools.product(range(size), repeat=2))
  if any(given[r][c] not in (0, int(rows[r][c])) for r, c in cells):
    return 0.0
  side = math.isqrt(size)

  def box(r, c):
    return r // side * side + c // side

  units: dict = defaultdict(int)  # the digits of each, as bits
  for r, c in cells:
    for unit in (('row', r), ('column', c), ('box', box(r, c))):
      units[unit] |= 1 << int(rows[r][c])
  full = (1 << size + 1) - 2
  return sum(seen == full for seen in units.values()) / len(units)


def n_queens(text: str, *, size, queens=()) -> float | None:
  """Checks `size` queens on a board, none of which attacks another.

  size: 1 to 100. queens: [row, column] pairs from 0 that are already there.
  Answers: a column for every row; `size` (row, column) pairs; or a board of Q
  and . ; counted from 0 if a 0 occurs, else from 1. The share is that of the
  queens that attack none; 0 if one that was given is missing.
  """
  size = instances.integer('size', size, 1, 100)
  fixed = {
    tuple(instances.integers('queens', q, 0, size - 1, at_least=2, at_most=2))
    for q in instances.items('queens', queens, 0, size)
  }
  placed = _board(text, size) or _squares(text, size)
  if placed is None:
    return None
  if not fixed <= placed or len(placed) != size:
    return 0.0
  queens_on = Counter(line for square in placed for line in _lines(*square))
  free = sum(
    all(queens_on[line] == 1 for line in _lines(*square)) for square in placed
  )
  return free / size


def _board(text: str, size: int) -> set | None:
  rows = answers.grid(text.replace('q', 'Q'), size, 'Q.')
  if rows is None:
    return None
  return {(r, c) for r, c in itertools.product(range(size), repeat=2)
          if rows[r][c] == 'Q'}  # fmt: skip


def _squares(text: str, size: int) -> set | None:
  found = answers.integers(text, 2 * size)
  if found is None or len(found) not in (size, 2 * size):
    return None
  first = 0 if 0 in found else 1
  found = [number - first for number in found]
  if not 0 <= min(found) <= max(found) < size:
    return None
  if len(found) == size:
    return set(enumerate(found))
  return set(zip(found[::2], found[1::2]))
