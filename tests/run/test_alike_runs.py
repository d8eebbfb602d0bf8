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

from jaxrl_reason import trees
from jaxrl_reason.run import train

__all__ = ['pairs']
pytestmark = pytest.mark.one_device

COMPARED = 'train/loss', 'train/grad_norm', 'train/reward_mean'
PROMPT = {
  'rl.teacher.prompt_len': 24,
  'rl.teacher.prompt': '{solution} {answer}={prompt}',
}


def kto(folder, pairs):
  own = {'preference.loss': 'kto', 'preference.beta': 0.5}
  return preferring(pairs, **own, **{'preference.steps': 4})


def rewarded(folder, pairs):
  """A majority of a group, noise by row, hidden states of a group, and a
  verifier behind a stated confidence, in one reward.
  """
  c = recipe(**{'rl.samples': 4, 'rl.steps': 4, 'rl.optimizer.lr': 1e-2})
  c.rl.rewards = dict(
    most=dict(reward='majority'),
    coin=dict(reward='random', kwargs=dict(p=0.5)),
    far=dict(reward='novelty_volume', weight=0.3),
    sure=dict(reward='brier'),
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


def distilled(folder, pairs):
  return taught('policy', **PROMPT, **{'rl.algorithm': 'gkd'})


def rewarded_and_distilled(folder, pairs):
  return taught('reference', **PROMPT, **{'rl.algorithm': 'kdrl'})


def self_distilled(folder, pairs):
  own = {'rl.algorithm': 'sdpo', 'rl.logprob_chunk': 3}
  return taught('reference', **PROMPT, **own)


def with_solutions(folder, pairs):
  own = {'rl.algorithm': 'rl_plus', 'rl.demos': 1, 'rl.steps': 4}
  return recipe(**own, **{'rl.optimizer.lr': 1e-2})


def by_weights(folder, pairs):
  return weighted(folder, lambda text: [0.0] * (len(text) - 1) + [0.5])


def by_behaviour(folder, pairs):
  own = {'sft.weights': '', 'sft.loss': 'pear', 'sft.behaviour': 'weights'}
  return weighted(
    folder, lambda s: [-0.5 * i for i in range(len(s) + 1)], **own
  )


@pytest.mark.parametrize(
  'make',
  [
    kto,
    rewarded,
    chained,
    distilled,
    rewarded_and_distilled,
    self_distilled,
    with_solutions,
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
  for a, b in zip(*both, strict=True):
    for key in {*COMPARED} & a.keys():
      np.testing.assert_allclose(b[key], a[key], rtol=2e-3, atol=1e-5)
