"""Rubrics inside the compiled step are those of the host."""

import types

import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_reason import trees
from jaxrl_reason.rewards.kernels import asked, criteria
from jaxrl_reason.rollouts import judging
from jaxrl_reason.verifiers.judges import rubric
from jaxrl_reason.verifiers.verdict import Verdict

NAMES = 'abc'
MOST = 4
number = st.floats(-2, 2, width=16)
mark = st.floats(0, 1, width=16)


@st.composite
def rubrics(draw):
  """Draws an item list with a weight above 0, and its marks."""
  n = draw(st.integers(1, len(NAMES)))
  items = [
    {
      'name': name,
      'criterion': name,
      'weight': draw(number),
      'threshold': draw(mark),
      'required': draw(st.booleans()),
      'needs': draw(st.lists(st.sampled_from(NAMES[:n]).filter(name.__ne__)))
      if n > 1
      else [],
    }
    for name in NAMES[:n]
  ]
  items[0]['weight'] = 1.0
  return items, draw(st.lists(mark, min_size=n, max_size=n))


@settings(max_examples=100, deadline=None)
@given(rubrics(), mark)
def test_the_score_is_that_of_the_host(drawn, beyond):
  """Marks of further items have no effect."""
  items, marks = rubric.make(drawn[0]), drawn[1]
  want = rubric.aggregate(items, dict(zip(NAMES, marks)))
  encoded = criteria.encode(items, MOST)
  row = jnp.array([marks + [beyond] * (MOST - len(marks))])
  one = {k: jnp.asarray(x)[None] for k, x in encoded.items()}
  np.testing.assert_allclose(criteria.aggregate(row, one), want, atol=1e-5)


RUBRICS = (
  [{'criterion': '1+', 'weight': 2}, {'criterion': '7', 'weight': -0.5}],
  [
    {'criterion': '2', 'required': True},
    {'criterion': '3', 'needs': 'item0'},
    {'criterion': '11'},
  ],
)


def test_a_judge_marks_every_item_of_the_rubric_of_a_problem():
  """The mark is a number of the text with the item and of the completion."""
  ask = asked.Question('={criterion}=', criteria=3, criterion_len=2)
  encode = asked.encoder(ask, L.TOKENIZER, 4)
  encoded = trees.stacked(
    [encode({'rubric': x}) for x in RUBRICS for _ in '12']
  )
  lengths = jnp.array([1, 4, 2, 3])

  def probability(params, rows, question):
    place = jnp.arange(1, 5)
    there = jnp.arange(4) < question['n_tokens'][:, None]
    total = jnp.where(there, question['tokens'] * place, 0).sum(axis=1)
    return jnp.sin(total * rows) ** 2

  fake = types.SimpleNamespace(probability=probability)
  judge = judging.Judge(ask, 'r', fake, ())
  got = judge(None, None, encoded, 2, lambda f, *rest: f(lengths, *rest))

  def here(cases):
    out = []
    for length, example in cases:
      ids = L.TOKENIZER.encode(f'={example["criterion"]}=')
      total = sum(i * x for i, x in enumerate(ids, 1))
      out.append(Verdict(float(np.sin(total * length) ** 2)))
    return out

  cases = [(int(n), {'rubric': RUBRICS[i // 2]}) for i, n in enumerate(lengths)]
  want = [verdict.score for verdict in rubric.Rubric(here)(cases)]
  np.testing.assert_allclose(got, want, rtol=1e-3)
  assert judge.passes(2) == 3 and min(want) < max(want)


@pytest.mark.parametrize(
  'row, words',
  [
    ({}, "no 'rubric'"),
    (
      {'rubric': [{'criterion': '1'}] * 4},
      'two items have one name|has 4 items',
    ),
    ({'rubric': [{'criterion': 5}]}, 'criterion 0 is not a text'),
    (
      {'rubric': [{'criterion': '123'}]},
      "5 tokens with the criterion '123', and",
    ),
    ({'rubric': [{'criterion': '1', 'weight': -1}]}, 'no item .* above 0'),
  ],
)
def test_problems_without_a_rubric_that_fits_are_refused(row, words):
  ask = asked.Question('={criterion}=', criteria=3, criterion_len=2)
  with pytest.raises(ValueError, match=words):
    asked.encoder(ask, L.TOKENIZER, 4)(row)
