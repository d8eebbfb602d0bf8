"""Whole runs whose update computes each prompt once for its samples."""

import signal

import numpy as np
import pytest
from paths import ROOT
from run import test_resume as runs

env = runs.env
RECIPE = ROOT / 'tests' / 'shared_recipe.py'
SHARED = '--config.rl.padding=shared:1'


@pytest.fixture(scope='module')
def shared(env, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('shared')
  runs.run(env, workdir, SHARED, recipe=RECIPE)
  return workdir


def test_metrics_are_those_of_rows_apart(shared, env, tmp_path):
  """They are equal up to rounding, while the policy changes."""
  runs.run(env, tmp_path, recipe=RECIPE)
  got, want = runs.content(shared), runs.content(tmp_path)
  assert len(got) == len(want)
  assert all(row.get('train/grad_norm', 1) > 0 for row in want)
  assert sum('train/grad_norm' in row for row in want) == 2
  for a, b in zip(got, want):
    assert a.keys() == b.keys()
    for key in a:
      if isinstance(b[key], float):
        np.testing.assert_allclose(a[key], b[key], 2e-3, 1e-5, err_msg=key)
      else:
        assert a[key] == b[key], key


@pytest.mark.slow
def test_killed_and_resumed_it_is_the_same_bit_for_bit(shared, env, tmp_path):
  process = runs.start(env, tmp_path, SHARED, recipe=RECIPE)
  there = runs.saved(tmp_path, 2)
  assert runs.kill_when(process, there) == -signal.SIGKILL
  assert 'Resuming at step' in runs.run(env, tmp_path, SHARED, recipe=RECIPE)
  assert runs.content(tmp_path) == runs.content(shared)
