"""Runs with the likelihood of the reference answer as reward."""

import shutil

import numpy as np
import pytest
from test_recipe_features import learnt, recipe, rows
from test_resume import env, run

from jaxrl_reason import config as config_lib
from jaxrl_reason import trees
from jaxrl_reason.run import train
from jaxrl_reason.run.rl import reward_functions

__all__ = ['env']
pytestmark = pytest.mark.one_device

REWARDS = dict(
  mean=dict(reward='reference_mean_prob', weight=1.0),
  gain=dict(reward='reference_gain', weight=1.0),
  logp=dict(reward='reference_logp', weight=0.01, kwargs=dict(floor=-30.0)),
)
TERM = {
  'rl.loss.sft_on': 'reference',
  'rl.loss.sft_coef': 1.0,
  'rl.loss.sft_loss': 'dft',
}
SAMPLER = {'rl.old_logp': 'sampler', 'rl.algorithm': 'dr_grpo'}


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


REFILL = {'rl.refill_rounds': 1, 'rl.filter': 'dead_groups'}
SHARED = {'rl.padding': 'shared:2', 'rl.micro_batches': 2}
DEMOS = {'rl.demos': 1, 'rl.loss.offpolicy': 'luffy'}


def check_trained(where):
  norms = learnt(where, 'grad_norm')
  assert np.isfinite(norms).all() and max(norms) > 0
  assert max(learnt(where, 'sft_loss')) > 0
  # The first batches of a queue are empty.
  assert min(x for x in learnt(where, 'reasoning_share') if x) < 1


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """Returns the workdir of a run that is trained on the reference answer."""
  where = tmp_path_factory.mktemp('trained')
  train.run(likely(**{'rl.steps': 3} | TERM), where)
  check_trained(where)
  return where


@pytest.mark.parametrize(
  'flat',
  [
    SAMPLER | {'rl.staleness': 2},
    REFILL | {'rl.probe.rate': 1.0},
    SAMPLER | {'rl.replay.rows': 8, 'rl.replay.capacity': 16},
    SHARED | {'rl.tree.width': 2},
    DEMOS | {'rl.padding': 'packed:40'},
    {'rl.hints.room': 4, 'rl.loss.advantage': 'reinforce'},
    {'mesh': (1, 4, 1), 'sampler_mesh': (1, 4, 1)},
  ],
  ids=(
    'stale refill_probe replay shared_tree packed_demos hints_reinforce meshes'
  ).split(),
)
def test_the_reference_answer_is_trained_with(tmp_path, flat):
  train.run(likely(**{'rl.steps': 3} | TERM | flat), tmp_path)
  check_trained(tmp_path)


@pytest.mark.parametrize(
  'flat, alone',
  [
    ({}, True),
    ({'rl.rewards.task.weight': 0.0}, True),
    ({'rl.rewards.task.weight': 0.1}, False),
    ({'rl.overlong': 4}, False),
    ({'rl.shaping.alp': 0.1}, False),
    ({'rl.teacher.weights': 'reference'}, False),
    ({'rl.step_parts': {'own': {'part': 'mine.py:Mine'}}}, False),
  ],
)
def test_answers_are_trained_if_a_reward_depends_on_them(flat, alone):
  c = recipe()
  c.rl.rewards = REWARDS | dict(task=dict(reward='task', weight=0.0))
  c.update_from_flattened_dict(flat)
  found = reward_functions.reads_reasoning_only(config_lib.read(c).rl)
  assert found == alone


@pytest.mark.parametrize('mesh', [(2, 2, 2), (2, 1, 2, 2)])
def test_eight_devices_equal_one(mesh, trained, tmp_path):
  train.run(likely(**{'rl.steps': 3, 'mesh': mesh} | TERM), tmp_path)
  got, want = scores(tmp_path), scores(trained)
  np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-6)
  for name in ('sft_loss', 'reasoning_share', 'grad_norm'):
    found = [learnt(where, name) for where in (tmp_path, trained)]
    np.testing.assert_allclose(*found, rtol=2e-3, atol=1e-6)


def test_the_command_takes_the_reward_by_name(env, tmp_path):
  part = '--config.rl.rewards.answer.reward='
  flags = ['--config.stages=rl', '--config.rl.steps=4', '--config.log_every=2']
  run(env, tmp_path, *flags, f'{part}reference_mean_prob')
  assert any(row['train/reward/answer'] for row in rows(tmp_path))


@pytest.mark.parametrize(
  'flat, message',
  [
    ({'rl.path': 'host'}, "'reference_mean_prob' reads reference, which"),
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
