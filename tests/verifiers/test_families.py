"""Each task equals an independent solution of its problems."""

import re

import pytest

from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.math import numbers
from jaxrl_reason.verifiers.tasks import countdown
from jaxrl_reason.verifiers.tasks.problem import canonical_integer, final_answer


def examples(task, split='train', n=80, **knobs):
  return [tasks.example(task, 1, i, split=split, knobs=knobs) for i in range(n)]


# --- final answers ------------------------------------------------------------


@pytest.mark.parametrize(
  ('text', 'integer'),
  [
    ('26', '26'), (' 26', '26'), ('+26', '26'), ('0026', '26'), ('-7', '-7'),
    ('-0', '0'), ('+000', '0'), ('-007', '-7'), ('26 ', None), ('2 6', None),
    ('', None), ('-', None), ('--1', None), ('1.0', None), ('1,000', None),
    ('\t1', None), ('1\n', None), ('\u0661', None), ('9' * 9999, '9' * 9999),
  ],
)  # fmt: skip
def test_canonical_integer(text, integer):
  assert canonical_integer(text) == integer


def test_final_answer():
  assert final_answer('12 9#26') == '26'
  assert final_answer('#') == ''
  for text in ('', '26', '#26#', '##26', '#2#26'):
    assert final_answer(text) is None


# --- arithmetic ---------------------------------------------------------------


@pytest.mark.parametrize('modulus', [0, 10])
def test_arithmetic_totals_from_left_to_right(modulus):
  knobs = dict(ops='+-*', modulus=modulus, min_total=-50)
  for ex in examples('arithmetic', **knobs):
    problem = ex['prompt'].rstrip('=').split('%')[0]
    total, *parts = re.findall(r'[-+*]?\d+', problem)
    total, totals = int(total), []
    for part in parts:
      op, operand = part[0], int(part[1:])
      total = {'+': total + operand, '-': total - operand,
               '*': total * operand}[op]  # fmt: skip
      total = total % modulus if modulus else total
      totals.append(total)
    assert [int(x) for x in re.split('[ #]', ex['solution'])] == totals
    assert all(-50 <= x <= 99 for x in totals)


def test_arithmetic_can_draw_negative_answers():
  found = examples('arithmetic', min_total=-99)
  assert any(ex['answer'].startswith('-') for ex in found)


# --- countdown ----------------------------------------------------------------


def problem(numbers, target, use='all'):
  return {'meta': {'numbers': numbers, 'target': target, 'use': use}}


@pytest.mark.parametrize(
  ('numbers', 'target', 'answer', 'score'),
  [
    ([3, 7, 2, 5], 24, '3*7+5-2', 1),
    ([3, 7, 2, 5], 24, ' ( 3 * 7 ) + 5-2 ', 1),
    ([3, 7, 2, 5], 24, '03*0007+5-2', 1),
    ([3, 7, 2, 5], 24, '00003*7+5-2', 0),  # five digits
    ([3, 3, 8, 8], 24, '8/(3-8/3)', 1),  # needs exact fractions
    ([1, 3, 3], 1, '1/3*3', 1),
    ([2, 3, 4], 2, '2-3+3', 0),
    ([8, 4, 2], 1, '8/4/2', 1),  # to the left
    ([8, 4, 2], 6, '8-4+2', 1),
    ([8, 4, 2], 16, '8*4/2', 1),
    ([8, 4, 2], 16, '8*(4/2)', 1),
    ([8, 4, 2], 2, '8-4-2', 1),
    ([1, 2], 3, '1+2+0', 0),
    ([1, 2], 3, '3', 0),
    ([1, 2, 3], 3, '1+2', 0),  # 3 is left over
    ([3, 3, 3], 6, '3+3', 0),
    ([12, 3], 15, '1 2+3', 0),
    ([1, 2], 3, '1+2)', 0),
    ([1, 2], 3, '(1+2', 0),
    ([1, 2], 3, '1++2', 0),
    ([1, 2], 1, '-1+2', 0),  # no unary minus
    ([1, 2], 3, '(1)(+2)', 0),
    ([2, 3], 6, '2(3)', 0),
    ([1, 2], 3, '(((1+2)))', 0),  # more than two pairs
    ([1, 2], 3, '((1+2))', 1),
    ([1, 2], 3, '()1+2', 0),
    ([5, 0], 0, '0/5', 1),
    ([5, 0], 5, '5/0', 0),
    ([1, 2, 2], 1, '1/(2-2)', 0),
    ([1, 2], 3, '\u0661+2', 0),  # an Arabic 1
    ([5], 5, '5', 1),
    ([5], 5, '', 0),
  ],
)
def test_countdown_answers(numbers, target, answer, score):
  assert countdown.check(f'#{answer}', problem(numbers, target)) == score


def test_countdown_subset():
  task = problem([1, 2, 3, 3], 6, use='subset')
  for answer, score in (('3+3', 1), ('1+2+3', 1), ('2+2+2', 0), ('6', 0)):
    assert countdown.check(f'#{answer}', task) == score
  for pairs in range(7):  # at most as many as there are numbers
    answer = '(' * pairs + '3+3' + ')' * pairs
    assert countdown.check(f'#{answer}', task) == (pairs <= 4)


