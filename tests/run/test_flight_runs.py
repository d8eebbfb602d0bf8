"""Groups in flight (`rl.in_flight`), by whole runs."""

import numpy as np
import pytest
from test_recipe_features import recipe, rows
from test_resume import env

from jaxrl_reason.run import train

pytestmark = pytest.mark.one_device
__all__ = ['env']

FLIGHT = {
  'rl.algorithm': 'dr_grpo',
  'rl.old_logp': 'sampler',
  'rl.samples': 4,
  'rl.slots': 2,
  'rl.in_flight.batches': 3,
  'rl.rewards': dict(answer=dict(reward='random', kwargs=dict(p=0.5))),
  'rl.steps': 8,
}


def made(at, **changes):
  """Runs the recipe; returns its state and rows."""
  return train.run(recipe(**FLIGHT | changes), at), rows(at)


@pytest.mark.parametrize('cache', ['kept', 'recomputed'])
def test_eight_devices_in_dispatches_of_two_equal_one(tmp_path, cache):
  more = {'rl.prompts': 16, 'rl.in_flight.pieces': 2}
  more |= {'rl.in_flight.max_staleness': 3, 'rl.in_flight.cache': cache}
  _, one = made(tmp_path / 'one', **more)
  pairs = {'mesh': (8, 1, 1), 'rl.steps_per_dispatch': 2, 'log_every': 2}
  _, eight = made(tmp_path / 'eight', **more | pairs)
  for i, row in enumerate(one):
    # The first steps only begin groups.
    assert (row['train/grad_norm'] > 0) == (i >= 2)
    assert row['train/in_flight/lag_max'] <= 3
    assert (row['train/policy_lag'] > 0) == (i >= 2)
  names = 'loss', 'grad_norm', 'policy_lag', 'in_flight/idle', 'reward_mean'
  for name in names:
    each = np.array([row[f'train/{name}'] for row in one])
    np.testing.assert_allclose(
      [row[f'train/{name}'] for row in eight],
      each.reshape(-1, 2).mean(axis=1),
      rtol=2e-4,
      atol=1e-5,
    )
