"""`verifiers.code`: asserts that count, and arguments changed in place."""

import os

import pytest

from jaxrl_reason.verifiers import code

pytestmark = pytest.mark.skipif(
  not hasattr(os, 'fork'), reason='the sandbox needs fork'
)


@pytest.mark.parametrize(
  ('test', 'words'),
  [
    ('f(1)', 'assert nothing'),
    ('assert True\nf(1)', 'assert nothing'),
    ('if f(1) != 2:\n  raise AssertionError', 'assert nothing'),
    ('def test_f():\n  assert f(1) == 2', 'reach no assert'),
    ('for i in []:\n  assert f(i)', 'reach no assert'),
    ('def check(candidate):\n  assert candidate(1) == 2\nf', 'reach no'),
  ],
)
def test_tests_that_check_nothing_are_an_error(test, words):
  found = code.run_tests('def f(x): return 2', test)
  assert found.status == 'error' and words in found.detail
  # Asserts that the program's answer skips are not passed.
  test = 'for x in f(1):\n  assert x == 2'
  found = code.run_tests('def f(x): return []', test)
  assert (found.score, found.status) == (0.0, 'parsed')


RUNNER = """
import unittest
def one(): assert f(1) == 1
def two(): assert f(2) == 2
suite = unittest.TestSuite(map(unittest.FunctionTestCase, [one, two]))
unittest.TextTestRunner().run(suite)
"""
SUBTESTS = """
import unittest
class Test(unittest.TestCase):
  def runTest(self):
    for x in 1, 2:
      with self.subTest(x): assert f(x) == x
unittest.TextTestRunner().run(Test())
"""
HELPER = """
def one(x): assert f(x) == x
one(1)
try: one(2)
except ValueError: pass
"""
LOCAL = """
import contextlib
try: assert f(2) == 2
except ValueError: pass
with contextlib.suppress(ValueError):
  assert f(2) == 2
assert f(1) == 1
"""


@pytest.mark.parametrize(
  ('test', 'status', 'score'),
  [
    (RUNNER, 'parsed', 0.0),
    (SUBTESTS, 'parsed', 0.0),
    (HELPER, 'error', 0.0),  # the tests may expect it
    (LOCAL, 'parsed', 1.0),
  ],
)
def test_an_assert_that_an_exception_ends_does_not_hold(test, status, score):
  """Also if the runner of the tests catches the exception."""
  assert code.run_tests('def f(x): return x', test).score == 1.0
  raises = 'def f(x):\n  if x == 2: raise ValueError(x)\n  return x'
  found = code.run_tests(raises, test)
  assert (found.score, found.status) == (score, status), found
  wrong = code.run_tests('def f(x): return 1', test)
  assert (wrong.score, wrong.status) == (0.0, 'parsed'), wrong


def test_a_function_that_changes_its_argument_and_returns_is_an_error():
  program = 'def f(x):\n  x.sort()\n  return len(x)'
  test = 'x = [3, 1]\nassert f(x) == 2\nassert x == [1, 3]'
  found = code.run_tests(program, test)
  assert found.status == 'error' and 'changed an argument' in found.detail
  # If the test does not need the changed argument, it has a verdict.
  for test, score in (
    ('assert f([3, 1]) == 2', 1.0),
    ('assert f([3, 1]) == 3', 0.0),
    ('x = [3, 1]\nassert f(x) == 2\nassert len(x) == 2', 1.0),
  ):
    found = code.run_tests(program, test)
    assert (found.score, found.status) == (score, 'parsed'), (test, found)


@pytest.mark.parametrize(
  'test',
  [
    'x = [3, 1]\nf(x=x)\nassert x == [3, 1, 5]',
    'x = {"a": [3]}\nf(x["a"], y=4)\nassert x == {"a": [3, 5]}',
    'import collections\nx = collections.deque([3])\nf(x)\n'
    'assert x == collections.deque([3, 5])',
    'x = Counter("aab")\nh(x)\nassert x == Counter({"a": 2, "c": -1})',
    'x = OrderedDict({"b": 1, "a": 2, "c": 1})\nh(x)\n'
    'assert x == OrderedDict({"a": 2, "c": -1})',
    'x = defaultdict(int, {"b": 1, "c": 1})\nh(x)\n'
    'assert x == {"c": -1} and x["new"] == 0',
    'x = defaultdict(lambda: 7, {"b": 1, "c": 1})\nh(x)\n'
    'assert x == {"c": -1} and x["new"] == 7',
    'class Own(list): pass\nx = Own([3])\nf(x)\n'
    'assert x == [3, 5] and type(x) is Own',
    'import numpy as np\nx = np.zeros(2)\ny = x\ng(x)\n'
    'assert y[0] == 5 and y[1] == 0',
  ],
)
def test_changes_in_place_reach_the_test(test):
  if 'numpy' in test:
    pytest.importorskip('numpy')
  program = (
    'def f(x, y=0): x.append(5)\ndef g(x): x[0] = 5\n'
    'def h(x): del x["b"]; x["c"] = -1'
  )
  found = code.run_tests(program, test)
  assert found.score == 1.0, found.detail
