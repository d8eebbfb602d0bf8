"""Read-only SQL on a SQLite database: the recipe's, or that of the problem.

The query is hostile text, shut in as that of a verifier (`rewards.code.sql`):
nothing but reading, no function that is not pure, bounded time and memory.
"""

import contextlib
import sqlite3
from collections.abc import Mapping

from jaxrl_reason.rewards.code import sql

ROWS = 50  # that are shown


class Sql:
  """Runs one SELECT."""

  def __init__(self, db: str = '', rows: int = ROWS):
    """Args:
    db: path of a SQLite file; '': the problem's 'db' or 'db_script'.
    rows: of a result, shown.
    """
    self._db, self._rows = db, rows
    if db:
      self._open({}).close()  # that it is there is known before a run begins

  def _open(self, example: Mapping) -> sqlite3.Connection:
    return sql.connect({'db': self._db} if self._db else dict(example))

  def __call__(self, query: str, *, example: Mapping) -> str:
    """Runs one SELECT statement and shows its rows.

    Args:
      query: the statement, in the dialect of SQLite.
    """
    try:
      with contextlib.closing(self._open(example)) as connection:
        rows = sql.rows_of(connection, sql.query_of(query))
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
