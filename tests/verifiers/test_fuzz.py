"""Properties of every parser on generated text: total, bounded, symmetric."""

import time
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jaxrl_reason.verifiers import math
from jaxrl_reason.verifiers.math import extraction, numbers
from jaxrl_reason.verifiers.math.expr import answers, exact, nodes, text, words
from jaxrl_reason.verifiers.math.expr.parser import parse
from jaxrl_reason.verifiers.math.expr.tokens import Reader

pytestmark = pytest.mark.usefixtures('small_heap')
FEW = settings(max_examples=150, deadline=None, derandomize=True)
SOME = settings(max_examples=300, deadline=None, derandomize=True)

PIECES = st.sampled_from(
  r"""\frac \sqrt \boxed \text \left( \right) \pm \cup \le \in \pi \infty \sin
  \log_2 \begin{pmatrix} \end{pmatrix} \\ & { } ( ) [ ] | < > = + - * / ^ _ ! %
  , ; : . ' $ \$ ° 0 1 2 12 3.5 1,234 x y n e i f( and or cm \% ^\circ \{ \}
  answer is #### <answer> </answer> </think> ** 的 或 √ ² ½ π ∞ （
  ， 。""".split()
)
SOUP = st.lists(PIECES, max_size=25).map(''.join)
SPACED = st.lists(PIECES, max_size=25).map(' '.join)
ANY = st.one_of(st.text(max_size=60), SOUP, SPACED)
INTEGERS = st.integers(-99, 99)


@SOME
@given(ANY)
def test_parsers_are_total(string):
  text.clean(string)
  words.is_text(string)
  extraction.extract(string)
  numbers.extract(string)
  try:
    Reader(string).read()
    parse(text.clean(string))
  except (nodes.ParseError, nodes.Limit):
    pass


@SOME
@given(ANY, ANY)
def test_verdicts_are_total_quick_and_symmetric(a, b):
  start = time.thread_time()
  assert math.grade(a, b).status != 'error'
  assert answers.same(a, b).same == answers.same(b, a).same
  assert time.thread_time() - start < 1.0


@SOME
@given(ANY)
def test_cleaning_is_idempotent(string):
  once = text.clean(string)
  assert text.clean(once) == once


@SOME
@given(ANY.filter(str.strip))
def test_an_answer_equals_itself(string):
  assert math.verify(string, string)
  assert math.verify(f'  {string} ', string)


def latex(value: Fraction) -> str:
  sign = '-' if value < 0 else ''
  above, below = abs(value.numerator), value.denominator
  return (
    f'{sign}{above}' if below == 1 else f'{sign}\\frac{{{above}}}{{{below}}}'
  )


EXPRESSIONS = st.recursive(
  st.one_of(INTEGERS.map(str), st.sampled_from(['x', 'y', '\\pi'])),
  lambda inner: st.one_of(
    st.tuples(inner, inner).map(lambda p: f'({p[0]}+{p[1]})'),
    st.tuples(inner, inner).map(lambda p: f'({p[0]})({p[1]})'),
    st.tuples(inner, inner).map(lambda p: f'\\frac{{{p[0]}}}{{{p[1]}}}'),
    st.tuples(inner, st.integers(0, 4)).map(lambda p: f'({p[0]})^{{{p[1]}}}'),
    inner.map(lambda p: f'\\sqrt{{{p}}}'),
    inner.map(lambda p: f'\\sin({p})'),
  ),
  max_leaves=8,
)


@FEW
@given(EXPRESSIONS, INTEGERS.filter(bool))
def test_adding_something_makes_another_answer(expression, more):
  assert not answers.same(f'{expression}+{more}', expression).same


@FEW
@given(EXPRESSIONS, EXPRESSIONS)
def test_sums_commute(a, b):
  # If neither sum has a value (a division by zero), only equal texts are equal.
  # This includes values that overflow: sines of sines of complex numbers.
  found = answers.same(f'{a}+{b}', f'{b}+{a}')
  assume(found.parsed)
  for one in (a, b):
    if not answers.same(f'{one}+1', f'1+{one}').same:
      return
  assert found.same


def test_a_sum_commutes_where_one_point_overflows():
  a, b = '4', r'\sin(\sin(\sin(\sqrt{y})))'
  assert answers.same(f'{a}+{b}', f'{b}+{a}').same
  assert not answers.same(f'{a}+{b}', f'{b}-{a}').same


