"""Compares the rows of two SQL queries as lists or multisets.

Numbers are compared with a tolerance, and texts exactly. A query without ORDER
BY returns a multiset of rows. Names of columns are ignored.
"""

import collections
import itertools
import math
from collections.abc import Iterator, Sequence

COLUMNS = ('ordered', 'any')
MAX_ORDERS = 500  # column orders that are tried


def _is_number(value) -> bool:
  return isinstance(value, (int, float))


def close(a: tuple, b: tuple, tolerance: float) -> bool:
  """Returns whether rows are equal cell by cell. Numbers have a relative or
  absolute tolerance.
  """
  return len(a) == len(b) and all(
    x == y
    or (
      _is_number(x)
      and _is_number(y)
      and math.isclose(x, y, rel_tol=tolerance, abs_tol=tolerance)
    )
    for x, y in zip(a, b)
  )


def same_rows(
  a: Sequence[tuple],
  b: Sequence[tuple],
  *,
  ordered: bool,
  tolerance: float = 1e-6,
) -> bool:
  """Returns whether rows are equal as lists if `ordered`, else as multisets."""
  if len(a) != len(b):
    return False
  if ordered:
    return all(close(x, y, tolerance) for x, y in zip(a, b))
  x, y = collections.Counter(a), collections.Counter(b)
  return _paired([*(x - y).elements()], [*(y - x).elements()], tolerance)


def _paired(a: list[tuple], b: list[tuple], tolerance: float) -> bool:
  """Returns whether rows that are not equal can be paired with close rows.

  Rows are sorted by their other cells, then by their rounded numbers, so that
  both lists have the same order.
  """

  def key(row: tuple):
    cells = ((type(v).__name__, v) for v in row if not _is_number(v))
    return [_is_number(v) for v in row], [*map(repr, cells)], _numbers(row)

  pairs = zip(sorted(a, key=key), sorted(b, key=key))
  return all(close(x, y, tolerance) for x, y in pairs)


def _numbers(row: tuple) -> list:
  """Rounds numbers to nine digits, so that noise does not change the order."""
  return [float(f'{v:.9g}') for v in row if _is_number(v)]


def same_result(
  result: Sequence[tuple],
  gold: Sequence[tuple],
  *,
  ordered: bool,
  columns: str = 'ordered',
  tolerance: float = 1e-6,
) -> bool:
  """Compares results as `same_rows`. With columns='any', the order of the
  columns may differ.
  """
  if columns == 'ordered' or not gold or not result:
    return same_rows(result, gold, ordered=ordered, tolerance=tolerance)
  if len(result[0]) != len(gold[0]) or len(result) != len(gold):
    return False
  orders = itertools.islice(_column_orders(result, gold, tolerance), MAX_ORDERS)
  return any(
    same_rows(
      [tuple(row[i] for i in order) for row in result],
      gold,
      ordered=ordered,
      tolerance=tolerance,
    )
    for order in orders
  )


def _column_orders(result, gold, tolerance: float) -> Iterator[tuple[int, ...]]:
  """Yields orders of the columns of `found` with the values of gold's
  columns.
  """
  gold_columns, result_columns = (
    [[(v,) for v in column] for column in zip(*rows)] for rows in (gold, result)
  )
  options = [
    [
      i
      for i, column in enumerate(result_columns)
      if same_rows(column, want, ordered=False, tolerance=tolerance)
    ]
    for want in gold_columns
  ]

  # If groups of equal columns have the same size on both sides, every choice
  # below leads to an order, so the search does not backtrack.
  if any(options.count(columns) != len(columns) for columns in options):
    return

  def orders(chosen: tuple[int, ...]):
    if len(chosen) == len(options):
      yield chosen
      return
    for i in options[len(chosen)]:
      if i not in chosen:
        yield from orders((*chosen, i))

  yield from orders(())
