"""Runs whose rows depend on other rows, or on a second model or data: eight
devices compute what one does, and a resumed run is the uninterrupted one.
"""

import json
import shutil

import numpy as np
import pytest
from test_preference_runs import pairs, preferring
from test_recipe_features import recipe
from test_resume import content
from test_supervised_runs import weighted
from test_teacher_runs import taught
from test_turn_runs import WARM
from test_turn_runs import recipe as calling

from jaxrl_reason import trees
from jaxrl_reason.run import train

__all__ = ['pairs']
pytestmark = pytest.mark.one_device

COMPARED = (
  'train/loss',
  'train/grad_norm',
  'train/reward_mean',
  'train/preference_margin',
  'train/demos/found',
  'train/probe/loss',
  'train/teacher_kl',
)
PROMPT = {
  'rl.teacher.prompt_len': 24,
  'rl.teacher.prompt': '{solution} {answer}={prompt}',
}


def preferred_by(loss):
  """Returns a maker of a stage of preferences with this loss."""

  def make(folder, pairs):
    own = {'preference.loss': loss, 'preference.beta': 0.5}
    return preferring(pairs, **own, **{'preference.steps': 4})

  make.__name__ = loss
  return make


def rewarded(folder, pairs):
  """Rewards by probability, by group, at random and by hidden states, a
  verifier behind a stated confidence, and tokens weighted by a probe.
  """
  own = {'rl.probe.rate': 2.0, 'rl.probe.token_weight': 0.5}
  own |= {'rl.samples': 4, 'rl.steps': 4, 'rl.optimizer.lr': 1e-2}
  c = recipe(**own)
  c.rl.rewards = dict(
    most=dict(reward='majority'),
    coin=dict(reward='random', kwargs=dict(p=0.5)),
    far=dict(reward='novelty_volume', weight=0.3),
    sure=dict(reward='brier'),
    certain=dict(reward='self_certainty', weight=0.3),
    even=dict(reward='neg_entropy', weight=0.3),
    wrong=dict(reward='wrong_label'),
    form=dict(reward='format'),
  )
  return c


def chained(folder, pairs):
  """Problems that are composed of two problems."""
  rows = [
    {'question': f'Take {i} bags of 7.', 'answer': f'{7 * i}'}
    for i in range(40)
  ]
  path = folder / 'rows.jsonl'
  path.write_text(''.join(json.dumps(x) + '\n' for x in rows))
  c = recipe(**{'rl.path': 'host', 'rl.steps': 4, 'rl.workers': 1})
  c.data.update(name='files', dir=str(path), tokenizer='byte', chain=2)
  c.data.prompt_len, c.data.knobs, c.data.harder = 256, {}, {}
  c.data.files.heldout = 0.3
  c.rl.rewards = dict(coin=dict(reward='random', kwargs=dict(p=0.5)))
  return c


def rewarded_and_distilled(folder, pairs):
  return taught('reference', **PROMPT, **{'rl.algorithm': 'kdrl'})


def self_distilled(folder, pairs):
  own = {'rl.algorithm': 'sdpo', 'rl.logprob_chunk': 3}
  return taught('reference', **PROMPT, **own)


def with_solutions(folder, pairs):
  own = {'rl.algorithm': 'rl_plus', 'rl.demos': 1, 'rl.steps': 4}
  return recipe(**own, **{'rl.optimizer.lr': 1e-2})


def with_explanations(folder, pairs):
  """Samples explanations, of which some are correct after the sft stage."""
  own = {'rl.algorithm': 'luffy', 'rl.demos': 1, 'rl.demos_when': 'failed'}
  own |= {'rl.demos_prompt': '{answer}{prompt}', 'rl.steps': 4}
  return recipe(**own, **{'stages': ('sft', 'rl'), 'sft.steps': 40})


def told_observations(folder, pairs):
  """Only observations make the teacher's prompt differ from the policy's. After
  a supervised stage some turns have one.
  """
  own = {'path': 'fused', 'steps_per_dispatch': 1, 'logprob_chunk': 6}
  c = calling(**own, algorithm='gkd')
  c.rl.teacher.update(weights='policy', prompt_len=30)
  c.rl.teacher.prompt = '{prompt}{observations}'
  c.stages, c.sft.rows, c.sft.steps = ('sft',), 64, WARM
  c.log_every, c.eval.every, c.checkpoint.every = WARM, WARM, WARM
  train.run(c, folder / 'warm')
  c.stages, c.init_from, c.log_every = ('rl',), str(folder / 'warm'), 1
  return c


def by_weights(folder, pairs):
  return weighted(folder, lambda text: [0.0] * (len(text) - 1) + [0.5])


def by_behaviour(folder, pairs):
  own = {'sft.weights': '', 'sft.loss': 'pear', 'sft.behaviour': 'weights'}
  return weighted(
    folder, lambda s: [-0.5 * i for i in range(len(s) + 1)], **own
  )


# Metrics that show that the tested part has done something.
ACTIVE = {
  with_explanations: 'train/demos/found',
  rewarded: 'train/probe/loss',
  told_observations: 'train/teacher_kl',
}


@pytest.mark.parametrize(
  'make',
  [
    preferred_by('kto'),
    *(
      pytest.param(preferred_by(loss), marks=pytest.mark.slow)
      for loss in ('dpo', 'ipo', 'orpo', 'simpo')
    ),
    rewarded,
    chained,
    rewarded_and_distilled,
    self_distilled,
    with_solutions,
    with_explanations,
    told_observations,
    by_weights,
    by_behaviour,
  ],
)
def test_eight_devices_and_a_resumed_run_are_alike(make, pairs, tmp_path):
  c = make(tmp_path, pairs)
  c.checkpoint.update(every=2, keep=9)
  one, cut, eight = (tmp_path / name for name in ('one', 'cut', 'eight'))
  want = trees.flatten(train.run(c, one).params)
  shutil.copytree(one, cut)
  last = max((cut / 'checkpoints').glob('[0-9]*'), key=lambda p: int(p.name))
  shutil.rmtree(last)
  got = trees.flatten(train.run(c, cut).params)
  for path, x in want.items():
    np.testing.assert_array_equal(got[path], x)
  assert content(cut) == content(one)
  c.mesh = (2, 2, 2)
  train.run(c, eight)
  both = [
    [x for x in content(where) if 'train/grad_norm' in x]
    for where in (one, eight)
  ]
  assert len(both[0]) >= 3 and both[0][0]['train/grad_norm'] > 0
  key = ACTIVE.get(make, 'train/grad_norm')
  assert any(x.get(key, 0) > 1e-6 for x in both[0])
  for a, b in zip(*both, strict=True):
    for key in {*COMPARED} & a.keys():
      np.testing.assert_allclose(b[key], a[key], rtol=2e-3, atol=1e-5)
