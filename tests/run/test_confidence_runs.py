"""Runs that reward the confidence that completions state."""

import json

import pytest
from test_recipe_features import recipe, rows

from jaxrl_reason.run import train

pytestmark = pytest.mark.one_device


def confident(path, **flat):
  """Every second sample is a solution that states a confidence of 0.8."""
  lines = [
    {
      'question': f'{i}+1=',
      'answer': f'{i + 1}',
      'solution': f'Confidence: 0.8 \\boxed{{{i + 1}}}',
    }
    for i in range(40)
  ]
  path.write_text(''.join(json.dumps(x) + '\n' for x in lines))
  c = recipe(**{'rl.path': 'host', 'rl.demos': 1, 'rl.workers': 1})
  c.data.update(name='files', dir=str(path), tokenizer='byte')
  c.data.update(completion_len=32)
  c.data.knobs, c.data.harder = {}, {}
  c.data.files.update(heldout=0.3, solution='solution')
  c.rl.steps, c.rl.loss.offpolicy = 2, 'sft'
  c.rl.rewards.brier = dict(reward='brier', weight=1.0)
  c.rl.rewards.calibrated = dict(reward='calibrated', weight=1.0)
  c.update_from_flattened_dict(flat)
  return c


def test_brier_and_the_answer_are_calibrated(tmp_path):
  c = confident(tmp_path / 'a.jsonl')
  train.run(c, tmp_path / 'run')
  found = rows(tmp_path / 'run')
  assert len(found) == 2
  for row in found:
    # Half of the completions are right with 0.8, the others state nothing.
    brier = -(0.2**2 + 1) / 2
    assert row['train/reward/answer'] == 0.5
    assert row['train/reward/brier'] == pytest.approx(brier)
    assert row['train/reward/calibrated'] == pytest.approx(0.5 + brier)


@pytest.mark.parametrize(
  'path, verifier, message',
  [
    ('fused', 'math', "no device kernel for 'brier'"),
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
