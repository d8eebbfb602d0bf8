"""Runs with rewards for the stated confidence."""

import json

import pytest
from test_recipe_features import recipe, rows

from jaxrl_reason.run import train

pytestmark = pytest.mark.one_device


def confident(path, form='\\boxed{{{}}}', verifier='math', **flat):
  """Makes every second sample a solution that states a confidence of 0.8.

  Args:
    form: of the answer; verifier: its name.
  """
  lines = [
    {
      'question': f'{i}+1=',
      'answer': f'{i + 1}',
      'solution': f'Confidence: 0.8 {form.format(i + 1)}',
    }
    for i in range(40)
  ]
  path.write_text(''.join(json.dumps(x) + '\n' for x in lines))
  c = recipe(**{'rl.demos': 1, 'rl.workers': 1} | flat)
  c.data.update(name='files', dir=str(path), tokenizer='byte')
  c.data.update(completion_len=32)
  c.data.knobs, c.data.harder = {}, {}
  c.data.files.update(heldout=0.3, solution='solution')
  c.rl.steps, c.rl.loss.offpolicy = 2, 'sft'
  correct = dict(correct=verifier)
  c.rl.rewards = dict(
    answer=dict(reward=verifier),
    brier=dict(reward='brier', kwargs=correct),
    calibrated=dict(reward='calibrated', kwargs=correct),
  )
  return c


@pytest.mark.parametrize(
  'path, form, verifier',
  [('host', '\\boxed{{{}}}', 'math'), ('fused', '#{}', 'integer')],
)
def test_brier_and_the_answer_are_calibrated(path, form, verifier, tmp_path):
  file = tmp_path / 'a.jsonl'
  c = confident(file, form, verifier, **{'rl.path': path})
  train.run(c, tmp_path / 'run')
  found = rows(tmp_path / 'run')
  assert len(found) == 2
  for row in found:
    # Half of the completions are correct with a confidence of 0.8. The others
    # state no confidence.
    brier = -(0.2**2 + 1) / 2
    assert row['train/reward/answer'] == 0.5
    assert row['train/reward/brier'] == pytest.approx(brier)
    assert row['train/reward/calibrated'] == pytest.approx(0.5 + brier)


@pytest.mark.parametrize(
  'path, verifier, message',
  [
    ('fused', 'math', "no device kernel for 'math'"),
    ('host', 'mathh', "reward 'mathh': not one of"),
  ],
)
def test_rewards_that_cannot_work_are_refused(
  path, verifier, message, tmp_path
):
  c = confident(tmp_path / 'a.jsonl', **{'rl.path': path})
  part = dict(reward='brier', kwargs=dict(correct=verifier))
  c.rl.rewards = dict(confidence=part)
  with pytest.raises(ValueError, match=message):
    train.run(c, tmp_path / 'run')
