"""Whole runs whose update computes each prompt once for its samples."""

import signal

import numpy as np
import pytest
from run import test_resume as runs

env = runs.env
RL = (
  "--config.stages=('rl',)",
  '--config.rl.steps=4',
  '--config.rl.optimizer.lr=1e-3',
  '--config.eval.every=100',
  '--config.checkpoint.every=2',
)
SHARED = (*RL, '--config.rl.padding=shared:2')


@pytest.fixture(scope='module')
def shared(env, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('shared')
  runs.run(env, workdir, *SHARED)
  return workdir


def test_metrics_are_those_of_rows_apart(shared, env, tmp_path):
  """Two epochs of two minibatches, with a reference: to rounding."""
  runs.run(env, tmp_path, *RL)
  got, want = runs.content(shared), runs.content(tmp_path)
  assert len(got) == len(want) and any('train/loss' in row for row in want)
  for a, b in zip(got, want):
    assert a.keys() == b.keys()
    for key in a:
      if isinstance(b[key], float):
        np.testing.assert_allclose(a[key], b[key], 2e-3, 1e-5, err_msg=key)
      else:
        assert a[key] == b[key], key


@pytest.mark.slow
def test_killed_and_resumed_it_is_the_same_bit_for_bit(shared, env, tmp_path):
  process = runs.start(env, tmp_path, *SHARED)
  there = runs.reached(tmp_path, 'rl', 2)
  assert runs.kill_when(process, there) == -signal.SIGKILL
  assert 'Resuming at step 2' in runs.run(env, tmp_path, *SHARED)
  assert runs.content(tmp_path) == runs.content(shared)
