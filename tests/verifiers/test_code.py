"""`verifiers.code`: asserts, calls and objects, scripts."""

import datetime
import os

import pytest

from jaxrl_reason.verifiers import code
from jaxrl_reason.verifiers.code.sandbox import client

pytestmark = pytest.mark.skipif(
  not hasattr(os, 'fork'), reason='the sandbox needs fork'
)
ADD = 'def add(a, b):\n  return a + b\n'


def score(program, tests, **kwargs) -> float:
  found = code.run_tests(program, tests, **kwargs)
  assert found.status == 'parsed', found.detail
  return found.score


def detail(program, tests, **kwargs) -> str:
  return code.run_tests(program, tests, **kwargs).detail


# --- asserts ---------------------------------------------------------------


@pytest.mark.parametrize(
  ('tests', 'expected'),
  [
    (['assert add(1, 2) == 3', 'assert add(2, 2) == 4'], 1.0),
    (['assert add(1, 2) == 3', 'assert add(2, 2) == 5'], 0.0),
    ('assert add(1, 2) == 3\nassert add("a", "b") == "ab"', 1.0),
    (['assert add(b=1, a=2) == 3'], 1.0),
    (['assert sub(1, 2) == -1'], 0.0),
    (['assert add(1) == 1'], 0.0),
    (['assert (add)(1, 2) == 3, "a message"'], 1.0),
    (['import math\nassert math.isclose(add(0.1, 0.2), 0.3)'], 1.0),
    (['for i in range(5):\n  assert add(i, i) == 2 * i'], 1.0),
    (['for i in range(5):\n  assert add(i, i) == i * i'], 0.0),
  ],
)
def test_asserts(tests, expected):
  assert score(ADD, tests) == expected


def test_check_is_called_with_the_entry_point():
  tests = 'def check(candidate):\n  assert candidate(1, 2) == 3\n'
  assert score(ADD, tests, entry_point='add') == 1.0
  assert score(ADD.replace('+', '-'), tests, entry_point='add') == 0.0
  assert "no 'other'" in detail(ADD, tests, entry_point='other')
  # A task may itself be called `check`: MBPP has several.
  program = ADD.replace('add', 'check')
  assert score(program, ['assert check(1, 2) == 3']) == 1.0
  tests = ['assert check(1, 2) == 3']
  assert score(program, tests, entry_point='check') == 1.0


@pytest.mark.parametrize(
  ('tests', 'expected'),
  [
    (['assert add(1, 2) == 3', 'assert add(2, 2) == 5'], 1 / 2),
    (
      'assert add(1, 2) == 3\nassert add(2, 2) == 5\nassert add(0, 0) == 0',
      2 / 3,
    ),
    # One of two statements holds only sometimes.
    (
      'for i in range(3):\n  assert add(i, 0) == i\n  assert add(i, 1) == 1',
      1 / 2,
    ),
    # After an exception between asserts, the rest fails.
    ('assert add(1, 1) == 2\nadd(1)\nassert add(1, 2) == 3', 1 / 2),
    (['assert add(1) == 1', 'assert add(1, 2) == 3'], 1 / 2),
    (['assert add(1, 2) == 3', 'assert True'], 1.0),
    (['assert add(1, 2) == 4'], 0.0),
  ],
)
def test_fraction(tests, expected):
  assert score(ADD, tests, score='fraction') == pytest.approx(expected)
  assert score(ADD, tests, score='all') == float(expected == 1)


@pytest.mark.parametrize(
  ('program', 'says'),
  [
    ('def f(x) return x', 'SyntaxError'),
    ('import no_such_module', 'no_such_module'),
    ('def f(x):\n  return 1 / 0', 'ZeroDivisionError'),
    ('def f(x):\n  return x.y', "has no attribute 'y'"),
    ('def f(x):\n  raise SystemExit(0)', 'SystemExit'),
    ('raise SystemExit(0)', 'SystemExit'),
    ('import os\ndef f(x):\n  os._exit(0)', 'ended'),
    ('def f(x):\n  return x', 'assert 1'),
    ('while True: pass', 'timeout'),
    ('', "'f' is not defined"),
  ],
)
def test_errors_of_a_program_are_reported(program, says):
  found = code.run_tests(program, ['assert f(1) == 2'], timeout_s=0.3)
  assert found.score == 0.0 and found.valid
  assert says in found.detail
  assert found.extracted == program