def test_countdown_evaluates_as_python_does():
  for ex in examples('countdown', n=100, max_numbers=5, ops='+-*/'):
    tokens = countdown.tokenize(ex['answer'], 99)
    # A tree walk over what the generator wrote, without the parser under test.
    values = [
      tuple(map(int, re.split(r'[-+*/=]', step.rstrip(','))))
      for step in ex['solution'].split('#')[0].split(' ')
    ]
    assert values[-1][-1] == ex['meta']['target']
    assert countdown.evaluate(tokens) == ex['meta']['target']


def test_countdown_tries_are_wrong_but_the_last():
  found = examples('countdown', n=50, max_tries=3)
  assert sum(',' in ex['solution'] for ex in found) > 20
  for ex in found:
    *tries, last = ex['solution'].split('#')[0].split(', ')
    ends = [int(t.split('=')[-1]) for t in (*tries, last)]
    target = ex['meta']['target']
    assert ends[-1] == target and target not in ends[:-1]


def test_countdown_problems_with_few_solutions():
  """By hand: 1 2 3 > 6 has three orders of the two sums 1+2+3, and three of
  the products 1*2*3.
  """
  assert countdown.solutions([1, 2, 3], 6, '+*', 'all') == 6
  assert countdown.solutions([2, 3], 6, '+-*/', 'all') == 1
  assert countdown.solutions([6, 1], 6, '+-*/', 'subset') == 2  # 6 and 6*1
  assert countdown.solutions([5, 3], 1, '+-*/', 'all') == 0
  knobs = dict(max_number=8, max_target=24, ops='+-*/')
  few = examples('countdown', n=40, **knobs, max_solutions=1)
  some = examples('countdown', n=40, **knobs)

  def count(example):
    numbers, target = (example['meta'][k] for k in ('numbers', 'target'))
    return countdown.solutions(numbers, target, '+-*/', 'all')

  assert {count(example) for example in few} == {1}
  assert max(count(example) for example in some) > 1


# --- the others ---------------------------------------------------------------


@pytest.mark.parametrize(
  ('name', 'before', 'after'),
  [
    ('R', 'abca', 'acba'), ('S', 'abca', 'aabc'), ('L', 'abca', 'bcaa'),
    ('X', 'abcd', 'dbca'), ('I', 'abia', 'bcab'), ('U', 'abca', 'abc'),
    ('T', 'abca', 'bca'), ('D', 'ab', 'abab'), ('X', 'a', 'a'),
  ],
)  # fmt: skip
def test_string_functions(name, before, after):
  from jaxrl_reason.verifiers.tasks import string_functions

  assert string_functions.apply(name, before) == after


def test_string_function_steps_follow_from_one_another():
  from jaxrl_reason.verifiers.tasks import string_functions

  for ex in examples('string_functions'):
    text, names = ex['prompt'].rstrip('=').split('|')
    states = re.split('[ #]', ex['solution'])
    assert len(states) == len(names)
    for name, state in zip(names, states):
      text = string_functions.apply(name, text)
      assert text == state


# --- word problems ------------------------------------------------------------

# Operation of an event -> words that only these events contain.
WORDS = {
  '+': 'gives .* more|buys|finds|put in|adds|added|plus',
  '-': 'gives .* of them|loses|sells|takes out|missing|taken away|minus',
  '*': 'times|multiplied',
}


def read(problem: str) -> int:
  """Solves a word problem from its sentences alone."""
  bare = re.fullmatch(r'What is (\d+) (.*)\?', problem)
  said = [bare[1], *bare[2].split(', ')] if bare else problem.split('. ')[:-1]
  first, *events = said
  total = int(re.search(r'\d+', first)[0])
  for event in events:
    n = int(re.search(r'\d+', event)[0])
    (op,) = [op for op, words in WORDS.items() if re.search(words, event)]
    total = {'+': total + n, '-': total - n, '*': total * n}[op]
  return total


@pytest.mark.parametrize('split', tasks.SPLITS)
@pytest.mark.parametrize('plain', [0.0, 1.0])
def test_word_problems_describe_their_computation(split, plain):
  found = examples('word_problems', split, max_steps=3, plain=plain)
  for ex in found:
    assert read(ex['prompt']) == int(ex['answer'])
    assert 0 <= int(ex['answer']) <= 99
    assert numbers.reward(ex['solution'], ex).score == 1
    assert numbers.reward(f'That is {ex["answer"]} now.', ex).score == 1
    assert numbers.reward('I cannot say.', ex).score == 0


def test_the_harder_word_problems_have_other_words():
  def words(split):
    found = examples('word_problems', split, plain=0.0)
    return set(re.findall(r'[A-Za-z]+', ' '.join(e['prompt'] for e in found)))

  said, other = words('heldout'), words('harder')
  assert not other & {'Mia', 'Tom', 'apples', 'books', 'buys', 'sells'}
  assert {'Priya', 'lemons', 'missing'} <= other - said
