"""Runs read-only SQL on a SQLite database of the recipe or of the problem.

Queries are untrusted and have the limits of the verifier `code.sql`: they can
only read and call pure functions, with bounded time and memory.
"""

from collections.abc import Mapping

from jaxrl_reason.verifiers.code import sql

ROWS = 50  # rows in the observation


class Sql:
  """Runs one SELECT."""

  def __init__(self, db: str = '', rows: int = ROWS):
    """Args:
    db: path of a SQLite file; '': the problem's 'db' or 'db_script'.
    rows: rows of a result in the observation.
    """
    self._db, self._rows = db, rows
    if db:
      sql.database({'db': db})  # a missing file is an error before the run

  def __call__(self, query: str, *, example: Mapping) -> str:
    """Runs one SELECT statement and returns its rows as text.

    Args:
      query: the statement, in the dialect of SQLite.
    """
    try:
      where = {'db': self._db} if self._db else dict(example)
      rows = sql.rows(where, sql.query_of(query))
    except (sql.QueryError, sql.SlowQuery) as e:
      return f'error: {e}'
    shown = [' | '.join(map(_cell, row)) for row in rows[: self._rows]]
    if len(rows) > self._rows:
      shown.append(f'... {len(rows) - self._rows} more rows')
    return '\n'.join(shown) or 'no rows'


def _cell(value) -> str:
  if isinstance(value, bytes):
    return f"x'{value.hex()}'"
  return 'NULL' if value is None else str(value)