@FEW
@given(st.fractions(max_denominator=999), st.fractions(max_denominator=999))
def test_fractions_are_exact(a, b):
  assert math.verify(latex(a), f'{a.numerator}/{a.denominator}')
  assert math.verify(latex(a), latex(b)) == (a == b)
  assert math.verify(f'\\boxed{{{latex(a)}+{latex(b)}}}', latex(a + b))


@FEW
@given(st.decimals(-(10**6), 10**6, places=3))
def test_decimals_are_exact(value):
  plain = f'{value:f}'
  assert math.verify(plain, f'{value:,}')
  assert numbers.extract(f'it is {value:,}.') == numbers.extract(plain)
  assert math.verify(plain, latex(Fraction(value)))
  assert not math.verify(f'{value + 1:f}', plain)


@FEW
@given(st.lists(INTEGERS, min_size=2, max_size=6, unique=True), st.randoms())
def test_sets_have_no_order_and_tuples_have(items, random):
  shuffled = random.sample(items, len(items))
  given_, other = (', '.join(map(str, x)) for x in (items, shuffled))
  assert math.verify(f'\\{{{other}\\}}', f'\\{{{given_}\\}}')
  assert math.verify(f'({other})', f'({given_})') == (items == shuffled)
  fewer = ', '.join(map(str, items[1:]))
  assert not math.verify(fewer, given_)


@FEW
@given(
  st.lists(st.integers(2, 999), min_size=2, max_size=9, unique=True),
  st.sampled_from(['=', '\\approx', '\\equiv', '\\to', '\\sim', '\\cong']),
)
def test_a_chain_is_not_a_list_of_guesses(sides, relation):
  chain = f' {relation} '.join(map(str, sides))
  far = all(abs(x - y) > 0.5 * max(x, y) for x, y in zip(sides, sides[1:]))
  assume(far)
  for answer in (chain, f'x {relation} {chain}'):
    for side in sides[:-1]:
      assert not math.verify(f'\\boxed{{{answer}}}', str(side))


@FEW
@given(
  st.integers(-99, 99).filter(bool),
  st.integers(101, 999),
  st.sampled_from(['()', '[]', '(]', '[)']),
)
def test_a_comma_in_brackets_does_not_group_thousands(low, high, brackets):
  left, right = brackets
  pair = f'{left}{low},{high}{right}'
  assert math.verify(pair, f'{left}{low}, {high}{right}')
  assert not math.verify(pair, f'{low}{high}')
  assert not math.verify(pair, f'\\{{{low},{high}\\}}')
  for other in {'()', '[]', '(]', '[)'} - {brackets}:
    assert not math.verify(pair, f'{other[0]}{low},{high}{other[1]}')


@FEW
@given(INTEGERS, st.integers(2, 9), st.integers(1, 99))
def test_the_problem_is_not_an_answer(root, slope, shift):
  problem = f'{slope}x+{shift}={slope * root + shift}'
  assert math.verify(f'x={root}', str(root))
  for gold in (f'x={root}', str(root)):
    assert not math.verify(problem, gold)
  assert math.verify(f'{slope * root + shift}={shift}+{slope}x', problem)
  for relation in ('<', '\\ge'):
    problem = problem.replace('=', relation)
    assert not math.verify(problem, f'x {relation} {root}')


@FEW
@given(INTEGERS, INTEGERS, st.sampled_from(['()', '[]', '(]', '[)']))
def test_brackets_of_intervals_count(low, high, brackets):
  if low >= high:
    return
  interval = f'{brackets[0]}{low}, {high}{brackets[1]}'
  relation = '<=' if brackets[0] == '[' else '<'
  other = '\\le' if brackets[1] == ']' else '<'
  assert math.verify(f'{low} {relation} x {other} {high}', interval)
  for wrong in {'()', '[]', '(]', '[)'} - {brackets}:
    assert not math.verify(f'{wrong[0]}{low}, {high}{wrong[1]}', interval)


@pytest.mark.parametrize('salt', [1, 2])
def test_points_of_different_names_differ(salt):
  domain = exact.Modular(nodes.Budget(), salt)
  names = [chr(97 + i) + s for i in range(26) for s in ('', '_1', "'")]
  assert len({domain.random(name) for name in names}) == len(names)