VALUES = [
  None, True, 0, -7, 10**18, -(10**40), 2.5, -0.0, 1e300, 3 + 4j, '', 'é\n\0',
  datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.UTC), type(None),
  datetime.time(1, 2), {1: 2}.keys(), {1: 2}.items(),
  b'\x00\xff', [], [[1], (2, 'x'), {3}], (), (1,), {}, {1: 'a', (2,): [None]},
  {1, 2}, frozenset({1}), range(3), bytearray(b'a'),
]  # fmt: skip


def source(value) -> str:
  """Returns an expression; the text of a type or a view is none."""
  views = 'dict_keys([1])', 'dict_items([(1, 2)])', "<class 'NoneType'>"
  sources = '{1: 2}.keys()', '{1: 2}.items()', 'type(None)'
  return dict(zip(views, sources)).get(repr(value), repr(value))


def test_plain_data_crosses_both_ways_with_its_type():
  program = (
    'def same(x): return x\n'
    'def text(x): return repr(x)\n'
    'def kind(x): return type(x).__name__'
  )
  tests = [
    f'import datetime\nx = {source(v)}\n'
    'assert same(x) == x and type(same(x)) is type(x)\n'
    'assert text(x) == repr(x) and kind(x) == type(x).__name__'
    for v in VALUES
  ]
  assert score(program, tests, score='fraction') == 1.0


ZONE = """
class Zone(d.tzinfo):
  def __init__(self, hours=2): self.hours = hours
  def utcoffset(self, when): return self.hours and d.timedelta(hours=2) or None
  def dst(self, when): return None
  def tzname(self, when): return self.hours and 'Z' or None
"""
ERRORS = [
  ('raise KeyError("a")', 'KeyError', 'str(e) == "\'a\'"'),
  ('raise ValueError("a", 2)', 'ValueError', 'e.args == ("a", 2)'),
  ('open("none")', 'OSError', '(e.errno, e.filename) == (2, "none")'),
  ('b"\\xff".decode()', 'UnicodeDecodeError', 'e.start == 0'),
  ('raise SystemExit(3)', 'SystemExit', 'e.code == 3'),
  ('json.loads("{")', 'json.JSONDecodeError', 'e.pos == 1'),
]

# Classes of the program: attributes that are not among the arguments.
OWN_ERRORS = [
  ('SystemExit', '3', 'e.code == 3'),
  ('UnicodeDecodeError', '"a", b"b", 0, 1, "c"',
   '(e.encoding, e.object, e.end, e.reason) == ("a", b"b", 1, "c")'),
  ('ImportError', '"a", name="b", path="c"', '(e.name, e.path) == ("b", "c")'),
  ('OSError', '2, "a", "b"', '(e.errno, e.filename) == (2, "b")'),
  ('KeyError', '"a"', 'e.args == ("a",)'),
]  # fmt: skip


