"""Hidden states in whole runs: a probe and a novelty bonus."""

import numpy as np
import pytest
from test_recipe_features import recipe, rows
from test_resume import check_a_killed_run, env

from jaxrl_reason import config as config_lib
from jaxrl_reason.rollouts.hidden_states import HiddenStates
from jaxrl_reason.run import train
from jaxrl_reason.run.rl import hidden_settings

__all__ = ['env']
COIN = dict(reward='random', kwargs=dict(p=0.5))
LAYERS = 'rl.views.hidden.layers'
PROBE = {'rl.probe.rate': 2.0, 'rl.views.hidden.layers': (0,)}


def probed(path, **flat):
  c = recipe(**{'rl.path': path, 'rl.samples': 4} | PROBE | flat)
  # A coin for the first part: right and wrong rows in every step.
  c.rl.rewards = dict(answer=COIN)
  return c


def test_both_paths_train_the_same_probe(tmp_path):
  seen = {}
  for path in ('fused', 'host'):
    state = train.run(probed(path), tmp_path / path)
    memory = state.control['probe']
    assert np.any(memory['weight'] != 0)
    seen[path] = [
      [r[f'train/probe/{k}'] for k in ('auroc', 'loss')]
      for r in rows(tmp_path / path)
    ]
  assert np.shape(seen['fused']) == (6, 2)
  assert seen['fused'][0] == [0.5, pytest.approx(np.log(2), rel=1e-6)]
  assert len({auroc for auroc, _ in seen['fused']}) > 3
  np.testing.assert_allclose(seen['host'], seen['fused'], rtol=2e-3, atol=2e-3)


def test_novelty_is_a_reward_of_its_own(tmp_path):
  c = probed('fused', **{'rl.views.hidden.token': 'mean'})
  bonus = dict(reward='novelty_volume', weight=0.3)
  near = dict(reward='novelty_neighbours', weight=0.1, kwargs=dict(k=2))
  c.rl.rewards = dict(answer=COIN, far=bonus, near=near)
  train.run(c, tmp_path)
  for row in rows(tmp_path):
    # The volumes of a group of 4 sum to at most 3, its centred dimensions.
    assert 0.2 < row['train/reward/far'] < 0.75
    total = row['train/reward/answer'] + 0.3 * row['train/reward/far']
    total += 0.1 * row['train/reward/near']
    assert row['train/reward_mean'] == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize(
  'flat, passes', [({}, 1), ({'rl.probe.token_weight': 0.5}, 2)], ids=str
)
def test_a_reward_and_the_probe_share_a_pass(
  tmp_path, monkeypatch, flat, passes
):
  """The numbers are those of two passes. Weights of tokens need the states of
  all tokens, and then there are two passes.
  """
  traced, along = [], HiddenStates.along

  def counted(*args):
    traced.append(1)
    return along(*args)

  monkeypatch.setattr(HiddenStates, 'along', counted)
  seen, states = {}, {}
  for name in ('shared', 'apart'):
    if name == 'apart':
      monkeypatch.setattr(hidden_settings, 'in_one_pass', lambda c: False)
    c = probed('fused', **{'rl.steps': 3} | flat)
    c.rl.rewards.far = dict(reward='novelty_neighbours', weight=0.3)
    traced.clear()
    states[name] = train.run(c, tmp_path / name).control['probe']
    made = len(traced)
    assert made % (passes if name == 'shared' else 2) == 0
    seen[name] = made, rows(tmp_path / name)
  assert 2 * seen['shared'][0] == passes * seen['apart'][0]
  keys = 'probe/auroc', 'probe/loss', 'reward/far', 'reward_mean', 'loss'
  for one, two in zip(seen['shared'][1], seen['apart'][1], strict=True):
    for key in keys:
      want = pytest.approx(two[f'train/{key}'], rel=1e-5, abs=1e-6)
      assert one[f'train/{key}'] == want
  for key, x in states['apart'].items():
    np.testing.assert_allclose(states['shared'][key], x, rtol=1e-4, atol=1e-6)


def test_rounds_and_earlier_policies_have_a_pass_of_their_own():
  c = config_lib.read(probed('fused')).rl
  far = {'rl.rewards.far': dict(reward='novelty_volume', weight=0.3)}
  run = config_lib.read(probed('fused')).changed(far)
  assert not hidden_settings.in_one_pass(c)  # no reward reads states
  assert hidden_settings.in_one_pass(run.rl)
  for key, value in (
    ('rl.staleness', 2),
    ('rl.in_flight.batches', 2),
    ('rl.hints.room', 4),
    ('rl.extra.groups', 1),
    ('rl.refill_rounds', 1),
    ('rl.replay.rows', 8),
  ):
    assert not hidden_settings.in_one_pass(run.changed({key: value}).rl), key


@pytest.mark.parametrize(
  'flat, words',
  [
    (PROBE | {LAYERS: (2,)}, 'must be from -2 to 1: the model'),
    (PROBE | {LAYERS: (0, -3)}, 'layers=(0, -3): must be from -2 to 1'),
    (PROBE | {LAYERS: (1, -1)}, 'one layer is there twice'),
    (PROBE | {LAYERS: ()}, 'layers=(): must be one or more whole numbers'),
    (PROBE | {LAYERS: ('last',)}, 'must be one or more whole numbers'),
    ({'rl.probe.updates': 3}, 'has no effect without rl.probe.rate'),
    (
      {'rl.path': 'host', 'rl.rewards.far.reward': 'novelty_volume'},
      "'novelty_volume' reads hidden, which rewards in Python do not see",
    ),
    (
      {
        'rl.rewards.far.reward': 'novelty_neighbours',
        'rl.rewards.far.kwargs': dict(k=0),
      },
      'novelty_neighbours: k=0 must be at least 1',
    ),
  ],
)
def test_bad_values_are_named(tmp_path, flat, words):
  c = recipe(**{'model.layers': 2})
  if part := {k: v for k, v in flat.items() if 'rewards.far' in k}:
    c.rl.rewards.far = {k.rpartition('.')[2]: v for k, v in part.items()}
  c.update_from_flattened_dict({k: v for k, v in flat.items() if k not in part})
  with pytest.raises(ValueError) as e:
    train.run(c, tmp_path)
  assert words in str(e.value) and '\n' not in str(e.value)


@pytest.mark.slow
def test_a_killed_run_keeps_the_memory_of_its_probe(env, tmp_path):
  given = PROBE | {'stages': 'rl', 'rl.steps': 12, 'rl.epochs': 1}
  given |= {'rl.minibatches': 1, 'rl.steps_per_dispatch': 1}
  given |= {'rl.rewards.answer.reward': 'novelty_volume'}
  check_a_killed_run(env, tmp_path, given)
