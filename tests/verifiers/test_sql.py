"""SQL: equal results on a real database, and hostile queries."""

import os
import sqlite3
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.code import result_rows, sql

FEW = settings(max_examples=60, deadline=None, derandomize=True)
SCRIPT = """
create table city(id integer primary key, name text, country text, size real);
insert into city values (1, 'Rome', 'IT', 2.8), (2, 'Milan', 'IT', 1.4),
  (3, 'Paris', 'FR', 2.1), (4, 'Lyon', 'FR', 0.5), (5, 'Oslo', null, 0.7);
create table number(n integer);
with recursive c(x) as (select 1 union all select x + 1 from c where x < 300)
  insert into number select x from c;
"""
GOLD = 'select country, count(*) from city group by country'


def score(query, gold=GOLD, **knobs):
  return sql.reward(query, {'answer': gold, 'db_script': SCRIPT}, **knobs).score


@pytest.fixture
def file(tmp_path):
  path = tmp_path / 'with space?.db'
  connection = sqlite3.connect(path)
  connection.executescript(SCRIPT)
  connection.close()
  return path


@pytest.mark.parametrize(
  ('query', 'right'),
  [
    (GOLD, 1),
    ('SELECT c.country AS land, COUNT(id) FROM city c GROUP BY 1', 1),
    (f'```sql\n{GOLD};\n```', 1),
    (f'I count them:\n```\n{GOLD}\n```\nDone.', 1),
    (f'<think>drop table?</think><answer>{GOLD}</answer>', 1),
    (f'The query is {GOLD};', 1),
    (f'The query is `{GOLD}`.', 1),
    (f'The query is `{GOLD}`', 1),
    (f'The query is `{GOLD}`;', 1),
    (f'The query is ``{GOLD}``', 1),
    (f"{GOLD};\nThis isn't sorted; it counts.", 1),
    (GOLD.replace(' group', " where name <> ';' group") + ';\nDone.', 1),
    (f'{GOLD} -- ;\norder by 1;\nDone.', 1),
    (f'Here is a query with no joins; its values are counts: {GOLD}', 1),
    (
      'With a table: WITH c (x) AS (SELECT country FROM city)\n'
      'SELECT x, count(*) FROM c GROUP BY x',
      1,
    ),
    *(
      (f'The query: with {a}a b{b} as ({GOLD}) select * from {a}a b{b};', 1)
      for a, b in ('""', '``', '[]')
    ),
    (f'With "a name" as an example: {GOLD}', 1),
    (f'With a name:\nWITH c AS (\n{GOLD}) SELECT * FROM c;', 1),
    (f'```python\nq = "select"\n```\n```sql\n{GOLD}\n```', 1),
    (f'```sql\n{GOLD};\n```\nOutput:\n```\nIT | 2\n```', 1),
    (f'```\n{GOLD};\n```\nOutput:\n```\nIT | 2\n```', 1),
    (f'```SQL\n{GOLD}```\nIn Python:\n```python\nrun("select 1")\n```', 1),
    (f'```sql\nselect 1\n```\nBetter:\n```postgresql\n{GOLD}', 1),
    (f'Run ```select 1```\n```\n{GOLD}\n```', 1),
    (f'{GOLD} order by 1 desc', 1),
    ('select count(*), country from city group by country', 0),
    ('select country, count(*) from city group by name', 0),
    ('select country, count(*) from city where id < 5 group by country', 0),
    ('select country, count(country) from city group by country', 0),
    ('select country, 2 from city', 0),
    ('select nothing from nowhere', 0),
    ('selec country', 0),
    ('', 0),
    ('<think>' + GOLD, 0),
  ],
)
def test_results(query, right):
  assert score(query) == right


@pytest.mark.parametrize(
  ('query', 'gold', 'right'),
  [
    # Order counts if the gold query has an ORDER BY.
    ('select name from city order by size', 'select name from city', 1),
    ('select name from city', 'select name from city order by size', 0),
    (
      'select name from city order by size desc',
      'select name from city order by size',
      0,
    ),
    (
      'select n from number order by n desc limit 3',
      'select * from (select n from number order by n desc limit 3)',
      1,
    ),
    (
      'select * from (select 3 a union select 1 union select 2) order by -a',
      'select 1 union select 3 union select 2 -- order by 1',
      1,
    ),
    # Numbers up to the tolerance, in any order; texts exactly.
    ('select size * 3 / 3 from city', 'select size from city', 1),
    ('select size + 1e-3 from city', 'select size from city', 0),
    ('select 5', 'select 5.0', 1),
    ("select '5'", 'select 5', 0),
    ("select 'rome'", "select 'Rome'", 0),
    ('select null', 'select 0', 0),
    ('select null, 2', 'select null, 2', 1),
    ('select 1 union all select 1', 'select 1', 0),
    # Rows as a multiset.
    (
      'select 1 union all select 2 union all select 2',
      'select 1 union all select 1 union all select 2',
      0,
    ),
  ],
)
def test_comparison(query, gold, right):
  assert score(query, gold) == right
  assert score(gold, gold) == 1


