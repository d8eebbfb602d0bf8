"""Temperatures by problem (`rl.temperature_control.residual`) in whole runs."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_recipe_features import PARITY, recipe, rows
from test_resume import check_a_killed_run, env

from jaxrl_reason import trees
from jaxrl_reason.base import Outcomes, TrainState
from jaxrl_reason.logits import Sampling
from jaxrl_reason.parts import Step
from jaxrl_reason.run import train
from jaxrl_reason.run.rl.temperature_control import TemperatureControl

pytestmark = pytest.mark.one_device
__all__ = ['env']

RAISED = {
  'rl.temperature_control.residual': 0.25,
  'rl.temperature_control.residual_of': 'both',
  'rl.temperature_control.high': 1.6,
}
POOL = {'data.controller.name': 'uniform', 'data.controller.window': 8}


def control(**changes):
  settings = dict(
    entropy=0.0, rate=0.1, residual=0.5, residual_of='solved', low=0.5,
    high=2.0, first=1.0, n_problems=5,
  )  # fmt: skip
  return TemperatureControl(**settings | changes)


def outcomes(ids, right, valid):
  n, right = len(ids), jnp.asarray(right, jnp.float32)
  zeros = jnp.zeros(n, jnp.int32)
  return Outcomes(
    right, right[:, None], jnp.asarray(valid), zeros, zeros > 0, zeros,
    prompt_id=jnp.asarray(ids),
  )  # fmt: skip


@pytest.mark.parametrize(
  'of, want',
  [
    # 0: correct, 1: wrong, 2: both, 3: one valid sample, 4: not sampled
    ('solved', [2, 0, 0, 1, 1]),
    ('failed', [0, 2, 0, 1, 1]),
    ('both', [2, 2, 0, 1, 1]),
  ],
)
def test_equal_outcomes_raise_the_temperature_of_their_problem(of, want):
  part = control(residual_of=of)
  ids = [0, 0, 0, 1, 1, 2, 2, 3, 3]
  right = [1, 1, 0, 0, 0, 1, 0, 1, 0]
  valid = [1, 1, 0, 1, 1, 1, 1, 1, 0]  # one invalid sample of 0 does not count
  seen = outcomes(ids, right, np.array(valid, bool))
  sampled = recorded = Sampling.make(jnp.ones(9))
  step = Step(None, TrainState(0, None, None), recorded, sampled, None, seen)
  memory = {'common': jnp.float32(1), 'raised': jnp.ones(5, jnp.int32)}
  memory, _, _ = part.before(memory, step)
  assert memory['raised'].tolist() == want
  found = part.sampling(memory, Sampling.make(1.0))
  np.testing.assert_allclose(found.by_problem, 1 + 0.5 * np.array(want))
  rows_ = found.of_problems(jnp.array([4, 0]), 3)
  np.testing.assert_allclose(
    rows_.temperature, np.repeat([1.5, 1 + 0.5 * want[0]], 3)
  )


@pytest.mark.parametrize(
  'residual, high, want',
  [
    (0.5, 1.7, [1.5, 1.7, 1.7, 1.7, 1.5]),
    (0.1, 1.3, [1.1, 1.2, 1.3, 1.3, 1.2]),  # (1.3 - 1) / 0.1 > 3 in floats
  ],
)
def test_temperatures_stay_within_bounds(residual, high, want):
  """The count stops at the bound, so the temperature can fall in the next
  step.
  """
  part = control(residual=residual, high=high)
  ids, valid = [0, 0], np.ones(2, bool)
  memory, counts = part.init(jnp.int32(0)), []
  for right in (1, 1, 1, 1, 0):
    seen = outcomes(ids, [1, right], valid)
    step = Step(None, None, None, Sampling.make(jnp.ones(2)), None, seen)
    memory, _, _ = part.before(memory, step)
    found = part.sampling(memory, Sampling.make(1.0))
    counts.append(float(found.by_problem[0]))
  np.testing.assert_allclose(counts, want, rtol=1e-6)


def test_a_step_without_a_trained_token_keeps_the_temperature():
  """Its entropy is 0, but it is no measurement."""
  part = control(entropy=0.3, residual=0.0)
  state = TrainState(0, None, None)
  for n, want in ((0, 1.0), (7, np.exp(0.1))):
    metrics = {'entropy': jnp.float32(0), 'trained_tokens': jnp.int32(n)}
    memory, _, _ = part.after({'common': jnp.float32(1)}, state, metrics)
    np.testing.assert_allclose(memory['common'], want, rtol=1e-6)


def raised(path='fused', **flat):
  given = {'rl.path': path, 'rl.samples': 4, 'rollouts.every': 1} | RAISED
  c = recipe(**given | POOL)
  reward = PARITY if path == 'host' else 'random'
  c.rl.rewards = dict(answer=dict(reward=reward))
  if path == 'fused':
    c.rl.rewards.answer.kwargs = dict(p=0.7)
  c.update_from_flattened_dict(flat)
  return c


def counts_of(where):
  """Returns n_i of the problems by the rollouts on disk, [8]."""
  counts = np.zeros(8, int)
  for path in sorted((where / 'rollouts').glob('*.jsonl')):
    solved = {}
    for record in map(json.loads, path.open()):
      solved.setdefault(record['problem'], []).append(record['reward'] > 0.5)
    for i, right in solved.items():
      counts[i] += 1 if len(set(right)) == 1 else -1
    counts = np.clip(counts, 0, 3)
  return counts


@pytest.mark.parametrize('path', ['fused', 'host'])
def test_the_outcomes_set_the_temperatures(tmp_path, path):
  """Compares with the rollouts on disk, on each path. The trainer scores every
  row at its own temperature, also in packed rows.
  """
  state = train.run(raised(path, **{'rl.padding': 'packed:40'}), tmp_path)
  counts = state.control['temperature']['raised']
  np.testing.assert_array_equal(counts, counts_of(tmp_path))
  assert len(set(counts.tolist())) > 1
  found = rows(tmp_path)
  assert found[0]['train/temperature_max'] == 1
  assert max(r['train/temperature_max'] for r in found) > 1.2
  for row in found:
    assert row['train/temperature'] == 1
    assert row['train/gap_max'] < 1e-4


def test_eight_devices_have_the_temperatures_of_one(tmp_path):
  one, eight = (
    train.run(raised(mesh=(n, 1, 1)), tmp_path / str(n)) for n in (-1, 8)
  )
  a, b = (trees.flatten(x.control['temperature']) for x in (one, eight))
  jax.tree.map(np.testing.assert_array_equal, a, b)
  for x, y in zip(rows(tmp_path / '-1'), rows(tmp_path / '8'), strict=True):
    for name in ('temperature_mean', 'loss', 'grad_norm'):
      np.testing.assert_allclose(
        x[f'train/{name}'], y[f'train/{name}'], rtol=2e-4, atol=1e-5
      )


@pytest.mark.slow
@pytest.mark.parametrize('path', ['fused', 'host'])
def test_a_killed_run_keeps_its_temperatures(env, tmp_path, path):
  given = RAISED | POOL | {'stages': 'rl', 'rl.steps': 12, 'rl.path': path}
  given |= {'rl.epochs': 1, 'rl.minibatches': 1, 'rl.steps_per_dispatch': 1}
  given |= {'rl.rewards.answer.reward': 'random', 'rl.workers': 1}
  check_a_killed_run(env, tmp_path, given)
