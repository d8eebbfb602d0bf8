"""Scores of two texts equal slow definitions, and are bounded for long
texts.
"""

import collections
import random
import re
import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import LCSseq

from jaxrl_reason.verifiers import fields, text

FEW = settings(max_examples=200, deadline=None, derandomize=True)
REWARDS = [text.exact, text.normalized, text.token_f1, text.rouge_l, text.edit]
SHORT = st.text(alphabet='ab \u00e9的', max_size=12)


def score(reward, completion, answer, **knobs):
  return reward(completion, {'answer': answer}, **knobs).score


def slow_lcs(a, b):
  table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
  for i, x in enumerate(a):
    for j, y in enumerate(b):
      above = max(table[i][j + 1], table[i + 1][j])
      table[i + 1][j + 1] = table[i][j] + 1 if x == y else above
  return table[-1][-1]


def slow_distance(a, b):
  row = list(range(len(b) + 1))
  for i, x in enumerate(a, 1):
    before, row[0] = row[0], i
    for j, y in enumerate(b, 1):
      before, row[j] = (
        row[j],
        min(row[j] + 1, row[j - 1] + 1, before + (x != y)),
      )
  return row[-1]


def slow_rouge_l(a, b):
  """Computes `_score_lcs` of rouge-score 0.1.2 without stemming."""
  x, y = (re.findall('[a-z0-9]+', s.lower()) for s in (a, b))
  if not x or not y:
    return float(a.strip() == b.strip())
  length = slow_lcs(x, y)
  p, r = length / len(x), length / len(y)
  return 2 * p * r / (p + r) if length else 0.0


def squad_f1(a, b):
  """Computes `f1_score` of SQuAD's evaluate-v1.1.py."""

  def words(s):
    s = ''.join(c for c in s.lower() if c not in string.punctuation)
    return re.sub(r'\b(a|an|the)\b', ' ', s).split()

  x, y = words(a), words(b)
  same = sum((collections.Counter(x) & collections.Counter(y)).values())
  if not same:
    return float(a.strip() == b.strip())
  p, r = same / len(x), same / len(y)
  return 2 * p * r / (p + r)


TEXTS = st.text(alphabet='ab the19._-,$% ', min_size=1, max_size=20)


@FEW
@given(TEXTS, TEXTS)
def test_words_are_those_of_the_published_scripts(a, b):
  if a.strip() and b.strip():
    assert text.lcs_f(a.strip(), b.strip()) == pytest.approx(slow_rouge_l(a, b))
    assert text.f1(a.strip(), b.strip()) == pytest.approx(squad_f1(a, b))


@pytest.mark.parametrize('reward', [text.token_f1, text.rouge_l])
@given(st.integers(0, 3000), st.integers(0, 3000), st.sampled_from('ab'))
@FEW
def test_numbers_are_words(reward, n, m, unit):
  assert (score(reward, f'{n}', f'{m}') == 1.0) == (n == m)
  in_year = score(reward, f'{unit}b in {n}', f'{unit}b in {m}')
  assert in_year == pytest.approx(1.0 if n == m else 2 / 3)
  assert score(reward, f'x{n}', f'x{m}') == float(n == m)


@FEW
@given(SHORT, SHORT)
def test_the_quadratic_programs_are_right(a, b):
  assert LCSseq.similarity(a, b) == slow_lcs(a, b)
  assert text.distance(a, b) == slow_distance(a, b)


def test_the_quadratic_programs_are_right_on_longer_texts():
  generator = random.Random(0)
  for n in (63, 64, 65, 200):
    a, b = (''.join(generator.choices('abcd', k=n)) for _ in range(2))
    assert LCSseq.similarity(a, b) == slow_lcs(a, b)
    assert text.distance(a, b[: n - 7]) == slow_distance(a, b[: n - 7])


@pytest.mark.parametrize('reward', REWARDS)
@given(st.text(max_size=40))
@FEW
def test_a_text_equals_itself(reward, string):
  assert score(reward, string, string) == 1.0
  assert score(reward, f' {string}\n', string) == 1.0


@pytest.mark.parametrize('reward', REWARDS)
@given(st.text(max_size=30), st.text(max_size=30))
@FEW
def test_scores_are_symmetric_shares(reward, a, b):
  value = score(reward, a, b, part='all')
  assert 0.0 <= value <= 1.0
  if a.strip() and b.strip():
    assert value == pytest.approx(score(reward, b, a, part='all'))