def test_the_order_of_columns_by_argument():
  gold = 'select name, country, size, id from city'
  swapped = 'select id, size, name, country from city'
  assert score(swapped, gold) == 0.0
  assert score(swapped, gold, columns='any') == 1.0
  # All rows must have the same order of columns.
  mixed = 'select 1, 2 union all select 4, 3'
  assert score(mixed, 'select 1, 2 union all select 3, 4', columns='any') == 0.0
  # Each column must be matched once.
  crossed = 'select 1, 2 union all select 2, 1'
  gold = 'select 1, 1 union all select 2, 2'
  assert score(crossed, gold, columns='any') == 0.0
  assert score('select 1, 1, 2', 'select 2, 1, 1', columns='any') == 1.0
  assert score('select 1, 2, 2', 'select 2, 1, 1', columns='any') == 0.0
  assert score('select 1', 'select 1, 1', columns='any') == 0.0
  wide = ', '.join('1' for _ in range(150))
  assert score(f'select {wide}', f'select {wide}', columns='any') == 1.0
  with pytest.raises(ValueError, match='some'):
    score(GOLD, columns='some')


ROWS = st.lists(
  st.tuples(st.sampled_from(['a', 'b', None, b'x']), st.integers(0, 3)),
  max_size=6,
)


@FEW
@given(ROWS, st.randoms(use_true_random=False), st.floats(-1e-9, 1e-9))
def test_rows_equal_themselves_in_any_order(rows, random, noise):
  other = [(a, b + noise) for a, b in random.sample(rows, len(rows))]
  assert result_rows.same_rows(other, rows, ordered=False)
  assert result_rows.same_rows(rows, rows, ordered=True)
  assert result_rows.same_result(
    [row[::-1] for row in other], rows, ordered=False, columns='any'
  )
  assert not result_rows.same_rows([*other, ('a', 1)], rows, ordered=False)


def test_a_file_is_read_and_not_changed(file):
  before = file.read_bytes()
  os.chmod(file, 0o444)
  example = {'answer': GOLD, 'db': str(file)}
  assert sql.reward(GOLD, example).score == 1.0
  for query in WRITES:
    assert sql.reward(f'```sql\n{query}\n```', example).score == 0.0
  assert file.read_bytes() == before
  assert [p.name for p in file.parent.iterdir()] == [file.name]


def test_each_guard_works_alone(file):
  """The file is read-only, also without the authorizer and query_only."""
  connection = sql.connect({'db': str(file)})
  connection.set_authorizer(None)
  heap = connection.execute('pragma hard_heap_limit').fetchone()[0]
  assert 0 < heap <= sql.HEAP
  with pytest.raises(sqlite3.OperationalError, match='readonly'):
    connection.execute('delete from city')
  connection.execute('pragma query_only = off')
  with pytest.raises(sqlite3.OperationalError, match='readonly'):
    connection.execute('delete from city')
  connection.close()


@pytest.mark.parametrize(
  ('query', 'words'),
  [
    ('select a.n from number a, number b', 'rows'),
    (f"select {'hex(' * 15} 'aa' {')' * 15} from number", 'bytes'),
    ('select n from number where n = 1 / 0 or x', 'no such column'),
  ],
)
def test_limits_of_a_result(query, words):
  connection = sql.connect({'db_script': SCRIPT})
  with pytest.raises(sql.QueryError, match=words):
    sql.rows_of(connection, query)
  assert len(sql.rows_of(connection, 'select n from number')) == 300
  connection.close()


WRITES = [
  "insert into city values (9, 'X', 'X', 1)",
  'update city set size = 0',
  'delete from city',
  'drop table city',
  'create table x(y)',
  'create temp table x(y)',
  'alter table city rename to town',
  "attach database 'other.db' as other",
  "vacuum into 'copy.db'",
  'vacuum',
  'pragma writable_schema = 1',
  'pragma hard_heap_limit',
  'begin',
  'analyze',
  'reindex',
  "select load_extension('x.so')",
  "select writefile('x', 'y')",
  "select readfile('/etc/hostname')",
  'select randomblob(1000000000)',
  'select zeroblob(1000000000)',
  "select printf('%.*c', 1000000000, 'x')",
  "select * from pragma_table_info('city')",
  "select fts3_tokenizer('x')",
  f'{GOLD}; drop table city',
  'select \x00',
  "select '\ud800'",
  'select ' + '(' * 5000 + '1' + ')' * 5000,
  'select ' + '1+' * 9000 + '1',
  'select ' + ' union select '.join('1' for _ in range(1000)),
]


@pytest.mark.parametrize('query', WRITES, ids=lambda query: query[:30])
def test_only_reading_is_allowed(query):
  verdict = sql.reward(
    f'```sql\n{query}\n```', {'answer': GOLD, 'db_script': SCRIPT}
  )
  assert (verdict.score, verdict.status) == (0.0, 'unparsed')
  assert verdict.detail


