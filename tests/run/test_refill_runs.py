"""Refill and replay in whole runs: both paths, killed runs, invalid values."""

import json
import signal

import numpy as np
import pytest
import run_records
from test_recipe_features import recipe, rows
from test_resume import content, env, kill_when, reached, run, start

from jaxrl_reason.run import train
from jaxrl_reason.verifiers import records

__all__ = ['env']
pytestmark = pytest.mark.one_device
# With eight samples an untrained model sometimes has a group with signal.
REFILL = {
  'rl.filter': 'dead_groups',
  'rl.refill_rounds': 3,
  'rl.samples': 8,
  'rl.algorithm': 'dr_grpo',
  'rl.steps': 5,
}
REMEMBER = {
  'rl.refill_keep': True,
  'rl.old_logp': 'sampler',
  'rl.replay.rows': 16,
  'rl.replay.capacity': 20,
  'rl.replay.by': 'uniform',
}


def metrics(workdir):
  names = 'train/loss train/reward_mean train/tokens train/grad_norm '
  names += 'train/policy_lag train/refill/rounds train/refill/filled '
  names += 'train/refill/used train/refill/left train/length_max '
  names += 'train/replay/used train/replay/stored train/groups_solved_none'
  seen = rows(workdir)
  return [[r.get(name, 0.0) for name in names.split()] for r in seen]


def test_both_paths_refill_and_replay_alike(tmp_path):
  """Python and compiled rewards of the task select the same groups."""
  for path in ('fused', 'host'):
    c = recipe(**REFILL, **REMEMBER)
    c.rl.path, c.rl.parts, c.rl.prompts = path, 2, 16
    train.run(c, tmp_path / path)
  fused, host = metrics(tmp_path / 'fused'), metrics(tmp_path / 'host')
  np.testing.assert_allclose(fused, host, rtol=2e-4, atol=1e-5)
  seen = rows(tmp_path / 'host')
  for name in ('refill/filled', 'replay/used', 'grad_norm'):
    assert sum(r[f'train/{name}'] for r in seen) > 0, name
  # Most groups are dead, so the next round is known to be needed early.
  assert max(r['perf/rounds_ahead'] for r in seen) >= 1


def test_without_dead_groups_a_run_is_the_run_without_refill(tmp_path):
  """Problems, samples and updates are equal in each step, with a reward that no
  two samples share.
  """
  changes = {'rl.rewards': dict(answer=dict(reward='mean_logp'))}
  for name, n in (('off', 0), ('on', 2)):
    more = {'rl.refill_rounds': n, 'rl.filter': 'dead_groups', 'rl.steps': 3}
    train.run(recipe(**changes, **more), tmp_path / name)
  off, on = rows(tmp_path / 'off'), rows(tmp_path / 'on')
  assert all(r['train/refill/rounds'] == 1 for r in on) and len(on) == 3
  for a, b in zip(off, on):
    same = [k for k in a if not k.startswith('perf/')]
    assert [a[k] for k in same] == [b[k] for k in same]


def test_statistics_include_all_generated_completions(tmp_path):
  """They are not only those of trained rows, half of which are correct because
  they were selected.
  """
  coin = dict(answer=dict(reward='random', kwargs=dict(p=0.1)))
  changes = REFILL | {'rl.steps': 30, 'rl.samples': 4, 'log_every': 30}
  changes |= {'eval.every': 30, 'checkpoint.every': 30}
  c = recipe(**changes, **{'rl.rewards': coin, 'rl.steps_per_dispatch': 3})
  train.run(c, tmp_path)
  (row,) = rows(tmp_path)
  n = 8 * 4 * row['train/refill/rounds'] * 30
  assert abs(row['train/reward_mean'] - 0.1) < 4 * np.sqrt(0.09 / n)
  # A group of 4 has signal with p = 1 - 0.1^4 - 0.9^4 = 0.344: three rounds of
  # 8 give 8.3 on the mean, so that mostly three or four are generated.
  assert 2.5 < row['train/refill/rounds'] < 4
  assert row['train/refill/filled'] > 0.9


