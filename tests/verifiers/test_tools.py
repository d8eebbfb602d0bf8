"""Tools and environments in Python: their observations, states and errors."""

import json
import os
import pathlib
import sqlite3
import subprocess
import sys
import time

import pytest

from jaxrl_reason.verifiers.pool import VerifierPool
from jaxrl_reason.verifiers.tools import Answer, calls, serve, toolbox
from jaxrl_reason.verifiers.tools.python import Python
from jaxrl_reason.verifiers.tools.search import Search, read
from jaxrl_reason.verifiers.tools.sql_queries import Sql
from jaxrl_reason.verifiers.tools.toolbox import Toolbox

HOSTILE = pathlib.Path(__file__).parents[1] / 'hostile_env.py'


def weather(city: str, days: int = 1) -> str:
  """Returns the weather."""
  if city == 'Atlantis':
    raise KeyError(city)
  return f'{city}: rain for {days}'


OSLO = '{"name": "w", "arguments": {"city": "Oslo"}}'
OTHER = '{"name": "v", "arguments": {}}'
WEATHER = {'tool': f'{__file__}:weather'}


def half(x: int, exact: bool = False) -> str:
  """Halves."""
  return str(x / 2 if exact else x // 2)


def root(x: float) -> str:
  return str(x**0.5)


def test_tags_become_numbers_for_numeric_arguments():
  """A tag contains only text. A text argument is not converted."""
  spec = {
    name: {'tool': f'{__file__}:{name}'} for name in ('half', 'root', 'weather')
  }
  box = Toolbox('tags', spec)
  assert box('<half> 7 </half>', {}, None).observation == '3'
  assert box('<root>2.25</root>', {}, None).observation == '1.5'
  assert box('<weather> 7</weather>', {}, None).observation == ' 7: rain for 1'
  wrong = box('<half>seven</half>', {}, None)
  assert wrong.event == 'malformed' and 'integer' in wrong.observation
  # In JSON a text is not a number.
  call = '{"name": "half", "parameters": {"x": "7"}}'
  assert Toolbox('llama', spec)(call, {}, None).event == 'malformed'


@pytest.fixture
def documents(tmp_path):
  (tmp_path / 'a').mkdir()
  (tmp_path / 'a' / 'whale.md').write_text('The whale is a mammal of the sea.')
  (tmp_path / 'rows.jsonl').write_text(
    '{"title": "kob", "text": "417"}\n\n{"title": "dal", "text": "the sea 9"}\n'
  )
  (tmp_path / 'image.png').write_bytes(b'\x00\xff')
  return tmp_path


def test_search_finds_by_words(documents):
  search = Search(folder=str(documents))
  assert search('kob') == 'kob: 417'
  assert search('mammal whale').startswith('whale: The whale')
  assert search('nothing of this') in ('nothing found', search('of this'))
  assert search('\x00 ~!') == search('') == 'nothing found'
  both = Search(folder=str(documents), top=5, characters=8)('sea')
  assert sorted(both.splitlines()) == ['dal: the sea ', 'whale: The whal']
  with pytest.raises(ValueError, match='has no documents'):
    Search(folder=str(documents / 'none'))
  (documents / 'bad.jsonl').write_text('{"title": "x"}\n')
  with pytest.raises(ValueError, match='bad.jsonl:1 is no'):
    read(str(documents))


def test_python_keeps_the_state_of_its_episode():
  run = Python(timeout_s=1.0)
  said, state = run('x = 20\ndef f(n):\n  return n + x', state=None)
  assert said == 'no output'
  said, state = run('print("heard")\nf(1) + 1', state=state)
  assert said == 'heard\n22'
  again, other = run('f(2)', state=state)
  assert again == '22' and len(other) == 3  # no output is repeated
  assert 'NameError' in run('x', state=None)[0]
  said, kept = run('x = 7\n1/0', state=state)
  assert said == 'ZeroDivisionError: division by zero'
  assert run('x', state=kept)[0] == '7'


@pytest.mark.parametrize(
  'code, words',
  [
    ('while True: pass', 'over 1 s'),
    ('print("a" * 10**9)', ''),
    ('import os\nos.fork()\nos.fork()\nprint(1)', ''),
    ('import os\nos.abort()', 'ended with status'),
    ('x = [0] * 10**10', 'MemoryError'),
    ('import sys\nsys.stdout.buffer.write(bytes(range(256)))', ''),
    ('open("/etc/passwd").read()', 'Error'),
    ('def (', 'SyntaxError'),
    ('raise SystemExit(3)', 'SystemExit'),
    ('(' * 500, 'Error'),
  ],
)
def test_python_is_confined(code, words):
  run, start = Python(timeout_s=1.0), time.monotonic()
  said, state = run(code, state=('y = 5',))
  assert words in said and time.monotonic() - start < 12
  assert len(said) < 1 << 17
  assert run('y', state=state)[0] == '5'  # nothing is lost


def test_sql_reads_and_does_not_write(tmp_path):
  path = tmp_path / 'shop.db'
  with sqlite3.connect(path) as connection:
    connection.execute('create table t(a, b)')
    rows = [(i, None) for i in range(60)]
    connection.executemany('insert into t values(?, ?)', rows)
  connection.close()
  run = Sql(db=str(path))
  assert run('select a, b from t where a = 3', example={}) == '3 | NULL'
  assert run('select a from t', example={}).endswith('... 10 more rows')
  for query in ('drop table t', 'attach "x" as y', 'pragma user_version=3'):
    assert run(query, example={}).startswith('error'), query
  assert 'error' in run(
    'with recursive c(x) as (select 1 union all select x from c) '
    'select count(*) from c', example={},
  )  # fmt: skip
  script = {'db_script': "create table u(x); insert into u values('#')"}
  assert Sql()('select x from u', example=script) == '#'
  with pytest.raises(ValueError, match='there is no'):
    Sql(db=str(tmp_path / 'none.db'))


@pytest.mark.parametrize(
  'form, text',
  [
    ('tags', 'so <w>Oslo</w>'),
    ('hermes', f'x <tool_call>\n{OSLO}\n</tool_call>'),
    ('llama', '{"name": "w", "parameters": {"city": "Oslo"}}'),
    ('llama', '<|python_tag|>{"name": "w", "parameters": {"city": "Oslo"}}'),
    ('mistral', f'[TOOL_CALLS] [{OSLO}]'),
    ('mistral', f'[{OSLO}]'),
  ],
)  # fmt: skip
def test_every_template_calls_the_same_tool(form, text):
  box = Toolbox(form, {'w': WEATHER})
  assert box(text, {}, None).observation == 'Oslo: rain for 1'
  assert box(text, {}, None).event == ''
  last = box('It rains. <answer>rain</answer>', {}, None)
  assert last.observation is None and last.event == ''


@pytest.mark.parametrize(
  'form, text, event, words',
  [
    ('tags', '<nosuch>x</nosuch>', 'unknown', "no tool 'nosuch'"),
    ('tags', 'Oslo</w>', 'malformed', '</w> without <w>'),
    ('tags', '<w>Atlantis</w>', 'failed', "KeyError: 'Atlantis'"),
    ('hermes', '<tool_call>{"name": "w"', 'malformed', 'without'),
    ('hermes', '<tool_call>[]]</tool_call>', 'malformed', 'error'),
    ('hermes', f'<tool_call>{OTHER}</tool_call>', 'unknown', 'no tool'),
    ('llama', OSLO.replace('city', 'town'), 'malformed', 'town'),
    ('llama', '{"name": "w", "parameters": {"city": 3}}', 'malformed', 'city'),
    ('llama', '{"name": "w", "parameters": {}}', 'malformed', 'city'),
    ('llama', '{"name": ' * 5000, 'malformed', 'error'),
    ('mistral', '[TOOL_CALLS] {', 'malformed', 'error'),
  ],
)  # fmt: skip
def test_an_invalid_call_is_text_and_counted(form, text, event, words):
  answer = Toolbox(form, {'w': WEATHER})(text, {}, None)
  assert answer.event == event and words in answer.observation


def test_tools_keep_their_own_states():
  tools = {name: {'tool': 'python'} for name in ('p', 'q')}
  box = Toolbox('tags', tools)
  _, state, _, _ = box('<p>x = 1</p>', {}, None)
  _, state, _, _ = box('<q>x = 2</q>', {}, state)
  assert box('<p>x</p>', {}, state).observation == '1'
  assert box('<q>x</q>', {}, state).observation == '2'
  schema = toolbox.schemas(tools)[0]['function']
  assert schema['parameters']['required'] == ['code']
  assert json.dumps(schema)


def test_ends_of_a_turn_in_tags():
  assert calls.stops('tags', ['a', 'b']) == [b'</a>', b'</b>']
  assert calls.stops('hermes', ['a']) == []


def test_hostile_environments_take_at_most_one_limit():
  """One observation per turn for any behaviour, and no process is left."""
  env = {'name': f'{HOSTILE}:step', 'args': {}, 'most': 100}
  pool = VerifierPool(
    {'env': env}, workers=4, timeout_s=1.0, chunk=1,
    **serve.POOL,
  )  # fmt: skip
  cases = [
    (f'{i}', {'example': {'prompt': 'x'}, 'state': None}) for i in range(60)
  ]
  start = time.monotonic()
  with pool:
    answers = pool.map(cases)
    stats = pool.stats()
  assert len(answers) == 60 and time.monotonic() - start < 60
  kinds = {a.status for a in answers}
  assert kinds == {'parsed', 'timeout', 'error'}
  said = [a for a in answers if a.valid]
  assert all(len(a.observation) <= 101 for a in said)
  assert all(a.score < 1 for a in said)  # no reply is from a fork
  assert any('\ufffd' in a.observation for a in said)
  assert stats['crashes'] > 0 and stats['done'] == 60
  assert any('state of an episode' in (a.detail or '') for a in answers)


def forking(what: str) -> str:
  """A tool that forks, so that two processes return."""
  if os.fork() == 0 and what == 'loop':
    time.sleep(1000)
  return what


def test_a_tool_that_forks_answers_once():
  """The sandbox of a second tool does not count as a leftover process."""
  tools = {'f': {'tool': f'{__file__}:forking'}, 'p': {'tool': 'python'}}
  args = {'calls': 'tags', 'tools': tools}
  env = {'name': 'tools', 'args': args, 'most': 100}
  pool = VerifierPool(
    {'env': env}, workers=1, timeout_s=5.0, chunk=1,
    **serve.POOL,
  )  # fmt: skip
  texts = ['<p>1 + 1</p>', '<f>loop</f>', '<f>on</f>', '<p>2 + 2</p>'] * 4
  case = {'example': {}, 'state': None}
  with pool:
    said = pool.map([(text, case) for text in texts])
    stats = pool.stats()
  assert [a.observation for a in said] == ['2', 'loop', 'on', '4'] * 4
  assert stats['crashes'] == stats['restarts'] == stats['timeouts'] == 0


def test_a_reply_is_checked():
  def env(text, example, state):
    return example['reply']

  server = serve.Server(env, 5)

  def ask(reply):
    return server('', {'example': {'reply': reply}, 'state': None})

  assert ask(Answer('abcdefgh')).observation == 'abcdef'
  assert ask((b'\xff', {'a': 1}, 1)).observation == '\ufffd'
  assert ask(('\ud800', None, 0.0)).observation == '?'
  assert ask((None, None, 0.0)).observation is None
  for bad in ('text', ('a', None), (3, None, 0.0), ('a', None, 0.0, 'odd')):
    with pytest.raises((TypeError, ValueError)):
      ask(bad)


def test_workers_need_no_jax():
  """A tool starts in a fraction of a second."""
  code = (
    'import sys\n'
    'from jaxrl_reason.verifiers.tools import calculator, python, search\n'
    'from jaxrl_reason.verifiers.tools import serve, sql_queries, toolbox\n'
    "assert 'jax' not in sys.modules"
  )  # fmt: skip
  subprocess.run([sys.executable, '-c', code], check=True, env=os.environ)
