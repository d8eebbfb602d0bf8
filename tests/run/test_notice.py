"""After a notice of preemption, the run saves at the end of the current
dispatch, and the resumed run equals the uninterrupted one bit for bit.
"""

import os
import signal

import pytest
import tiny_recipe
from paths import ROOT
from test_resume import content

from jaxrl_reason.run import loop, train

FUSED = {'log_every': 6, 'rl.epochs': 1, 'rl.minibatches': 1}
HOST = {
  'log_every': 4,
  'rl.path': 'host',
  'rl.steps_per_dispatch': 1,
  'rl.workers': 1,
  'rl.parts': 1,
  'rl.rewards.answer.reward': f'{ROOT}/tests/pod_worker.py:parity',
}


def config_of(changes):
  config = tiny_recipe.get_config()
  config.stages = ('rl',)
  config.rl.steps = 12
  config.rl.rewards.answer.reward = 'random'  # for a gradient
  config.eval.update(every=12, problems=4, harder=False)
  config.checkpoint.every = 12
  config.rl.prompts = 8  # over eight devices
  config.update_from_flattened_dict(changes)
  return config


@pytest.fixture
def told_at(monkeypatch):
  """Returns the steps before whose dispatch the process receives SIGTERM."""
  steps, dispatch = set(), loop.Loop.dispatch

  def told(self, state, more):
    if self.total in steps:
      steps.remove(self.total)
      os.kill(os.getpid(), signal.SIGTERM)
    return dispatch(self, state, more)

  monkeypatch.setattr(loop.Loop, 'dispatch', told)
  return steps


def saved(workdir):
  found = (workdir / 'checkpoints').iterdir()
  return sorted(int(p.name) for p in found if p.name.isdigit())


@pytest.mark.parametrize(
  'changes, told, at',
  [
    # Twice in an interval, at its last dispatch, and at its first.
    (FUSED, (0, 2, 4, 6), (2, 4, 6, 8)),
    pytest.param(*(HOST, (0, 2, 7, 9), (1, 3, 8, 10)), marks=pytest.mark.slow),
  ],
)
def test_a_notice_saves_inside_an_interval_and_nothing_is_lost(
  told_at, tmp_path, changes, told, at
):
  whole, cut = tmp_path / 'whole', tmp_path / 'cut'
  assert train.run(config_of(changes), whole) is not None
  for step, expected in zip(told, at):
    told_at.add(step)
    assert train.run(config_of(changes), cut) is None
    assert max(saved(cut)) == expected
  assert train.run(config_of(changes), cut) is not None
  rows = content(whole)
  assert content(cut) == rows
  assert any(r.get('train/grad_norm', 0) > 0 for r in rows)


def test_an_evaluation_after_a_notice_has_one_line(told_at, tmp_path):
  """This holds for any number of later starts."""
  whole, cut = tmp_path / 'whole', tmp_path / 'cut'
  train.run(config_of(FUSED), whole)
  told_at.add(10)  # before the last dispatch: the evaluation must wait
  assert train.run(config_of(FUSED), cut) is None
  assert max(saved(cut)) == 12
  for _ in range(2):
    assert train.run(config_of(FUSED), cut) is not None
    assert content(cut) == content(whole)
