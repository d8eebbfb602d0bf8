"""Runs with a changing reference or learning rate satisfy the formulas, by
metrics and checkpoints.
"""

import subprocess

import numpy as np
import pytest
from etils import epath
from test_recipe_features import recipe, rows
from test_resume import command, content, env, kill_when, run, saved

from jaxrl_reason import trees
from jaxrl_reason.checkpoints import other_run
from jaxrl_reason.run import train

__all__ = ['env']
COIN = dict(answer=dict(reward='random', kwargs=dict(p=0.5)))


def moving(**flat):
  c = recipe(**{'rl.loss.kl_coef': 0.01, 'rl.optimizer.warmup_steps': 0})
  c.rl.rewards = COIN
  c.checkpoint.update(every=1, keep=100)
  c.update_from_flattened_dict(flat)
  return c


def at(workdir, step):
  """Returns the weights of a checkpoint by path."""
  return trees.flatten(other_run.read_params(epath.Path(f'{workdir}'), step))


def test_a_reference_is_reset_above_a_divergence(tmp_path):
  bound = 1e-5
  flat = {'rl.reference.kl': bound, 'rl.reference.optimizer': True}
  flat['rl.optimizer.lr'] = 1e-2
  state = train.run(moving(**flat), tmp_path)
  found, age = rows(tmp_path), 0
  due = [r['train/kl'] > bound for r in found]
  assert any(due[:-1]) and not all(due)
  for i, row in enumerate(found):
    age = 0 if due[i] else age + 1
    assert row['train/reference/reset'] == due[i]
    assert row['train/reference/age'] == age
    if i and due[i - 1]:  # measured against the policy itself
      assert row['train/kl'] < 1e-9
  # Since the last reset, one update a step.
  counts = [
    x for k, x in trees.flatten(state.opt_state).items() if 'count' in k
  ]
  assert counts and {int(x) for x in counts} == {age}


def test_a_reference_is_reset_without_improvement(tmp_path):
  c = moving(**{'rl.reference.patience': 2, 'rl.steps': 12})
  state = train.run(c, tmp_path)
  rate, best, since, due = None, -1.0, 0, []
  for row in rows(tmp_path):
    new = row['train/reward/answer']
    # A running mean, in which the newest batch has a weight of a tenth.
    rate = new if rate is None else 0.9 * rate + 0.1 * new
    since = 0 if rate > best else since + 1
    best = max(best, rate)
    due.append(since >= 2)
    assert row['train/reference/reset'] == due[-1]
    if due[-1]:
      best, since = -1.0, 0
  assert any(due[:-1]) and not all(due)
  last = max(i + 1 for i, x in enumerate(due) if x)
  for path, x in at(tmp_path, last).items():
    np.testing.assert_array_equal(trees.flatten(state.ref_params)[path], x)


@pytest.fixture(scope='module')
def averaged(tmp_path_factory):
  where = tmp_path_factory.mktemp('ema')
  c = moving(**{'rl.reference.ema': 0.75, 'stages': ('sft', 'rl')})
  c.sft.steps = 2
  return where, train.run(c, where)


def test_a_reference_is_a_running_mean_of_the_policy(averaged):
  where, state = averaged
  want = at(where, 2)  # the end of sft
  for step in range(3, 9):
    now = at(where, step)
    want = {k: 0.75 * x + 0.25 * now[k] for k, x in want.items()}
  for path, x in trees.flatten(state.ref_params).items():
    np.testing.assert_allclose(x, want[path], rtol=1e-5, atol=1e-7)
  assert any(not np.array_equal(at(where, 8)[k], x) for k, x in want.items())


def moved(workdir, step):
  """Returns the largest change of a weight in a step. Updates of Lion are
  signs, so this is the learning rate.
  """
  one, two = at(workdir, step - 1), at(workdir, step)
  return max(np.abs(np.subtract(two[k], x)).max() for k, x in one.items())


def test_a_stage_warms_up_stays_and_decays(tmp_path):
  """The second decay is a separate stage, which keeps the optimizer's means."""
  lion = dict(name='lion', lr=1e-3, weight_decay=0.0, warmup_steps=2)
  c = moving(**{'stages': ('rl', 'pretrain', 'decay')})
  c.rl.steps = 1
  c.pretrain.update(steps=12, steps_per_dispatch=1, rows=8)
  c.pretrain.optimizer.update(lion | dict(schedule='wsd'))
  end = dict(steps=4, optimizer=dict(schedule='linear'))
  c.named.decay = dict(kind='pretrain', pretrain=end, keep=('optimizer',))
  train.run(c, tmp_path)
  # With kept means, the second stage has no warm-up, and its learning rate
  # falls linearly over its own four updates.
  want = [0.5] + 10 * [1.0] + [0.5] + [1.0, 0.75, 0.5, 0.25]
  found = [moved(tmp_path, 2 + i) for i in range(len(want))]
  np.testing.assert_allclose(found, 1e-3 * np.array(want), rtol=2e-3)


@pytest.mark.slow
def test_killed_with_a_reference_that_moves(env, tmp_path):
  flags = (
    '--config.stages=rl', '--config.rl.loss.kl_coef=0.01',
    '--config.rl.reference.patience=2', '--config.rl.reference.kl=1e-4',
    '--config.rl.reference.ema=0.9', '--config.rl.reference.optimizer=True',
    "--config.rl.rewards.answer.reward=random",
  )  # fmt: skip
  run(env, tmp_path / 'whole', *flags)
  process = subprocess.Popen(
    command(tmp_path / 'cut', *flags), env=env, stderr=subprocess.PIPE
  )
  kill_when(process, saved(tmp_path / 'cut', 8))
  assert 'Resuming at step' in run(env, tmp_path / 'cut', *flags)
  assert content(tmp_path / 'cut') == content(tmp_path / 'whole')