@pytest.mark.parametrize(
  ('program', 'test'),
  [
    # Only functions that return None may change their arguments in place.
    ('def f(x): x.sort()', 'x = [3, 1]\nf(x)\nassert x == [1, 3]'),
    ('def f(x): x.clear()\n', 'x = {1: 2}\nf(x)\nassert x == {}'),
    ('def f(x): x.clear(); return x',
     'x = [1]\nassert f(x) == [] and x == [1]'),
    # Functions cross in both directions.
    ('def f(g, x): return [g(y) for y in x]',
     'assert f(lambda y: y * y, [2]) == [4]'),
    ('def f(x): return lambda y: x + y', 'assert f(1)(2) == 3'),
    ('def f(k, x): return [y for y in x if not isinstance(y, k)]',
     'assert f(int, [1, "a"]) == ["a"]'),
    # Exceptions cross with their built-in type.
    ('def f(x): raise KeyError(x)',
     'try:\n  f(1)\n  assert False\nexcept KeyError: assert str(f)'),
    ('class E(ValueError): pass\ndef f(x): raise E(x)',
     'try: f(1)\nexcept ValueError: ok = True\nassert ok'),
    *(
      (f'import json\ndef f(x): {error}',
       f'import json\ntry: f(1)\nexcept {kind} as e: ok = {seen}\nassert ok')
      for error, kind, seen in ERRORS
    ),
    ('class E(Exception): pass\ndef f(x): raise E("a", x)',
     'try: f(1)\nexcept E as e: ok = e.args == ("a", 1)\nassert ok'),
    ('class E(ValueError):\n  def __str__(s): return "text"\n'
     'def f(x): raise E(x)',
     'try: f(1)\nexcept ValueError as e: ok = str(e) == "text"\nassert ok'),
    *(
      (f'class E({kind}): pass\ndef f(x): raise E({given})',
       f'try: f(1)\nexcept E as e: ok = isinstance(e, {kind}) and {seen}\n'
       'assert ok')
      for kind, given, seen in OWN_ERRORS
    ),
    # Large arguments of an exception are not sent.
    ('def f(n): raise ValueError(n * "a")',
     'for n, seen in (9, 9), (40_000, 40_000), (10**6, 500):\n  try: f(n)\n'
     '  except ValueError as e: ok = len(e.args[0]) == seen\n  assert ok'),
    ('class I:\n  def next(s): raise StopIteration\ndef f(): return I()',
     'try: f().next()\nexcept StopIteration: ok = 1\nassert ok'),
    ('import collections\nf = collections.OrderedDict',
     'assert f({1: 2, 3: 4}) != OrderedDict({3: 4, 1: 2})'),
    # Dates of other zones than those of `datetime` have their offset.
    (f'import datetime as d\n{ZONE}def f(*x):\n'
     '  return d.datetime(*x, tzinfo=Zone())',
     'import datetime as d\nx = f(2020, 1, 2)\n'
     'two = d.timezone(d.timedelta(hours=2))\n'
     'assert x == d.datetime(2020, 1, 2, tzinfo=two) and x.tzname() == "Z"\n'
     'assert x < d.datetime(2020, 1, 2, tzinfo=d.timezone.utc)'),
    (f'import datetime as d\n{ZONE}def f(): return d.time(1, tzinfo=Zone(0))',
     'import datetime as d\nassert f() == d.time(1)'),
    # A defaultdict has its function if it is a built-in type.
    ('def f(x): return x["a"] + x["a"]\n'
     'def g(x): return type(x).__name__, x',
     'from collections import defaultdict\n'
     'assert f(defaultdict(list, {1: 2})) == []\n'
     'name, x = g(defaultdict(int, {1: 2}))\n'
     'assert name == "defaultdict" and x == {1: 2} and x[3] == 0\n'
     'assert g(defaultdict(lambda: 1, {1: 2})) == ("dict", {1: 2})'),
    # Objects stay in their process.
    ('class P:\n  def __init__(s, x): s.x = x\n  def get(s): return s.x',
     'p = P(1)\np.x = 5\nassert p.get() == p.x == 5'),
    ('class N:\n  def __init__(s, v): s.v = v; s.next = None\n'
     'def f(n):\n  return n.v + (f(n.next) if n.next else 0)',
     'a = N(1)\na.next = N(2)\nassert f(a) == 3'),
    ('from dataclasses import dataclass\n@dataclass\nclass P:\n  x: int\n'
     'def f(x): return P(x)', 'assert f(1) == P(1) and f(1) != P(2)'),
    ('def f(n):\n  yield from range(n)', 'assert list(f(3)) == [0, 1, 2]'),
    ('f = lambda x: map(str, x)', 'assert sorted(f([2, 1])) == ["1", "2"]'),
    ('import re\nf = lambda x: re.search("a", x)',
     'assert f("cat") and not f("dog")'),
    ('import collections\nf = collections.Counter',
     'assert f("aab") == {"a": 2, "b": 1} and f("a") == Counter("a")'),
    # A test's object is not sent to the program, since it refers to others.
    ('f = lambda x: 0',
     'class My: pass\ntry: f(My())\nexcept TypeError: ok = True\nassert ok'),
    # The function under test may have the name of a built-in.
    ('def sum(a, b): return a * b', 'assert sum(3, 4) == 12'),
    ('K = 5\nf = lambda: K', 'assert f() == K'),
  ],
)  # fmt: skip
def test_calls_and_objects(program, test):
  found = code.run_tests(program, [test])
  assert found.score == 1.0, found.detail


def test_expected_values_are_not_computed_by_the_program():
  program = """
class sys:
  getsizeof = staticmethod(lambda x: 0)
def sorted(x): return 0
def tuple(x): return 0
def helper(x): return 0
f = lambda x: 0
"""
  for test in (
    'assert f((1,)) == sys.getsizeof((1,))',
    'assert f([2, 1]) == sorted([2, 1])',
    'assert tuple(f([1])) == tuple([1])',
  ):
    assert score(program, [test]) == 0.0
  # A helper of the data set replaces the program's function of this name.
  helper = 'def helper(x):\n  return x\n'
  assert score(program, ['assert f(3) == helper(3)'], setup=helper) == 0.0
  # Without it, the test calls the program's function.
  assert score(program, ['assert f(3) == helper(3)']) == 1.0