def test_a_filter_that_removes_all_rows_is_reported(tmp_path, monkeypatch):
  said = []
  monkeypatch.setattr('jaxrl_reason.run.records.journal.say', said.append)
  impossible = dict(answer=dict(reward='random', kwargs=dict(p=0.0)))
  state = train.run(recipe(**REFILL, **{'rl.rewards': impossible}), tmp_path)
  assert int(state.step) == 5
  seen = rows(tmp_path)
  assert all(r['train/refill/rounds'] == 4 for r in seen)
  assert all(r['train/grad_norm'] == 0 for r in seen)
  told = [x for x in said if "rl.filter='dead_groups' left none" in x]
  assert len(told) == 1 and 'steps 1 to 1' in told[0]


def test_hard_problems_are_sampled_more_often(tmp_path):
  c = recipe(**{'rl.extra.groups': 8, 'rl.samples': 4, 'rl.steps': 3})
  c.rl.extra.by = 'knapsack'
  train.run(c, tmp_path)
  for row in rows(tmp_path):
    # 8 further groups: of 8 problems at most, one of one at least.
    assert 0 < row['train/extra/problems'] <= 1
    assert 1 <= row['train/extra/groups_max'] <= 8
    assert row['train/tokens'] > 2 * 8 * 4  # of 16 groups, not of 8


# A coin, so that half of the groups have signal.
SURPLUS = REFILL | REMEMBER | {
  'rl.steps': 12, 'rl.samples': 2, 'rl.rewards.answer.reward': 'random',
}  # fmt: skip


def test_a_run_with_surplus_groups_is_resumed(tmp_path):
  c = recipe(**SURPLUS)
  c.checkpoint.every, c.rollouts.every = 4, 4
  train.run(c, tmp_path / 'whole')
  seen = rows(tmp_path / 'whole')
  assert any(r['train/replay/used'] > 0 for r in seen)
  assert seen[7]['train/refill/left'] > 0  # the checkpoint has them
  run_records.check_resumed(c, tmp_path / 'whole', tmp_path / 'cut')


@pytest.mark.slow
@pytest.mark.parametrize('path', ['fused', 'host'])
def test_a_run_killed_with_surplus_groups_resumes_bit_for_bit(
  env, tmp_path, path
):
  given = SURPLUS | {'rl.path': path, 'stages': 'rl', 'rl.prompts': 8}
  given |= {'rl.epochs': 1, 'rl.minibatches': 1}
  if path == 'host':  # rewarded for correct answers
    given |= {'rl.rewards.answer.reward': 'task', 'rl.samples': 8}
    given |= {'rl.steps_per_dispatch': 1, 'rl.parts': 2, 'rl.workers': 1}
  given = [f'--config.{k}={v}' for k, v in given.items()]
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  run(env, whole, *given)
  for step in (6, 10):
    process = start(env, killed, *given)
    assert kill_when(process, reached(killed, 'rl', step)) == -signal.SIGKILL
  assert 'Resuming at step' in run(env, killed, *given)
  assert content(killed) == content(whole)
  text = (whole / 'metrics.jsonl').read_text()
  seen = [json.loads(line) for line in text.splitlines()]
  seen = [r for r in seen if 'train/loss' in r]
  assert any(r['train/replay/used'] > 0 for r in seen)
  if path == 'fused':
    assert any(r['train/refill/left'] > 0 for r in seen)


