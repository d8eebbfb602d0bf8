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


def counted_passes(monkeypatch) -> list:
  """Returns a list that grows at every traced pass to hidden states."""
  traced, along = [], HiddenStates.along

  def counted(*args):
    traced.append(1)
    return along(*args)

  monkeypatch.setattr(HiddenStates, 'along', counted)
  return traced


FAR = {'rl.rewards.far': dict(reward='novelty_neighbours', weight=0.3)}


@pytest.mark.parametrize(
  'flat, passes',
  [
    (FAR, [0, 1, 2]),
    (FAR | {'rl.probe.token_weight': 0.5}, [1, 2, 2]),
    (FAR | {'rl.slots': 2}, [1, 1, 2]),
    ({'rl.views.hidden.token': 'mean'}, [0, 1, 1]),
    ({'rl.views.hidden.token': 'prompt_last'}, [1, 1, 1]),
    ({'rl.path': 'host'}, [0, 1, 1]),
  ],
  ids=str,
)
def test_states_of_the_sampler_replace_passes(
  tmp_path, monkeypatch, flat, passes
):
  """The numbers are those of a pass, shared or not. Weights of tokens need the
  states of all tokens, and then the probe has a pass. States of prompts take a
  pass over the prompts.
  """
  traced, found = counted_passes(monkeypatch), []
  c = probed('fused', **{'rl.steps': 3})
  c = config_lib.read(c).changed(flat)
  for i, off in enumerate(('', 'without_pass', 'in_one_pass')):
    if off:
      monkeypatch.setattr(hidden_settings, off, lambda c: False)
    traced.clear()
    memory = train.run(c, tmp_path / str(i)).control['probe']
    found.append((len(traced), memory, rows(tmp_path / str(i))))
  made = [n for n, _, _ in found]
  assert [n * max(passes) for n in made] == [n * max(made) for n in passes]
  keys = ['probe/auroc', 'probe/loss', 'reward_mean', 'loss']
  keys += ['reward/far'] * ('rl.rewards.far' in flat)
  for _, memory, lines in found[1:]:
    for one, two in zip(found[0][2], lines, strict=True):
      for key in keys:
        want = pytest.approx(two[f'train/{key}'], rel=1e-5, abs=1e-6)
        assert one[f'train/{key}'] == want
    for key, x in memory.items():
      np.testing.assert_allclose(found[0][1][key], x, rtol=1e-4, atol=1e-6)


def test_the_sampler_reads_states_of_its_own_rows():
  """Not of pieces of completions, of other tokens, or after other prompts; and
  the probe reads no states of several rounds or of an earlier policy.
  """
  run = config_lib.read(probed('fused'))
  far = run.changed(FAR)
  for c in (run, far):
    assert hidden_settings.in_one_pass(c.rl)
    assert hidden_settings.without_pass(c.rl)
  assert not hidden_settings.without_pass(run.changed({'rl.probe.rate': 0}).rl)
  for key, value, read in (
    ('rl.slots', 2, (False, True)),
    ('rl.turns.env', 'calculator', (False, True)),
    ('rl.tree.width', 2, (False, True)),
    ('rl.search.simulations', 4, (False, True)),
    ('rl.demos', 1, (False, True)),
    ('rl.hints.room', 4, (False, False)),
    ('rl.in_flight.batches', 2, (False, False)),
    ('rl.staleness', 2, (True, False)),
    ('rl.extra.groups', 1, (True, False)),
    ('rl.refill_rounds', 1, (True, False)),
    ('rl.replay.rows', 8, (True, False)),
    ('rl.probe.token_weight', 0.5, (True, False)),
  ):
    c = far.changed({key: value}).rl
    found = hidden_settings.without_pass(c), hidden_settings.in_one_pass(c)
    assert found == read, key
    c = run.changed({key: value}).rl  # only the probe reads states
    assert not hidden_settings.without_pass(c), key
    assert not hidden_settings.in_one_pass(c), key


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