ENDLESS = 'with recursive c(x) as (select 1 union all select x + 1 from c) '
LONG = "replace(hex(replace('aaaaaaaaaa', 'a', 'aaaaaaaaaaaaaaaa')), '6', name)"
ONE_ROW = (
  "with a(s) as (select replace(hex(substr(quote(hex('{zeros}')), 1, 45000)), "
  "'3', '0')), b(s, t) as (select s, substr(s, 1, 45000) || '1' from a) "
  'select {{calls}} from b'
).format(zeros=9000 * '0')
HOSTILE = [
  ENDLESS + 'select count(*) from c',
  ENDLESS + 'select x from c',
  ENDLESS + 'select max(x) from c order by 1',
  'with recursive c(s) as (select 1 union all select s || s from c) select * '
  'from c',
  'select count(*) from number a, number b, number c, number d, number e',
  'select a.n from number a, number b',
  'select group_concat(a.n) from number a, number b, number c',
  f'select count(distinct {LONG} || a.n || b.n) from city, number a, number b',
  f'select sum(instr({LONG}, {LONG} || a.n)) from city, number a, number b, '
  'number c',
  "select count(*) from number a, number b where hex(a.n) like '%3%3%3%3%3%3%'",
  'select sum(a.n) over (order by b.n) from number a, number b, number c',
  'select 1 from ' + ', '.join(f'number n{i}' for i in range(40)),
  # Few but long instructions: SQLite checks no limit during an instruction.
  ONE_ROW.format(calls=' + '.join(60 * ['instr(s, t)'])),
  ONE_ROW.format(calls=' + '.join(60 * ['length(trim(s, t))'])),
  ONE_ROW.format(calls=' + '.join(60 * ['length(replace(s, t, 1))'])),
]


@pytest.mark.parametrize('query', HOSTILE, ids=lambda query: query[:40])
def test_hostile_queries_end(query):
  start = time.process_time()
  verdict = sql.reward(
    f'```sql\n{query}\n```',
    {'answer': GOLD, 'db_script': SCRIPT},
    steps=2_000_000,
    seconds=0.5,
  )
  assert verdict.score == 0.0 and verdict.status != 'error'
  assert time.process_time() - start < 5.0


@pytest.mark.parametrize(
  'gold',
  [
    'select name from city where 0',
    'select max(name), sum(1) from city where 0',
  ],
)
def test_a_right_query_without_values_is_an_error(gold):
  """Every query without values would equal it."""
  for query in ('select 1 where 0', 'select null, null'):
    with pytest.raises(fields.FieldError, match="'answer'.*no values"):
      score(query, gold)
  assert score('select 1 where 0') == 0.0


def test_blobs_and_numbers_are_those_of_the_database():
  query = "select x'00ff', 9007199254740993, 0.1, null, 'caf\u00e9', 9e999"
  rows = sql.rows({'db_script': SCRIPT}, query)
  assert rows == [
    (b'\0\xff', 9007199254740993, 0.1, None, 'caf\u00e9', float('inf'))
  ]


def test_a_right_query_that_fails_is_an_error():
  with pytest.raises(sql.QueryError, match='nowhere'):
    score(GOLD, 'select 1 from nowhere')
  with pytest.raises(sql.QueryError, match='interrupted'):
    score(GOLD, HOSTILE[0], steps=10_000)
  with pytest.raises(fields.FieldError, match='db'):
    sql.reward(GOLD, {'answer': GOLD})
  with pytest.raises(fields.FieldError, match='no such|no .*none.db'):
    sql.reward(GOLD, {'answer': GOLD, 'db': 'none.db'})
  with pytest.raises(fields.FieldError, match='db_script'):
    sql.reward(GOLD, {'answer': GOLD, 'db_script': 'create tabel x(y)'})


@pytest.mark.parametrize(
  ('query', 'ordered'),
  [
    ('select 1 order by 1', True),
    ('SELECT 1 ORDER\n BY 1', True),
    ('select 1', False),
    ('select * from (select 1 order by 1)', False),
    ("select 'order by'", False),
    ("select 'it''s order by' x", False),
    ('select "order by" from t', False),
    ('select 1 -- order by 1', False),
    ('select 1 /* order by */', False),
    ('with a as (select 1 order by 1) select 1 order by 1', True),
    ('select row_number() over (order by 1)', False),
  ],
)
def test_is_ordered(query, ordered):
  assert sql.is_ordered(query) == ordered


@FEW
@given(
  st.one_of(
    st.text(max_size=40),
    st.lists(
      st.sampled_from(
        'select from where city n number , * ( ) 1 name count(*) '
        "group order by union 'a ; -- /* with as distinct".split()
      )
    ).map(' '.join),
  )
)
def test_every_query_has_a_score(query):
  assert 0.0 <= score(query) <= 1.0
  assert score(f'```sql\n{query}\n```') in (0.0, 1.0)
