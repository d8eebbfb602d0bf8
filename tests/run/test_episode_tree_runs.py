"""Runs with episodes that share their first turns, and advantages of turns."""

import numpy as np
import pytest
import run_records
import test_turn_runs

from jaxrl_reason.run import train

pytestmark = pytest.mark.one_device
TREES = {
  'turns': {'rl.tree.turns': (1,)},
  'entropy': {},
}


def recipe(**flat):
  c = test_turn_runs.recipe(steps_per_dispatch=1)
  c.sft.update(steps=60, rows=32, steps_per_dispatch=1)
  c.rl.turns.observation = 7
  c.eval.every, c.checkpoint.every = 100, 2
  c.log_every, c.rollouts.every = 1, 1
  c.rl.tree.width = 2
  c.update_from_flattened_dict(flat)
  return c


@pytest.fixture(scope='module')
def start(tmp_path_factory):
  """Returns a run that has learnt to call the calculator."""
  folder = tmp_path_factory.mktemp('start')
  seldom = {'log_every': 60, 'eval.every': 60, 'checkpoint.every': 60}
  train.run(recipe(**{'stages': ('sft',)} | seldom), folder)
  return folder


@pytest.fixture(scope='module', params=TREES)
def whole(request, start, tmp_path_factory):
  """Returns the changes of an uninterrupted run, and its workdir."""
  changes = TREES[request.param] | {'stages': ('rl',), 'init_from': str(start)}
  workdir = tmp_path_factory.mktemp(request.param)
  train.run(recipe(**changes), workdir)
  return changes, workdir


def test_leaves_with_a_fork_have_one_first_turn(whole):
  """The advantages are not all 0, and log-probs are those of the trainer."""
  _, workdir = whole
  seen, forks = run_records.trained(workdir), 0
  for row in seen:
    assert row['train/gap_max'] < 1e-5
    assert 0 < row['train/tree/shared'] < 1
  assert max(row['train/grad_norm'] for row in seen) > 0
  for records in run_records.rollouts(workdir):
    for a, b in zip(records[::2], records[1::2]):
      talks = [x.get('conversation', []) for x in (a, b)]
      if all(talks):
        assert talks[0][:2] == talks[1][:2]
        forks += talks[0] != talks[1]
  assert forks > 0


def test_a_stopped_run_continues_as_the_uninterrupted_one(whole, tmp_path):
  changes, workdir = whole
  run_records.check_resumed(recipe(**changes), workdir, tmp_path)


def test_eight_devices_train_as_one_does(whole, tmp_path):
  changes, workdir = whole
  train.run(recipe(**changes, mesh=(8, 1, 1)), tmp_path)
  names = ['loss', 'grad_norm', 'tree/shared', 'turns/mean', 'turns/1/reward']
  seen = (run_records.trained(x) for x in (workdir, tmp_path))
  for one, eight in zip(*seen, strict=True):
    for name in names:
      want = pytest.approx(one[f'train/{name}'], rel=1e-3, abs=1e-5)
      assert eight[f'train/{name}'] == want, name
  found = (run_records.rollouts(x) for x in (workdir, tmp_path))
  for one, eight in zip(*found, strict=True):
    texts = [[x['completion'] for x in records] for records in (one, eight)]
    assert texts[0] == texts[1]
    assert np.isfinite([x['reward'] for x in eight]).all()
