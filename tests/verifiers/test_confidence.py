"""Stated confidences and their rewards."""

import numpy as np
import pytest

from jaxrl_reason.verifiers import compose, confidence
from jaxrl_reason.verifiers.verdict import judge

EXAMPLE = {'answer': '42', 'task': 'arithmetic'}


@pytest.mark.parametrize(
  'text, want',
  [
    ('<confidence>0.8</confidence>', 0.8),
    ('<confidence>75%</confidence>', 0.75),
    ('Confidence: 80%.', 0.8),
    ('confidence = 0.3. Then <confidence> 1 </confidence>', 1.0),
    ('Confidence: 90', 0.9),
    ('Confidence: 0.9.', 0.9),
    ('I am confident.', None),
    ('Confidence: 1.2.3', None),
    ('Confidence: 700', None),
    ('**Confidence:** 80%', 0.8),
    ('**Confidence**: **0.8**', 0.8),
    ('Confidence: 87.5%', 0.875),
    ('Confidence: 87.5', 0.875),
    ('<confidence>87.5</confidence>', 0.875),
    ('Confidence: 10.5.', 0.105),
    ('Confidence: 9.5', None),
    ('Confidence: 100.5', None),
    ('Confidence: 0.8, 5 of them', 0.8),
    ('Confidence: 0.8 / Answer: 5', 0.8),
    ('Confidence: 8/10', None),
    ('Confidence: 8 / 10', None),
    ('Confidence: 1e-1', None),
    ('Confidence: 0,8', None),
    ('Confidence: 1.2', None),
    ('<confidence>1.2</confidence>', None),
    ('Confidence: 0.4 Confidence: 8/10', None),
  ],
)
def test_stated_confidence(text, want):
  assert confidence.stated(text) == want


def of(name, text, **kwargs):
  spec = {'part': {'reward': name, 'kwargs': kwargs}}
  return judge(compose.compose(spec), text, EXAMPLE)


@pytest.mark.parametrize(
  'text, right, q',
  [
    ('Confidence: 0.9 #42', 1, 0.9),
    ('Confidence: 0.9 #41', 0, 0.9),
    ('<confidence>20%</confidence>#42', 1, 0.2),
    ('#42', 1, None),
    ('#41', 0, None),
    ('Confidence: 700 #42', 1, None),
  ],
)
def test_scores_are_those_of_rlcr(text, right, q):
  loss = 1 if q is None else (q - right) ** 2
  for name, want in (('brier', -loss), ('calibrated', right - loss)):
    got = of(name, text)
    assert got.score == pytest.approx(want)
    assert got.status == 'parsed' and got.extracted == text.partition('#')[2]


def test_an_honest_confidence_is_best():
  levels = np.round(np.linspace(0, 1, 21), 2)
  for p in (0.0, 0.3, 0.85):
    expected = [
      p * of('calibrated', f'Confidence: {q} #42').score
      + (1 - p) * of('calibrated', f'Confidence: {q} #41').score
      for q in levels
    ]
    assert levels[int(np.argmax(expected))] == pytest.approx(p)


def test_the_verifier_of_the_answer_has_a_name():
  text = 'Confidence: 0.75. So \\boxed{42}'
  assert of('brier', text).score == -(0.75**2)  # no marker: wrong
  assert of('brier', text, correct='math').score == -(0.25**2)
  spec = {'answer': 'math', 'form': {'reward': 'tags', 'weight': 0.1}}
  assert of('brier', text, correct=spec).score == -(0.25**2)


def test_a_failed_verifier_is_not_an_incorrect_answer():
  found = of('brier', 'Confidence: 0.5', correct='mathh')
  assert not found.valid and "reward 'mathh'" in found.detail
