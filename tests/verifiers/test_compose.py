"""Weights, gates, routing, schedules, and the columns for the trainer."""

import os

import pytest

from jaxrl_reason.verifiers import compose, pool, resolve
from jaxrl_reason.verifiers.verdict import Verdict, as_verdict

FILE = os.path.join(
  os.path.dirname(os.path.abspath(__file__)), 'reward_functions.py'
)


def right(completion, example):
  return Verdict(float(completion == example['answer']), extracted=completion)


def one(completion, example):
  return 1.0


def explode(completion, example):
  raise ValueError('boom')


def test_weights_are_summed_and_parts_are_kept():
  reward = compose.compose(
    {
      'answer': right,
      'bonus': {'reward': one, 'weight': 0.25},
    }
  )
  verdict = reward('x', {'answer': 'x'})
  assert verdict.score == 1.25 and verdict.extracted == 'x'
  assert verdict.parts == {'answer': 1.0, 'bonus': 1.0}
  assert reward('y', {'answer': 'x'}).score == 0.25


@pytest.mark.parametrize('order', [0, 1])
def test_a_gated_part_counts_only_if_its_gate_is_met(order):
  rows = [
    ('bonus', {'reward': one, 'weight': 0.5, 'needs': 'answer'}),
    ('answer', right),
  ]
  reward = compose.compose(dict(rows[::-1] if order else rows))
  assert reward('x', {'answer': 'x'}).score == 1.5
  closed = reward('y', {'answer': 'x'})
  assert closed.score == 0.0
  assert closed.parts == {'bonus': 0.0, 'answer': 0.0}


def test_a_part_with_an_unmet_gate_does_not_run():
  reward = compose.compose(
    {
      'answer': right,
      'slow': {'reward': explode, 'needs': ['answer']},
    }
  )
  assert reward('y', {'answer': 'x'}).valid
  assert not reward('x', {'answer': 'x'}).valid


def test_the_threshold_of_a_gate():
  spec = {
    'length': f'{FILE}:length',
    'bonus': {'reward': one, 'needs': 'length', 'threshold': 3},
  }
  reward = compose.compose(spec)
  assert reward('ab', {}).score == 2.0 and reward('abc', {}).score == 4.0


def test_routing_by_task_and_domain():
  reward = compose.compose(
    {
      'math': {'reward': right, 'domain': 'math'},
      'letters': {'reward': f'{FILE}:has_letter_a', 'task': ['t1', 't2']},
    }
  )
  assert reward('x', {'answer': 'x', 'domain': 'math'}).parts == {'math': 1.0}
  assert reward('a', {'task': 't2'}).parts == {'letters': 1.0}
  with pytest.raises(ValueError, match="task 'other'"):
    reward('a', {'task': 'other'})


def test_a_weight_that_follows_the_step():
  weight = {'by': 'step', 'at': [10, 20, 40], 'values': [0.0, 1.0, 0.5]}
  reward = compose.compose({'bonus': {'reward': one, 'weight': weight}})
  scores = [
    reward('', {'state': {'step': step}}).score
    for step in (0, 10, 15, 20, 30, 40, 100)
  ]
  assert scores == [0.0, 0.0, 0.5, 1.0, 0.75, 0.5, 0.5]
  with pytest.raises(ValueError, match="'step'"):
    reward('', {})


def test_a_part_that_fails_invalidates_the_whole():
  verdict = compose.compose({'answer': right, 'x': explode})(
    'x', {'answer': 'x'}
  )
  assert verdict.status == 'error' and 'boom' in verdict.detail
  assert verdict.parts == {'answer': 1.0}


def test_kwargs_reach_the_function():
  spec = {'scaled': {'reward': f'{FILE}:scaled', 'kwargs': {'by': 3.0}}}
  assert compose.compose(spec)('2', {}).score == 6.0


@pytest.mark.parametrize(
  ('spec', 'says'),
  [
    ({}, 'at least one'),
    ({'a': {'weight': 1}}, "'reward' is missing"),
    ({'a': {'reward': one, 'wieght': 1}}, 'wieght'),
    ({'a': {'reward': one, 'needs': 'b'}}, "needs 'b'"),
    ({'a': {'reward': one, 'needs': 'a'}}, 'ring'),
    ({'a': {'reward': one, 'weight': {'by': 'step'}}}, "'at'"),
    ({'a': {'reward': one, 'weight': None}}, 'weight=None: must be a number'),
    (
      {'a': {'reward': one, 'weight': {'by': 's', 'at': 5, 'values': [0]}}},
      "'at'",
    ),
    (
      {'a': {'reward': one, 'weight': {'by': 's', 'at': ['x'], 'values': [0]}}},
      "weight.at='x': must be a number",
    ),
    ({'a': {'reward': one, 'needs': 5}}, 'needs=5: must be a name, or a list'),
    ({'a': {'reward': one, 'task': {'b': 1}}}, "task={'b': 1}: must be a name"),
    ({'a': {'reward': one, 'threshold': 'x'}}, "threshold='x': must be a num"),
    (
      {
        'a': {
          'reward': one,
          'weight': {'by': 's', 'at': [2, 1], 'values': [0, 1]},
        }
      },
      'increase',
    ),
    ({'a': 'nonsense'}, 'nonsense'),
  ],
)
def test_a_wrong_spec_is_refused_by_name(spec, says):
  with pytest.raises(resolve.RewardError, match=says):
    compose.compose(spec)


def test_a_spec_runs_in_the_pool_and_gives_columns():
  spec = {
    'letters': f'{FILE}:has_letter_a',
    'short': {'reward': f'{FILE}:length', 'weight': 0.1, 'task': 't'},
  }
  with pool.VerifierPool(spec, workers=1) as verifiers:
    verdicts = verifiers.map([('abc', {'task': 't'}), ('xyz', {'task': 'u'})])
  names = compose.part_names(spec)
  reward, parts, valid = compose.columns(verdicts, names)
  assert names == ('letters', 'short')
  assert reward == pytest.approx([1.3, 0.0]) and valid == [True, True]
  assert parts == [[1.0, 3.0], [0.0, 0.0]]


def test_columns_of_a_plain_reward_and_of_a_failure():
  verdicts = [as_verdict(0.5), Verdict(0.0, 'timeout', detail='over 1 s')]
  names = compose.part_names('numbers')
  assert compose.columns(verdicts, names) == (
    [0.5, 0.0],
    [[0.5], [0.0]],
    [True, False],
  )


def test_an_unknown_status_is_refused():
  with pytest.raises(ValueError, match='fine'):
    Verdict(1.0, 'fine')
