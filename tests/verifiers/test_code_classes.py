"""Tests that use a program's definitions as classes, as in data sets.

The files in data/classes: the tests `idioms` hold for `program` and not for
`wrong`, whose classes have the same methods with incorrect results. The tests
`idioms_of_both` hold for both. The objects of `wildcards` are equal to every
object.
"""

import os
import pathlib

import pytest

from jaxrl_reason.verifiers import code

pytestmark = pytest.mark.skipif(
  not hasattr(os, 'fork'), reason='the sandbox needs fork'
)
DATA = pathlib.Path(__file__).parent / 'data' / 'classes'
PROGRAM, WRONG, WILDCARDS = (
  (DATA / f'{name}.txt').read_text()
  for name in ('program', 'wrong', 'wildcards')
)
RIGHT_ONLY, OF_BOTH = (
  (DATA / f'{name}.txt').read_text().split('\n---\n')
  for name in ('idioms', 'idioms_of_both')
)
TRUE_OF_ANY = ('issubclass(Child', 'type(v) is Vec', 'raise MyErr', '__class__')


@pytest.mark.parametrize('test', RIGHT_ONLY + OF_BOTH)
def test_a_right_program_passes(test):
  found = code.run_tests(PROGRAM, test)
  assert (found.score, found.status) == (1.0, 'parsed'), found.detail


@pytest.mark.parametrize('test', RIGHT_ONLY)
def test_a_wrong_program_fails(test):
  found = code.run_tests(WRONG, test)
  assert (found.score, found.status) == (0.0, 'parsed'), found.detail


@pytest.mark.parametrize('test', RIGHT_ONLY + OF_BOTH)
def test_objects_equal_to_everything_pass_nothing(test):
  if not any(true in test for true in TRUE_OF_ANY):
    assert code.run_tests(WILDCARDS, test).score == 0.0


