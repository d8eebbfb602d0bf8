"""Stores replies of a judge on disk: key -> text, in SQLite.

Any number of processes and threads may read and write at once. Every call opens
the file again (about 0.2 ms), so no handle is shared over a fork. If a writer
is killed, the file has its last complete state. Use a local disk: SQLite's
locks do not work on every network file system.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
import time

LOCK_S = 30.0  # seconds to wait for other writers


def key_of(content: dict) -> str:
  """Returns the key of a request; equal contents have equal keys."""
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode('ascii')).hexdigest()


class Cache:
  """A file of replies; created if it does not exist."""

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
    """Stores the first reply, and returns it to every caller."""
    with self._open() as db:
      db.execute(
        'INSERT OR IGNORE INTO replies VALUES (?, ?, ?)',
        (key, reply, time.time()),
      )
