"""Batches that wait in a queue (`rl.staleness`), by whole runs."""

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from test_recipe_features import recipe, rows
from test_resume import env

from jaxrl_reason import config as config_lib
from jaxrl_reason.run import train
from jaxrl_reason.run.rl import learners

pytestmark = pytest.mark.one_device
__all__ = ['env']

SAMPLER = {'rl.algorithm': 'dr_grpo', 'rl.old_logp': 'sampler', 'rl.samples': 8}
COIN = dict(answer=dict(reward='random', kwargs=dict(p=0.5)))
LEARNT = ('loss', 'grad_norm', 'advantage_rms', 'entropy')


def made(at, **changes):
  """Runs the recipe; returns its state and rows."""
  c = recipe(**SAMPLER | {'rl.rewards': COIN, 'rl.steps': 8} | changes)
  return train.run(c, at), rows(at)


@pytest.mark.parametrize('k', [1, 3])
def test_every_batch_is_trained_on_k_steps_later(tmp_path, k):
  """With a learning rate of 0 the policy does not change. So a run with a queue
  has the numbers of a run without a queue, k steps later.
  """
  still = {'rl.optimizer.lr': 0.0, 'rl.old_logp': 'trainer'}
  still['rl.loss.correction'] = 'truncate'
  _, now = made(tmp_path / 'now', **still)
  _, later = made(tmp_path / 'later', **still | {'rl.staleness': k})
  for row in later[:k]:
    assert row['train/grad_norm'] == row['train/loss'] == 0
  for a, b in zip(now, later[k:]):
    for name in LEARNT:
      np.testing.assert_allclose(
        b[f'train/{name}'], a[f'train/{name}'], rtol=1e-5, atol=1e-7
      )
    assert b['train/policy_lag'] == k
    # The trainer agrees with the version that sampled, k steps earlier.
    assert 0 < b['train/gap_max'] < 1e-5
  # Statistics describe the completions that a step samples.
  for a, b in zip(now, later):
    assert a['train/reward_mean'] == b['train/reward_mean']


def test_the_first_steps_change_nothing(tmp_path):
  """They change neither weights nor the optimizer, despite weight decay."""
  decay = {'rl.optimizer.weight_decay': 0.1}
  first, _ = made(tmp_path / 'a', **decay | {'rl.staleness': 3, 'rl.steps': 4})
  once, _ = made(tmp_path / 'b', **decay | {'rl.steps': 1})
  for a, b in zip(*(jax.tree.leaves(s.params) for s in (first, once))):
    # The fourth step makes the first update, by the batch of the first step.
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
  counts = [x for x in jax.tree.leaves(first.opt_state) if x.ndim == 0]
  assert counts and all(int(x) == 1 for x in counts)


def test_waiting_steps_are_not_counted_by_the_learning_rate():
  """A linear schedule reaches 0 after the updates that are made."""
  schedule = {'schedule': 'linear', 'warmup_steps': 0, 'weight_decay': 0.0}
  changes = {f'rl.optimizer.{k}': x for k, x in schedule.items()}
  changes |= SAMPLER | {'rl.staleness': 3, 'rl.steps': 8}
  run = config_lib.read(recipe(**changes))
  tx, sizes = learners.learner(run, L.MODEL, 'rl').tx, []
  params = {'w': jnp.ones(1)}
  state = tx.init(params)
  for _ in range(run.rl.epochs * run.rl.minibatches * 5 + 1):
    change, state = tx.update(params, state, params)
    sizes.append(float(abs(change['w'][0])))
  assert min(sizes[:-1]) > 0 == sizes[-1]


def test_both_paths_and_eight_devices_agree(tmp_path):
  """Refill completes the batch of a step before it enters the queue."""
  task = dict(answer=dict(reward='task'))
  more = {'rl.staleness': 2, 'rl.rewards': task, 'rl.steps': 5}
  more |= {'rl.filter': 'dead_groups', 'rl.refill_rounds': 3}
  more |= {'rl.prompts': 16, 'rl.parts': 2}
  _, fused = made(tmp_path / 'fused', **more)
  _, eight = made(tmp_path / 'eight', **more | {'mesh': (8, 1, 1)})
  _, host = made(tmp_path / 'host', **more | {'rl.path': 'host'})
  names = ('loss', 'grad_norm', 'reward_mean', 'policy_lag', 'refill/rounds')
  assert sum(r['train/grad_norm'] for r in fused) > 0
  for a, b, c in zip(fused, eight, host, strict=True):
    for name in names:
      want = a[f'train/{name}']
      np.testing.assert_allclose(
        [b[f'train/{name}'], c[f'train/{name}']], want, rtol=2e-4, atol=1e-5
      )