@pytest.mark.parametrize(
  ('program', 'test'),
  [
    # Two objects are equal only by a method of the program, which compares
    # types or always returns True.
    ('def __eq__(s, o): return isinstance(o, C)\n  __add__ = C_',
     'assert C(1) + C(2) == C(3)'),
    ('def __eq__(s, o): return isinstance(o, C)', 'assert C(1) == C(1)'),
    ('def __eq__(s, o): return isinstance(o, C)\n  __hash__ = lambda s: 0',
     'assert len({C(1), C(1)}) == 1 and C(1) in [C(1)]'),
    ('def __lt__(s, o): return True', 'assert C(1) < C(2)'),
    ('def __le__(s, o): return True\n  def __eq__(s, o): return True',
     'assert C(1) <= C(2)'),
    # Plain data must not be compared by a method of the program.
    ('def __eq__(s, o): return True', 'assert C(1) == 1'),
    ('def __eq__(s, o): return True\n  get = C_', 'assert C(1).get() == 3'),
    ('def __eq__(s, o): return o in range(9)\n  get = C_',
     'assert C(1).get() == 3'),
    ('def __lt__(s, o): return True\n  get = C_', 'assert C(1).get() < 3'),
    ('def __sub__(s, o): return 0.0\n  get = C_',
     'assert abs(C(1).get() - 3.5) < 1e-6'),
    ('def __sub__(s, o): return s\n  def __abs__(s): return 0.0\n  get = C_',
     'assert abs(C(1).get() - 3.5) < 1e-6'),
    ('def __rsub__(s, o): return s\n  def __float__(s): return 0.0',
     'assert float(3.5 - C(1)) == 0'),
    ('def __contains__(s, x): return True\n  get = C_',
     'assert 7 in C(1).get()'),
    ('def __contains__(s, x): return True', 'assert "a" in C(1)'),
    # An object of a subclass of a plain type is compared as its plain value.
    ('class C(int):\n  def __eq__(s, o): return True\n  __hash__ = None\n',
     'assert C(1) == 3'),
    ('class C(list):\n  def __eq__(s, o): return True\n  __len__ = C_',
     'assert C([1]) == [3]'),
    # A program cannot suppress exceptions of the tests.
    ('def __enter__(s): return s\n  def __exit__(s, *a): return True',
     'with C(1) as c:\n  assert c.x == 5\nassert c'),
    ('def __enter__(s): return s\n  def __exit__(s, *a): return True\n'
     'def f(): raise ValueError',
     'with C(1) as c:\n  x = f()\n  assert x == 5\nassert c'),
    # A method returns True only for the first comparison with an object or a
    # value, or for every second call.
    ('seen = set()\n  def __eq__(s, o):\n    new = id(o) not in s.seen\n'
     '    s.seen.add(id(o))\n    return new\n  __add__ = C_',
     'a, b, c = C(1) + C(2), C(3), C(4)\nassert a == b\nassert c.x == 4'),
    ('seen = set()\n  def __eq__(s, o):\n'
     '    new = (id(s), id(o)) not in s.seen\n    s.seen.add((id(s), id(o)))\n'
     '    return new\n  __add__ = C_',
     'a, b, c = C(1) + C(2), C(3), C(4)\nassert a == b\nassert not a == c'),
    ('seen = []\n  def __lt__(s, o):\n    s.seen.append(o)\n'
     '    return len(s.seen) % 2 == 1',
     'assert C(2) < C(1)'),
    ('seen = set()\n  def __contains__(s, o):\n    new = o not in s.seen\n'
     '    s.seen.add(o)\n    return new',
     'assert 7 in C(1)'),
    # Only the result of an operation is equal to everything.
    ('def __add__(s, o): return C(None)\n'
     '  def __eq__(s, o): return None in (s.x, o.x) or s.x == o.x',
     'assert C(1) + C(2) == C(3)\nassert C(1) != C(2)'),
    ('def __add__(s, o): return C(None)\n  __hash__ = lambda s: 1\n'
     '  def __eq__(s, o): return None in (s.x, o.x) or s.x == o.x',
     'assert C(1) + C(2) in {C(3), C(5)}'),
    ('def __add__(s, o):\n    w = C(None)\n    w.of = s, o\n    return w\n'
     '  def __eq__(s, o):\n    of = getattr(s, "of", ()) + getattr(o, "of", ())'
     '\n    if of: return not any(x is s or x is o for x in of)\n'
     '    return s.x == o.x',
     'assert C(1) + C(2) == C(3)'),
    # The program ends, or exceeds its time, while its claims are verified.
    *(
      ('n = 0\n  __add__ = C_\n  def __eq__(s, o):\n    C.n += 1\n'
       f'    if C.n > 20: {stop}\n    return True',
       'assert C(1) + C(2) == C(3)')
      for stop in ('__import__("os")._exit(0)', 'while True: pass')
    ),
    # Objects without an order, such as NaN.
    ('def __sub__(s, o): return s\n  __abs__ = lambda s: s\n'
     '  __gt__ = __lt__ = lambda s, o: False',
     'assert not abs(C(1) - C(2)) > C(.1)\nassert not abs(C(1)) > C(.1)'),
    ('def __sub__(s, o): return C(float("nan"))\n  __abs__ = lambda s: s\n'
     '  def __gt__(s, o): return s.x > o.x\n'
     '  def __lt__(s, o): return s.x < o.x',
     'assert not abs(C(5) - C(2)) > C(.1)\nassert C(2) < C(3)'),
    ('def get(s): return float("nan")', 'assert not abs(C(1).get() - 3.5) > 1'),
    # The truth of a result does not depend on its value.
    ('def ok(s): return s', 'assert C(1).ok()'),
    ('def ok(s): return s', 'c = C(1)\nassert c.ok()\nassert c.x == 1'),
    ('def ok(s): return s', 'assert all(C(i).ok() for i in range(3))'),
    ('def ok(s): return s\n  __bool__ = lambda s: False',
     'assert not C(1).ok()'),
    ('def __call__(s, *a): return C()\n  __getattr__ = lambda s, n: C()',
     'assert C(1).ok(2) and C(1).a.b().full()'),
    ('n = 0\n  def ok(s): return s\n'
     '  def __bool__(s):\n    C.n += 1\n    return C.n % 2 == 1',
     'c = C(1).ok()\nassert c\nassert not c'),
    # A result of a function under test is not an object of a class under test.
    ('def __sub__(s, o): return 0.0\n  def __eq__(s, o): return True\n'
     'f = C', 'assert abs(f(1) - 3.5) < 1e-6'),
    ('def __contains__(s, o): return True\nf = C', 'assert 3 in f(1)'),
  ],
)  # fmt: skip
def test_claims_of_the_program_alone_do_not_pass(program, test):
  head = '' if program.startswith('class') else 'class C:\n  '
  start = 'C_ = lambda s, *a: C(0)\n'
  made = start + head + program
  if head:
    made = made.replace('f = C', 'def f(x): return C(x)')
    init = '  def __init__(s, x=0): s.x = x\n'
    made = made.replace('class C:\n', 'class C:\n' + init)
  scores = ('all', 'fraction') if test.count('assert') == 1 else ('all',)
  for score in scores:
    found = code.run_tests(made, test, score=score, timeout_s=1.0)
    assert found.score == 0.0, found.detail


