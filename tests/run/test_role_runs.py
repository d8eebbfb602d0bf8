"""Runs in which each role of a policy has adapters of its own."""

import numpy as np
import pytest
import run_records
import test_game_runs
import test_proposal_runs
from test_game_runs import start
from test_proposal_runs import warm

from jaxrl_reason import trees
from jaxrl_reason.checkpoints import conversion, other_run
from jaxrl_reason.models.adapters import lora
from jaxrl_reason.run import train

__all__ = ['start', 'warm']
pytestmark = pytest.mark.one_device
OWN = {'lora.rank': 2, 'rl.role_adapters': True, 'rl.optimizer.lr': 1e-2}
ROLES = {'game': ('0', '1'), 'proposals': ('proposer', 'solver')}
EVALUATED = {'game': 0, 'proposals': 1}


def recipe(mode, weights, **flat):
  own = {'game': test_game_runs, 'proposals': test_proposal_runs}[mode]
  given = {'stages': ('rl',), 'init_from': str(weights)} | OWN
  given |= {'rl.prompts': 8, 'rl.padding': 'packed:64'}
  return own.recipe(**given | flat)


@pytest.fixture(scope='module', params=ROLES)
def whole(request, tmp_path_factory):
  """Returns (mode, weights that runs begin with, workdir of a run)."""
  mode = request.param
  names = {'game': 'start', 'proposals': 'warm'}
  weights = request.getfixturevalue(names[mode])
  folder = tmp_path_factory.mktemp(mode)
  train.run(recipe(mode, weights), folder)
  return mode, weights, folder


def test_each_role_trains_its_adapters_beside_a_frozen_base(whole):
  mode, weights, folder = whole
  seen = run_records.trained(folder)
  norms = [
    [row[f'train/role/{name}/adapter_norm'] for name in ROLES[mode]]
    for row in seen
  ]
  assert np.min(norms) > 0 and (np.ptp(norms, axis=1) > 1e-4).all()
  assert (np.diff(norms, axis=0) > 0).all()
  for row in seen:
    assert 0 < row['train/gap_max'] < 1e-5
  before, after = (other_run.read_params(x) for x in (weights, folder))
  assert lora.KEY not in before
  for path, x in trees.flatten(lora.base_of(after)).items():
    np.testing.assert_array_equal(x, trees.flatten(before)[path])


def test_evaluations_and_exports_read_the_adapters_of_one_role(whole):
  """The solver's, or those of the first player."""
  mode, _, folder = whole
  params = other_run.read_params(folder)
  _, _, got = conversion.read_run(folder)
  flat, scale = trees.flatten(params), 16.0 / 2
  at = slice(2 * EVALUATED[mode], 2 * EVALUATED[mode] + 2)
  for path in ('layers/attn/q', 'layers/mlp/down'):
    a, b = (np.asarray(flat[f'{lora.KEY}/{path}/{x}']) for x in 'ab')
    change = (a[..., at] @ b[:, at]) * scale
    want = np.asarray(flat[path]) + change.reshape(flat[path].shape)
    np.testing.assert_allclose(trees.flatten(got)[path], want, atol=1e-6)
    assert abs(change).max() > 1e-4


def test_a_stopped_run_continues_as_the_whole_one(whole, tmp_path):
  mode, weights, folder = whole
  run_records.check_resumed(recipe(mode, weights), folder, tmp_path)


DEVICES = {
  'eight': {'mesh': (8, 1, 1)},
  'two meshes': {'mesh': (-1, 1, 1), 'sampler_mesh': (1, 4, 1)},
}


@pytest.mark.parametrize('devices', DEVICES)
def test_more_devices_train_as_one_does(whole, tmp_path, devices):
  mode, weights, folder = whole
  if mode == 'proposals' and devices == 'two meshes':
    pytest.skip('refused')
  train.run(recipe(mode, weights, **DEVICES[devices]), tmp_path)
  names = [f'role/{x}/{y}' for x in ROLES[mode] for y in ('reward', 'length')]
  names += [f'role/{x}/adapter_norm' for x in ROLES[mode]]
  names += ['loss', 'grad_norm']
  for got, want in zip(
    *map(run_records.trained, (tmp_path, folder)), strict=True
  ):
    for name in names:
      wanted = pytest.approx(want[f'train/{name}'], rel=2e-3, abs=1e-5)
      assert got[f'train/{name}'] == wanted, name
