"""Replies of a judge, kept on disk: key -> text, in SQLite.

Any number of processes and threads may read and write at once. Every call opens
the file anew (some 0.2 ms beside a request's many), so nothing is shared over a
fork, and a writer that is killed leaves the last whole state. The file belongs
on a local disk: SQLite's locks do not hold on every network file system.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
import time

LOCK_S = 30.0  # patience with other writers


def key_of(content: dict) -> str:
  """Names what was asked; equal contents have equal names."""
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode('ascii')).hexdigest()


class Cache:
  """A file of replies; made if it is not there."""

  def __init__(self, path: str):
    self.path = os.fspath(path)
    with self._open() as db:
      db.execute(
        'CREATE TABLE IF NOT EXISTS replies '
        '(key TEXT PRIMARY KEY, reply TEXT NOT NULL, at REAL NOT NULL)'
      )

  @contextlib.contextmanager
  def _open(self):
    with contextlib.closing(sqlite3.connect(self.path, LOCK_S)) as db, db:
      yield db

  def get(self, key: str) -> str | None:
    with self._open() as db:
      row = db.execute('SELECT reply FROM replies WHERE key = ?', (key,))
      found = row.fetchone()
    return found and found[0]

  def put(self, key: str, reply: str):
    """Keeps the first reply: all who ask get the same."""
    with self._open() as db:
      db.execute(
        'INSERT OR IGNORE INTO replies VALUES (?, ?, ?)',
        (key, reply, time.time()),
      )