@pytest.mark.parametrize(
  'given, words',
  [
    ({'refill_rounds': 2, 'filter': 'none'}, "rl.filter='none' drops none"),
    ({'refill_rounds': -1}, 'rl.refill_rounds=-1: must be'),
    ({'refill_rounds': 2, 'filter': 'shortest'}, 'rl.filter_args.keep above 0'),
    ({'filter': 'dead_group'}, "Did you mean 'dead_groups'"),
    ({'refill_keep': True}, 'has no effect without rl.refill_rounds'),
    ({'refill_keep': True, 'old_logp': 'trainer'}, 'and rl.old_logp'),
    (
      {'filter': 'band', 'filter_args.low': 0.9, 'filter_args.high': 0.95},
      'rl.samples=8 samples',
    ),
    (
      {'filter': 'band', 'filter_args.low': 0.9, 'filter_args.high': 0.1},
      'rl.filter_args.low=0.9 is above',
    ),
    ({'filter': 'best', 'filter_args.keep': 8}, 'rl.filter_args.keep=8'),
    ({'replay.rows': 8}, 'rl.replay.capacity=0: set both'),
    ({'replay.rows': 12, 'replay.capacity': 20}, '= 76 does not divide by'),
    ({'replay.rows': 8, 'replay.capacity': 2}, 'rl.replay.capacity=2'),
    (
      {'replay.rows': 8, 'replay.capacity': 20, 'replay.by': 'newest'},
      "rl.replay.by='newest': choose",
    ),
    ({'extra.groups': 8, 'extra.by': 'easy'}, "rl.extra.by='easy': choose"),
    ({'hints.room': 4, 'hints.when': 'once'}, "rl.hints.when='once'"),
    ({'hints.room': 4, 'hints.by': 'steps'}, "rl.hints.by='steps'"),
    ({'hints.room': 4, 'hints.share': (2.0,)}, 'shares from 0 to 1'),
    ({'hints.room': 4, 'hints.at': (1.0, 1.0)}, 'rl.hints.at=(1.0, 1.0)'),
    ({'hints.room': 4, 'hints.learn': True}, 'rl.loss.offpolicy'),
    ({'hints.room': 4, 'archive': 1}, 'is no whole solution'),
    (
      {'hints.room': 4, 'hints.learn': True, 'hints.when': 'failed'},
      "set rl.hints.when='always'",
    ),
    (
      {
        'hints.room': 4,
        'hints.when': 'failed',
        'path': 'host',
        'staleness': 1,
      },
      "rl.hints.when='failed' and rl.staleness=1",
    ),
    ({'hints.room': 4, 'demos': 1}, 'rl.demos=1'),
    (
      {'hints.room': 4, 'hints.when': 'failed', 'old_logp': 'trainer'},
      "rl.hints.when='failed' and rl.old_logp",
    ),
    (
      {'hints.room': 4, 'hints.by': 'solve_rate'},
      "rl.hints.by='solve_rate': all rows begin with a hint",
    ),
    (
      {'hints.room': 4, 'reference.patience': 3, 'loss.kl_coef': 0.1},
      'rl.reference.patience=3 follows the solve rate of rows without hints',
    ),
    (
      {
        'extra.groups': 8,
        'replay.rows': 8,
        'replay.capacity': 20,
        'replay.mix': 'rows',
      },
      'share a baseline already',
    ),
    ({'extra.groups': 3}, 'rl.extra.groups'),
    (
      {'extra.groups': 8, 'filter': 'dead_groups', 'refill_rounds': 1},
      'rl.refill_rounds=1 and rl.extra.groups=8',
    ),
    ({'replay.rows': 8, 'replay.capacity': 10**9}, 'GiB of each device'),
    (
      {'replay.rows': 8, 'replay.capacity': 20, 'path': 'host', 'staleness': 1},
      'rl.staleness=1',
    ),
    ({'replay.rows': 8, 'replay.capacity': 20, 'minibatches': 7}, '= 72 does'),
    ({'replay.rows': 8, 'replay.capacity': 20, 'replay.by': 'failing'}, 'come'),
  ],
)
def test_bad_values_are_named_in_a_line(tmp_path, given, words):
  c = recipe(**{'rl.samples': 8, 'rl.old_logp': 'sampler'}, mesh=(8, 1, 1))
  if given.get('refill_keep') and 'old_logp' in given:
    given = given | {'refill_rounds': 1, 'filter': 'dead_groups'}
  for key, value in given.items():
    c.update_from_flattened_dict({f'rl.{key}': value})
  with pytest.raises(ValueError) as e:
    train.run(c, tmp_path)
  assert words in str(e.value) and '\n' not in str(e.value)