@pytest.mark.parametrize(
  'test',
  [
    'assert Money(5) == 5',
    'import re\nassert pattern() == re.compile("a")',
    'import pathlib\nassert [path()] == [pathlib.Path("a")]',
    'class Sub(Vec): pass\nassert Sub(1, 2).x == 1',
    'class Own: pass\nassert show(Own()) is None',
    'assert Ver("1.0") == Ver("1.0")',  # the test has no unequal object
  ],
)
def test_undecidable_tests_are_errors(test):
  head = 'import pathlib, re\ndef pattern(): return re.compile("a")\n'
  head += 'def path(): return pathlib.Path("a")\n'
  found = code.run_tests(head + PROGRAM, test)
  assert found.status == 'error' and not found.valid, found
  # A program that fails for another reason is still incorrect.
  assert code.run_tests('1 / 0', 'assert Money(5) == 5').status == 'parsed'


LISTS = """
class Node:
  def __init__(s, v, n=None): s.v, s.next = v, n
  def find(s, v): return s if s.v == v else s.next and s.next.find(v)
def chain(*values): return values and Node(values[0], chain(*values[1:]))
class Task:
  def __init__(s, n): s.n = n
  def __lt__(s, o): return s.n < o.n
class Bag:
  def __init__(s, *items): s.d = set(items)
  def __le__(s, o): return s.d <= o.d
  def __len__(s): return len(s.d)
"""


@pytest.mark.parametrize(
  'test',
  [
    'n, k = Node(1, Node(2)).next, 0\nwhile n: n, k = n.next, k + 1\n'
    'assert k == 1',
    'assert Node(1, Node(2)).find(2) and not Node(1).find(2)',
    'n = chain(1, 2).find(2)\nassert n and n.v == 2',
    'assert not Task(1) < Task(1)',
    'import heapq\nh = [Task(3), Task(1), Task(1)]\nheapq.heapify(h)\n'
    'assert heapq.heappop(h).n == 1',
    'assert not Bag(3) <= Bag(1, 2) and Bag(1) <= Bag(1, 2)',
    'assert not Bag()',
    'assert Bag(1)',
  ],
)
def test_truth_and_order_of_honest_objects_count(test):
  found = code.run_tests(LISTS, test)
  assert found.score == 1.0, found.detail


@pytest.mark.parametrize(
  'test',
  [
    'assert not abs(f(1) - 3.5) > 1e-6',
    'import operator\nassert not operator.gt(abs(f(1) - 3.5), 1e-6)',
    'from operator import le\nassert not le(3.5, f(1))',
    'ok = True\nif abs(f(1) - 3.5) > 1e-6: ok = False\nassert ok',
    'assert max(abs(a - b) for a, b in zip([1, f(1)], [1, 2])) < 1e-6',
    'assert min(1e-9, f(1)) <= 1e-6',
    'y = [f(1), f(2)]\nassert sorted(y) == y',
    'import numpy as np\nassert not np.abs(f(1) - 3.5) > 1e-6',
    'import numpy as np\n'
    'assert not (np.abs(np.full(3, f(1)) - np.ones(3)) > 1e-6).any()',
  ],
)
def test_nan_is_outside_of_every_tolerance(test):
  if 'numpy' in test:
    pytest.importorskip('numpy')
  found = code.run_tests('def f(x): return float("nan")', test)
  assert (found.score, found.status) == (0.0, 'parsed'), found
  assert 'NaN' in found.detail


