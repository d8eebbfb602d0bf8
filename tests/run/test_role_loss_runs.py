"""Runs in which each role of a policy has a loss of its own."""

import pytest
import run_records
import test_game_runs
import test_proposal_runs
from test_proposal_runs import warm

from jaxrl_reason.run import train

__all__ = ['warm']
pytestmark = pytest.mark.one_device
ROLES = {
  'proposer': {'algorithm': 'rloo', 'loss': {'kl_coef': 0.0}},
  'solver': {'algorithm': 'dapo', 'loss': {'entropy_coef': 0.01}},
}
NAMES = [f'role/{x}/{y}' for x in ROLES for y in ('reward', 'loss', 'entropy')]


def recipe(warm, **flat):
  given = {f'rl.roles.{k}': x for k, x in ROLES.items()}
  given |= {'init_from': str(warm), 'rl.optimizer.lr': 1e-3}
  return test_proposal_runs.recipe(**given | flat)


@pytest.fixture(scope='module')
def whole(warm, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('whole')
  train.run(recipe(warm), workdir)
  return workdir


def test_a_stopped_run_continues_as_the_whole_one(warm, whole, tmp_path):
  run_records.check_resumed(recipe(warm), whole, tmp_path)
  seen = run_records.trained(whole)
  assert any(row['train/role/proposer/loss'] for row in seen)
  assert all(0 < row['train/gap_max'] < 1e-5 for row in seen)


ALIKE = {
  'packed on eight devices': {
    'rl.padding': 'packed:32', 'rl.micro_batches': 2, 'mesh': (8, 1, 1),
  },
  'buckets': {'rl.padding': 'buckets:2', 'rl.micro_batches': 2},
  'adapters': {'rl.role_adapters': True, 'lora.rank': 2},
}  # fmt: skip


@pytest.mark.parametrize('how', ALIKE)
def test_the_first_step_is_that_of_one_device(warm, whole, tmp_path, how):
  """Adapters begin as the weights beside them."""
  train.run(recipe(warm, **ALIKE[how] | {'rl.steps': 1}), tmp_path)
  (got,), want = (run_records.trained(x) for x in (tmp_path, whole))
  for name in ('loss', *NAMES):
    wanted = pytest.approx(want[0][f'train/{name}'], abs=1e-4)
    assert got[f'train/{name}'] == wanted, name


def played(folder, **flat):
  """Trains two players with adapters of their own. The first one learns from
  rewards, the second one from an entropy bonus alone.
  """
  bonus = {
    'advantage': 'none',
    'entropy_coef': 0.5,
    'aggregation': 'token_mean',
  }
  given = {
    'rl.algorithm': 'ppo',  # neither role reads it
    'rl.roles.0': {'algorithm': 'reinforce'},
    'rl.roles.1': {'algorithm': 'reinforce', 'loss': bonus},
    'lora.rank': 2, 'rl.role_adapters': True, 'rl.optimizer.lr': 1e-2,
    'stages': ('rl',),
  }  # fmt: skip
  train.run(test_game_runs.poker(**given | flat), folder)
  return run_records.trained(folder)


@pytest.fixture(scope='module')
def game(tmp_path_factory):
  return played(tmp_path_factory.mktemp('game'))


@pytest.mark.slow
def test_a_stopped_game_continues_as_the_whole_one(game, tmp_path):
  played(tmp_path, **{'rl.steps': 2})
  assert played(tmp_path) == game


@pytest.mark.slow
def test_a_game_trains_on_eight_devices_as_on_one(game, tmp_path):
  names = [f'role/{i}/{x}' for i in '01' for x in ('loss', 'adapter_norm')]
  for got, want in zip(played(tmp_path, mesh=(8, 1, 1)), game, strict=True):
    for name in ('loss', 'grad_norm', 'reward_mean', *names):
      wanted = pytest.approx(want[f'train/{name}'], rel=2e-3, abs=1e-5)
      assert got[f'train/{name}'] == wanted, name


def test_a_player_without_a_loss_keeps_its_adapters(tmp_path):
  silent = {'algorithm': 'reinforce', 'loss': {'advantage': 'none'}}
  seen = played(tmp_path, **{'rl.roles.1': silent})
  first, second = (
    [row[f'train/role/{i}/adapter_norm'] for row in seen] for i in '01'
  )
  assert second == [0] * len(seen) and first[-1] > first[0]
  assert not any(row['train/role/1/loss'] for row in seen)
