"""Verifies SQL: whether a query returns the rows of the reference query.

  completion -> its query -> rows  --compare-->  rows <- example['answer']

The SQLite database of the example is 'db' (a path) or 'db_script' (statements
that create it). Queries are untrusted:

  - the database is opened read-only and immutable, or is a copy in memory;
  - an authorizer allows only reading. It refuses writes, PRAGMA, ATTACH,
    extensions, virtual tables, and functions outside a list of pure ones;
  - a progress handler stops the query after `steps` virtual instructions, so
    that the verdict is the same on every machine;
  - length, depth, columns, rows and the heap of SQLite are bounded.

A query that fails or exceeds a limit scores 0. If the reference query does, the
verdict is an error. SQLite checks limits only between instructions, and one
instruction on long texts can take minutes. `rows` therefore runs queries in a
process that the kernel ends after `seconds` of CPU time; the verdict is then a
timeout, not a score of 0. Rows that tie in an ORDER BY have no order in SQL,
but are compared in the order in which SQLite returned them.
"""

import contextlib
import functools
import itertools
import os
import re
import sqlite3
import urllib.parse
from collections.abc import Iterator

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.code import result_rows
from jaxrl_reason.verifiers.pool import limited
from jaxrl_reason.verifiers.verdict import Verdict

STEPS = 20_000_000  # virtual instructions, about a second
STEP_SIZE = 200  # instructions between two calls of the progress handler
SECONDS = 2.0  # of CPU
MAX_ROWS = 10_000
MAX_BYTES = 8_000_000  # size of the texts and blobs of a result
HEAP = 256 * 2**20
LIMITS = {
  sqlite3.SQLITE_LIMIT_LENGTH: 100_000,
  sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
  sqlite3.SQLITE_LIMIT_COLUMN: 200,
  sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
  sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 30,
  sqlite3.SQLITE_LIMIT_VDBE_OP: 100_000,
  sqlite3.SQLITE_LIMIT_ATTACHED: 0,
  sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
  sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 50,
}
READS = frozenset(
  (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE)
)
# Pure, bounded by the length limit, and the same on every run.
FUNCTIONS = frozenset(
  """abs avg cast ceil ceiling char coalesce concat concat_ws count cume_dist
  date datetime dense_rank exp first_value floor glob group_concat hex
  ifnull iif instr json json_array json_array_length json_extract
  json_group_array json_group_object json_object json_type json_valid
  -> ->> julianday lag last_value lead length like ln log log10 log2 lower ltrim
  max min mod nth_value ntile nullif percent_rank pi pow power quote rank
  replace round row_number rtrim sign sqrt strftime substr substring sum time
  timediff total trim trunc typeof unicode unixepoch upper sin cos tan asin acos
  atan atan2 radians degrees likely unlikely likelihood""".split()
)
# Code in one line, which is no block; or a block's tag and text.
FENCE = re.compile(
  r'```(?:[^\n`]+```|[ \t]*([\w+-]*)[ \t]*\n(.*?)(?:```|\Z))', re.S
)
# In prose, "with" and "values" are also other words.
QUERY = re.compile(
  r'\b(?:select\b|values\s*\(|with\s+(?:recursive\s+)?'
  r'(?:\w++|"[^"]++"|`[^`]++`|\[[^\]]++\])\s*+'
  r'(?:\([^()]*+\)\s*+)?as\s*+(?:(?:not\s+)?materialized\s*+)?\()',
  re.I,
)
# Strings, names and comments are matched first: they contain no keywords.
WORDS = re.compile(
  r"'(?:[^']|'')*+'?|\"[^\"]*+\"?|`[^`]*+`?|--[^\n]*|/\*.*?(?:\*/|\Z)"
  r'|[();]|\border\s+by\b',
  re.I | re.S,
)
# The end of a query in text: a semicolon, or backticks around code in one line.
END = re.compile(r';|``|`[^`]*+')


