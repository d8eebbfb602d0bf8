"""Runs with the likelihood of the reference answer as reward."""

import shutil

import numpy as np
import pytest
from test_recipe_features import recipe, rows
from test_resume import env, run

from jaxrl_reason import trees
from jaxrl_reason.run import train

__all__ = ['env']
pytestmark = pytest.mark.one_device

REWARDS = dict(
  mean=dict(reward='reference_mean_prob', weight=1.0),
  gain=dict(reward='reference_gain', weight=1.0),
  logp=dict(reward='reference_logp', weight=0.01, kwargs=dict(floor=-30.0)),
)


def likely(**flat):
  c = recipe(**{'rl.samples': 4, 'rl.optimizer.lr': 1e-2} | flat)
  c.rl.rewards = REWARDS
  return c


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  where = tmp_path_factory.mktemp('whole')
  c = likely(**{'checkpoint.every': 2, 'checkpoint.keep': 9})
  return where, c, train.run(c, where)


def scores(where):
  names = [f'train/reward/{name}' for name in REWARDS]
  return np.array([[row[name] for name in names] for row in rows(where)])


def test_a_run_is_rewarded(whole):
  found = scores(whole[0])
  assert found.shape == (6, 3)
  assert (found[:, 0] > 0).all() and (found[:, 0] < 1).all()
  assert (found[:, 1] <= found[:, 0]).all()
  assert (found[:, 2] > -30).all()


def test_a_resumed_run_is_the_uninterrupted_one(whole, tmp_path):
  where, c, want = whole
  cut = tmp_path / 'cut'
  shutil.copytree(where, cut)
  for folder in (cut / 'checkpoints').glob('[46]*'):
    shutil.rmtree(folder)
  got = train.run(c, cut)
  for path, x in trees.flatten(want.params).items():
    np.testing.assert_array_equal(trees.flatten(got.params)[path], x)
  np.testing.assert_array_equal(scores(cut), scores(where))


@pytest.mark.parametrize('mesh', [(2, 2, 2), (2, 1, 2, 2)])
def test_eight_devices_equal_one(mesh, whole, tmp_path):
  train.run(likely(mesh=mesh), tmp_path)
  np.testing.assert_allclose(scores(tmp_path), scores(whole[0]), rtol=2e-3)


def test_the_command_takes_the_reward_by_name(env, tmp_path):
  part = '--config.rl.rewards.answer.reward='
  flags = ['--config.stages=rl', '--config.rl.steps=4', '--config.log_every=2']
  run(env, tmp_path, *flags, f'{part}reference_mean_prob')
  assert any(row['train/reward/answer'] for row in rows(tmp_path))


@pytest.mark.parametrize(
  'flat, message',
  [
    ({'rl.path': 'host'}, "'reference_gain' reads reference, direct, which"),
    (
      {'rl.turns.env': 'calculator', 'data.tokenizer': 'byte'},
      'not for episodes of rl.turns.env=',
    ),
    (
      {'rl.chunks.tokens': 4, 'rl.chunks.carry': 2},
      'rl.rewards read direct, reference of whole completions',
    ),
    ({'data.completion_len': 1}, 'has 2 tokens with its stop token'),
  ],
)
def test_settings_that_cannot_work_are_refused(flat, message, tmp_path):
  with pytest.raises(ValueError, match=message):
    train.run(likely(**flat), tmp_path)