@pytest.mark.parametrize('when', ['always', 'failed'])
def test_both_paths_give_the_same_hints(tmp_path, when):
  """The share of hints follows the step: the third step has none."""
  flat = {'rl.old_logp': 'sampler'}
  if when == 'always':  # goes with refill and replay
    flat = REFILL | REMEMBER
  flat |= {'rl.hints.room': 6, 'rl.steps': 3, 'rl.samples': 4}
  for path in ('fused', 'host'):
    c = recipe(**flat, **{'rl.path': path})
    c.rl.hints.update(when=when, at=(0.0, 2.0), share=(0.9, 0.0))
    c.data.completion_len = 10
    # An untrained model is correct only by chance, so a random reward is added.
    c.rl.rewards.coin = dict(reward='random', kwargs=dict(p=0.5))
    train.run(c, tmp_path / path)
  names = 'reward_mean length_mean grad_norm ratio_max tokens hints/failed '
  names += 'hints/solved groups_solved_none'
  seen = [rows(tmp_path / path) for path in ('fused', 'host')]
  fused, host = (
    [[r.get(f'train/{k}', 0.0) for k in names.split()] for r in each]
    for each in seen
  )
  np.testing.assert_allclose(fused, host, rtol=2e-4, atol=1e-5)
  assert [r['train/control/step'] for r in seen[0]] == [0, 1, 2]
  assert sum(r[2] for r in fused) > 0
  if when == 'failed':
    assert all(0 < r[5] <= 1 for r in fused)
    # Sampler and trainer have different prompts, if there is a hint.
    off = [abs(r[3] - 1) for r in fused]
    assert off[0] > 10 * off[2] and off[2] < 1e-4
    assert max(r[4] for r in fused) > 8 * 4 * 10 / 2


def hinted(path, *, learn):
  """Returns the config of a run with a constant reward and hints, which are
  trained on or not.
  """
  more = {'rl.hints.room': 8, 'rl.hints.learn': learn, 'rl.samples': 4}
  c = recipe(**more, **{'rl.path': path, 'rl.steps': 6})
  c.rl.hints.update(at=(0.0,), share=(0.9,))
  c.data.completion_len = 10
  c.rollouts.every = 6
  if learn:
    c.rl.loss.offpolicy = 'sft'
  c.rl.rewards = dict(answer=dict(reward='random', kwargs=dict(p=1.0)))
  c.rl.algorithm, c.rl.optimizer.lr = 'dapo', 3e-3
  return c


def test_hints_are_trained_on_if_set(tmp_path):
  """A constant reward has a gradient only for forced tokens, whose likelihood
  rises.
  """
  end = {}
  for path, learn in (('fused', False), ('fused', True), ('host', True)):
    folder = tmp_path / f'{path}{learn}'
    train.run(hinted(path, learn=learn), folder)
    end[path, learn] = rows(folder)
    if learn:
      check_forced(folder)
  assert all(r['train/grad_norm'] == 0 for r in end['fused', False])
  assert all(r['train/grad_norm'] > 0 for r in end['fused', True])
  # Only sampled tokens are counted.
  first = [end['fused', learn][0]['train/length_mean'] for learn in (0, 1)]
  assert first[0] == first[1]
  for key in ('grad_norm', 'loss', 'length_mean'):
    want, got = (
      [r[f'train/{key}'] for r in end[path, True]] for path in ('fused', 'host')
    )
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-5)


def check_forced(folder):
  """Checks that a stored completion has its hint as a turn of its own."""
  (last,) = (folder / 'rollouts').glob('*6.jsonl')
  forced = 0
  for _, row in records.read(last):
    hint, own = row['conversation']
    assert (hint['role'], own['role']) == ('hint', 'policy')
    assert hint['content'] and own['content'] == row['completion']
    told = ''.join(row['tokens']['text'])
    assert told == hint['content'] + own['content']
    # The problem ends with '='; the tokens after it are forced.
    n, known = len(hint['content']), hint['content'].rfind('=') + 1
    assert n == 8 and all(row['tokens']['trained'][known:])
    forced += n - known
  assert forced > 0


def test_demonstrations_if_no_sample_was_correct(tmp_path):
  """An untrained model fails on nearly all problems and trains on solutions
  there. A solved problem has no demonstration.
  """
  c = recipe(**{'rl.demos': 1, 'rl.demos_when': 'failed', 'rl.samples': 4})
  c.rl.loss.offpolicy = 'sft'
  c.rl.update(algorithm='dapo', steps=4)
  c.data.completion_len = 10
  train.run(c, tmp_path / 'failed')
  seen = rows(tmp_path / 'failed')
  for row in seen:
    assert row['train/demos/groups'] == row['train/groups_solved_none'] > 0.5
    assert row['train/grad_norm'] > 0
  right = dict(answer=dict(reward='random', kwargs=dict(p=1.0)))
  c.rl.rewards = right
  train.run(c, tmp_path / 'right')
  for row in rows(tmp_path / 'right'):
    assert row['train/demos/groups'] == 0 == row['train/grad_norm']