class QueryError(ValueError):
  """A query that SQLite refused or that exceeded a limit."""


class SlowQuery(TimeoutError):
  """A query that exceeded its seconds before its instructions."""


# --- running a query in its process ------------------------------------------

RUN = limited.Function(__name__, 'answer', memory_mb=2 * HEAP >> 20)


def rows(
  example: dict, query: str, *, steps: int = STEPS, seconds: float = SECONDS
) -> list[tuple]:
  """Returns the rows of one SELECT on the example's database.

  Raises:
    QueryError: the query fails or exceeds a limit.
    SlowQuery: the query exceeds its `seconds` of CPU time.
    FieldError: the example has no database.
  """
  request = {'query': query, 'steps': steps, **database(example)}
  try:
    values = RUN(request, seconds)
  except limited.Late as e:
    raise SlowQuery(f'more than {seconds:g} s of CPU') from e
  except limited.Failed as e:
    if e.kind == fields.FieldError.__name__:
      raise fields.FieldError(f'{e}') from e
    raise QueryError(f'{e}') from e
  return [tuple(map(_cell, row)) for row in values]


def database(example: dict) -> dict[str, str]:
  """Returns the path 'db' or the 'db_script' of an example's database."""
  script = fields.field(example, 'db_script', str, default=None)
  if script is not None:
    return {'db_script': script}
  path = os.path.abspath(fields.field(example, 'db', (str, os.PathLike)))
  if not os.path.exists(path):
    raise fields.FieldError(f"'db': there is no {path}")
  return {'db': path}


def answer(request: dict) -> list[list]:
  """Runs the query of a request, in the process of `RUN`."""
  with contextlib.closing(connect(request)) as connection:
    values = rows_of(connection, request['query'], steps=request['steps'])
  return [
    [{'blob': v.hex()} if isinstance(v, bytes) else v for v in row]
    for row in values
  ]


def _cell(value):
  return bytes.fromhex(value['blob']) if isinstance(value, dict) else value


# --- the database --------------------------------------------------------


@functools.lru_cache(maxsize=8)
def _built(script: str) -> bytes:
  """Returns the database that a script creates, as bytes."""
  connection = sqlite3.connect(':memory:')
  try:
    connection.executescript(script)
    return connection.serialize()
  except sqlite3.Error as e:
    raise fields.FieldError(f"'db_script' fails: {e}") from e
  finally:
    connection.close()


def connect(example: dict) -> sqlite3.Connection:
  """Opens the example's database for reading, with limits."""
  where = database(example)
  if 'db' in where:
    # immutable: SQLite writes no lock or journal, so the folder can be
    # read-only.
    uri = f'file:{urllib.parse.quote(where["db"])}?mode=ro&immutable=1'
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
  else:
    connection = sqlite3.connect(':memory:', isolation_level=None)
    connection.deserialize(_built(where['db_script']))
  _restrict(connection)
  return connection


def _restrict(connection: sqlite3.Connection):
  connection.execute(f'PRAGMA hard_heap_limit={HEAP}')
  connection.execute('PRAGMA temp_store=MEMORY')  # no temporary files for sorts
  connection.execute('PRAGMA query_only=ON')
  connection.execute('PRAGMA trusted_schema=OFF')
  for limit, value in LIMITS.items():
    connection.setlimit(limit, value)
  connection.set_authorizer(_authorize)


def _authorize(action, first, second, database, source) -> int:
  if action in READS:
    return sqlite3.SQLITE_OK
  if action == sqlite3.SQLITE_FUNCTION and second.lower() in FUNCTIONS:
    return sqlite3.SQLITE_OK
  return sqlite3.SQLITE_DENY


# --- running a query -----------------------------------------------------