def test_random_tests_are_the_same_every_time():
  show = 'import random\nraise ValueError(random.random())\nassert f'
  seen = {detail('f = 0', [show]) for _ in range(3)}
  assert len(seen) == 1 and 'ValueError: 0.' in seen.pop()
  # The seed depends on the tests, which a program does not know.
  assert detail('f = 0', [show]) != detail('f = 0', [show + '\n'])


# --- stdin and stdout ------------------------------------------------------

DOUBLE = 'for line in __import__("sys").stdin:\n  print(2 * int(line))\n'


@pytest.mark.parametrize(
  ('program', 'pairs', 'expected'),
  [
    (DOUBLE, [('1\n2\n', '2\n4\n'), ('', '')], 1.0),
    (DOUBLE, [('1\n', '2'), ('2\n', '5'), ('3', '6')], 2 / 3),
    (DOUBLE, [['x', '']], 0.0),  # a crash, whatever was printed
    ('print(input())', [('é\n', 'é')], 1.0),
    ('if __name__ == "__main__": print(5)', [('', '5')], 1.0),
    ('import sys\nprint(5)\nsys.exit()', [('', '5')], 1.0),
    ('import sys\nprint(5)\nsys.exit(3)', [('', '5')], 0.0),
    ('print(5)\n1 / 0', [('', '5')], 0.0),
    ('print(5)\nexit()', [('', '5')], 1.0),
    ('import atexit\natexit.register(print, 5)', [('', '5')], 1.0),
    ('import os\nos.write(1, os.read(0, 9))', [('abc', 'abc')], 1.0),
    ('import threading\nthreading.Thread(target=print, args=[5]).start()',
     [('', '5')], 1.0),
    ('import asyncio\nasync def f(): print(5)\nasyncio.run(f())',
     [('', '5')], 1.0),
    ('\ufeffimport inspect as i\ndef f(): 1\nprint(i.getsource(f), __file__)',
     [('', 'def f(): 1\n __main__.py')], 1.0),
    ('print(5)\nwhile True: pass', [('', '5')], 0.0),
    ('import os\nos.close(1)\nwhile True: pass', [('', '')], 0.0),
  ],
)  # fmt: skip
def test_scripts(program, pairs, expected):
  found = score(program, pairs, score='fraction', timeout_s=0.5)
  assert found == pytest.approx(expected)
  assert score(program, pairs, timeout_s=0.5) == float(expected == 1)


@pytest.mark.parametrize(
  'tests', [[], [('a',)], [('a', 1)], ['assert 1', ('a', 'b')], [5]]
)
def test_tests_of_unknown_form_are_refused(tests):
  with pytest.raises(ValueError, match='stdin, stdout'):
    code.run_tests(ADD, tests)


def test_knobs_out_of_range():
  with pytest.raises(ValueError, match="must be 'all' or"):
    code.run_tests(ADD, ['assert 1'], score='some')
  with pytest.raises(ValueError, match='positive'):
    code.run_tests(ADD, ['assert 1'], timeout_s=0)


@pytest.mark.parametrize(
  ('test', 'says'),
  [
    ('assert add(1, 2 == 3', 'SyntaxError'),
    ('assert 1 == 1', 'nothing of the program'),
    ('assert sorted(sum([1])) == sorted([2])', 'entry_point'),
    ('import sys\nassert add(1, 2) == 3\nsys.exit(0)', 'end the process'),
    ('assert add(1, 2) == 3\nraise SystemExit', 'end the process'),
    (
      'import unittest\nassert add(1, 2) == 3\n'
      'unittest.main(module=None, argv=["x"])',
      'end the process',
    ),
  ],
)
def test_broken_tests_are_errors(test, says):
  """A broken test is not an error of the program, and must not pass."""
  found = code.run_tests(ADD, [test])
  assert found.status == 'error' and says in found.detail


def test_a_program_costs_one_limit_however_many_pairs():
  program = 'print(input())\nif input() == "loop":\n  while True: pass'
  pairs = [('1\n\n', '1')] + [('1\nloop\n', '1')] * 3 + [('1\n\n', '1')]
  jobs = []

  class Counting:
    def run(self, job):
      jobs.append(job)
      return client.shared().run(job)

  limits = {'timeout_s': 0.3, 'sandbox': Counting()}
  found = code.run_tests(program, pairs, score='fraction', **limits)
  assert len(jobs) == 2 and found.score == 1 / 5
  assert 'timeout' in found.detail