@FEW
@given(st.text(max_size=60))
def test_normalizing_is_idempotent(string):
  once = text.normalize(string)
  assert text.normalize(once) == once


@pytest.mark.parametrize(
  ('a', 'b'),
  [
    ('The  Eiffel Tower!', 'eiffel tower'),
    ('a man, an apple', 'man apple'),
    ('U.S.A.', 'usa'),
    ('caf\u00e9', 'cafe\u0301'),
    ('“quoted” — text', 'quoted text'),
  ],
)
def test_normalized(a, b):
  assert score(text.normalized, a, b) == 1.0
  assert score(text.exact, a, b) == 0.0


@pytest.mark.parametrize(
  ('reward', 'completion', 'answer', 'value'),
  [
    (text.exact, 'Paris', 'paris', 0),
    (text.normalized, 'Paris', 'London', 0),
    (text.normalized, 'thea', 'a', 0),
    (text.normalized, '<', '>', 0),
    (text.normalized, ' < ', '<', 1),
    (text.token_f1, 'the red car', 'a red bus', 0.5),
    (text.token_f1, 'red red car', 'red bus', 2 / 5),
    (text.token_f1, 'of course it is Paris', 'Paris', 1 / 3),
    (text.token_f1, 'the', 'a', 0),
    (text.token_f1, '東京都', '東京', 0.8),
    (text.rouge_l, 'police killed the gunman', 'police kill the gunman', 0.75),
    (text.rouge_l, 'the gunman kill police', 'police kill the gunman', 0.5),
    (text.edit, 'kitten', 'sitting', 1 - 3 / 7),
    (text.edit, 'abc', 'xyz', 0),
  ],
)
def test_values_by_hand(reward, completion, answer, value):
  assert score(reward, completion, answer) == pytest.approx(value)


@pytest.mark.parametrize('reward', REWARDS)
def test_the_best_of_several_answers(reward):
  assert score(reward, 'Rome', ['Paris', 'Rome']) == 1.0
  assert score(reward, 'xyz', ['Paris', 'Rome']) == 0.0


@pytest.mark.parametrize('reward', REWARDS)
def test_parts_of_a_completion(reward):
  assert score(reward, '<think>Rome?</think> Paris', 'Paris') == 1.0
  tagged = '<think>no</think> So: <answer>Paris</answer> Good.'
  assert score(reward, tagged, 'Paris') == 1.0
  assert score(reward, tagged, 'Paris', part='response') < 1.0
  for nothing in ('', '<think>Paris', '<answer> </answer>'):
    verdict = reward(nothing, {'answer': 'Paris'})
    assert (verdict.score, verdict.status) == (0.0, 'no_answer')
  with pytest.raises(ValueError, match='half'):
    score(reward, 'Paris', 'Paris', part='half')


@pytest.mark.parametrize('example', [{}, {'answer': []}, {'answer': [5]}])
def test_an_invalid_example_is_an_error(example):
  with pytest.raises(fields.FieldError, match="'answer'"):
    text.exact('x', example)


def test_fields_may_be_in_meta():
  assert text.exact('x', {'meta': {'answer': 'x'}}).score == 1.0
  assert text.exact('x', {'answer': 'x', 'meta': {'answer': 'y'}}).score == 1.0


@pytest.mark.parametrize('reward', REWARDS)
def test_a_hundred_thousand_characters(reward):
  generator = random.Random(0)
  a, b = (''.join(generator.choices('abcde ', k=100_000)) for _ in range(2))
  start = time.process_time()
  low = score(reward, a, b)
  same = score(reward, a + 'x', a + 'y')
  assert time.process_time() - start < 5.0
  assert 0.0 <= low < 0.9
  if reward in (text.edit, text.token_f1):
    assert same > 0.99  # the common beginning is not cut
  assert score(reward, a, a) == 1.0


def test_long_differences_have_a_lower_bound_of_similarity():
  n = text.MAX_CHARS
  assert text.edit_similarity('a' * 2 * n, 'b' * 2 * n) == 0.0
  assert text.edit_similarity('xab' * n, 'yba' * n) <= 2 / 3
  # Never more than the truth: here one insertion at the front.
  assert text.distance('ab' * n, 'b' + 'ab' * n) == 1