def rows_of(
  connection: sqlite3.Connection,
  query: str,
  *,
  steps: int = STEPS,
) -> list[tuple]:
  """Reads the rows of one SELECT.

  Raises:
    QueryError: the query fails or exceeds a limit.
  """
  looks = itertools.count(1)

  def exhausted() -> bool:
    return next(looks) > steps // STEP_SIZE

  connection.set_progress_handler(exhausted, STEP_SIZE)
  try:
    return list(_fetch(connection.execute(query)))
  except QueryError:
    raise
  # Warning: several statements (before Python 3.12). ValueError: a null
  # character. UnicodeEncodeError, a ValueError too: a lone surrogate.
  except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as e:
    raise QueryError(f'{type(e).__name__}: {e}'[:200]) from e
  except MemoryError as e:
    raise QueryError('out of memory') from e
  finally:
    connection.set_progress_handler(None, 0)


def _fetch(cursor: sqlite3.Cursor) -> Iterator[tuple]:
  if cursor.description is None:
    raise QueryError('no SELECT')
  size = 0
  for n, row in enumerate(cursor):
    size += sum(len(v) for v in row if isinstance(v, (str, bytes)))
    if n >= MAX_ROWS or size > MAX_BYTES:
      raise QueryError(f'more than {MAX_ROWS} rows or {MAX_BYTES} bytes')
    yield row


def query_of(text: str) -> str:
  """Extracts the query of an answer.

  It is the last block that is tagged as SQL, else the last block without a tag
  that has a query, else the text from the query's first word to its semicolon
  or to the backtick that ends code in one line.
  """
  blocks = FENCE.findall(text)
  tagged = [block for tag, block in blocks if 'sql' in tag.lower()]
  plain = [block for tag, block in blocks if not tag and QUERY.search(block)]
  if found := tagged or plain:
    return found[-1].strip()
  start = QUERY.search(text)
  if not start:
    return ''
  words = WORDS.finditer(text, start.start())
  ends = (word.start() for word in words if END.fullmatch(word[0]))
  return text[start.start() : next(ends, None)].strip()


def is_ordered(query: str) -> bool:
  """Returns whether a query has an ORDER BY outside of subqueries."""
  depth = 0
  for match in WORDS.finditer(query):
    if match[0] == '(':
      depth += 1
    elif match[0] == ')':
      depth -= 1
    elif depth == 0 and match[0][:1] in 'oO':
      return True
  return False


def reward(
  completion: str,
  example: dict,
  *,
  columns: str = 'ordered',
  tolerance: float = 1e-6,
  steps: int = STEPS,
  seconds: float = SECONDS,
  part: str = 'answer',
) -> Verdict:
  """Returns 1 if the query returns the rows of the query example['answer'].

  Rows are compared in order if the reference query has an ORDER BY, otherwise
  as a multiset. Names of columns are ignored. Reads 'answer', and 'db' or
  'db_script'.

  Raises:
    FieldError: the reference query returns no rows, or only NULL.
  """
  if columns not in result_rows.COLUMNS:
    known = ', '.join(result_rows.COLUMNS)
    raise ValueError(f'columns {columns!r}: must be one of {known}')
  gold_query = fields.field(example, 'answer', str)
  query = query_of(fields.final(completion, part) or '')
  gold = rows(example, gold_query, steps=steps, seconds=seconds)
  if all(cell is None for row in gold for cell in row):
    raise fields.FieldError(
      "'answer': the query returns no values, which every query without "
      'values would equal'
    )
  if not query:
    return Verdict(0.0, 'no_answer')
  try:
    found = rows(example, query, steps=steps, seconds=seconds)
  except QueryError as e:
    return Verdict(0.0, 'unparsed', query[:500], str(e))
  except SlowQuery as e:
    return Verdict(0.0, 'timeout', query[:500], str(e))
  same = result_rows.same_result(
    found,
    gold,
    ordered=is_ordered(gold_query),
    columns=columns,
    tolerance=tolerance,
  )
  return Verdict(float(same), 'parsed', query[:500])