def test_order_of_numbers_is_unchanged():
  test = (
    'assert -1 < f(0.5) <= 1 and max(f(1), f(2)) == 2 and min([f(3)]) == 3\n'
    'assert sorted("ba", key=ord, reverse=True) == ["b", "a"]\n'
    'assert max([], default=f(4)) == 4 and f(float("nan")) != 0'
  )
  found = code.run_tests('def f(x): return x', test)
  assert found.score == 1.0, found.detail


FIRST = """
class C:
  first = {}
  def __init__(s, x=0): s.x = x
  def __add__(s, o): return C(0)
  def __eq__(s, o): return C.first.setdefault(id(s), o) is o
"""


def test_equality_with_the_first_object_rarely_passes():
  """The program passes if two of four comparisons happen to be the first."""
  test = 'a, b, c = C(1) + C(2), C(3), C(4)\nassert a == b and c.x == 4'
  won = sum(code.run_tests(FIRST, test).score for _ in range(12))
  assert won <= 4


@pytest.mark.parametrize(
  'test',
  [
    'assert np.allclose(f(1), np.array([1.0, 2.0, 3.0]))',
    'assert np.allclose([1.0, 2.0, 3.0], f(1))',
    'import numpy as np\nassert np.isclose(f(1), [1.0, 2.0, 3.0]).all()',
    'assert (f(1) == np.array([1.0, 2.0, 3.0])).all()',
    'assert (np.abs(np.array(f(1)) - np.ones(3)) < 1e-6).all()',
    'assert np.all(np.asarray(f(1)) == 5)',
  ],
)
@pytest.mark.parametrize('empty', ['np.empty((0, 3))', '[]', 'np.zeros(0)'])
def test_an_empty_array_passes_no_comparison(test, empty):
  pytest.importorskip('numpy')
  program = f'import numpy as np\ndef f(x): return {empty}'
  assert code.run_tests(program, test).score == 0.0
  right = 'import numpy as np\ndef f(x): return np.array([1.0, 2.0, 3.0])'
  if 'allclose' in test or 'f(1) ==' in test:
    assert code.run_tests(right, test).score == 1.0


@pytest.mark.parametrize(
  'test',
  [
    'assert not np.any(np.greater(np.abs(f(1) - np.ones(2)), 1e-6))',
    'assert not np.greater(f(1), [2.0, 2.0]).any()',
    'assert not np.less(f(1), 0).any() and not np.greater(f(1), 2).any()',
    'assert np.logical_not(np.greater_equal(f(1), 3)).all()',
    'assert np.fmax(f(1), 1.0).max() == 1.0',
    'assert not np.greater(list(f(1)), 2).any()',
  ],
)
def test_a_nan_passes_no_comparison_by_a_function_of_numpy(test):
  pytest.importorskip('numpy')
  program = 'import numpy as np\ndef f(x): return np.array([1.0, {}])'
  assert code.run_tests(program.format('1.0'), test).score == 1.0
  found = code.run_tests(program.format('np.nan'), test)
  assert (found.score, found.status) == (0.0, 'parsed'), found


def test_empty_arrays_equal_empty_ones():
  program = 'import numpy as np\ndef f(x): return np.zeros((0, 3))'
  for test in (
    'assert np.allclose(f(1), np.zeros((0, 3)))',
    'assert np.allclose(np.zeros((0, 3)), f(1))',
    'assert np.array_equal(f(1), np.zeros((0, 3)))',
    'assert f(1).size == 0 and f(1).shape == (0, 3)',
  ):
    found = code.run_tests(program, test)
    assert found.score == 1.0, (test, found)


def test_a_function_cannot_choose_to_be_an_object():
  """Only the tests determine the names that are classes."""
  program = 'class f:\n  def __new__(c, x): return object.__new__(c)\n'
  program += '  __eq__ = __contains__ = lambda s, o: True\n'
  for test in ('assert f(1) == 3', 'assert 3 in f(1)', 'assert f(1) == f(2)+1'):
    found = code.run_tests(program, test)
    assert (found.score, found.status) == (0.0, 'parsed'), found
