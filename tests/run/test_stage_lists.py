"""Runs of named stages: names, weights, kept state, changed settings, kills."""

import json
import signal
import subprocess

import jax
import numpy as np
import pytest
import stage_recipe
from etils import epath
from paths import ROOT
from test_recipe_features import recipe, rows
from test_resume import (
  command,
  content,
  env,
  kill_when,
  reached,
  refusal,
  run,
  run_here,
)

from jaxrl_reason import config as config_lib
from jaxrl_reason import trees
from jaxrl_reason.checkpoints import other_run
from jaxrl_reason.run import stage_list as staging
from jaxrl_reason.run import train
from jaxrl_reason.run.checks import config_checks

__all__ = ['env']
pytestmark = pytest.mark.one_device
RECIPE = ROOT / 'tests' / 'stage_recipe.py'
NAMES = ['sft', 'short', 'long', 'sft#2', 'again']


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  where = tmp_path_factory.mktemp('stages')
  run_here(where, recipe=RECIPE)
  return where


def test_every_stage_has_its_name_and_its_settings(whole):
  found = [json.loads(x) for x in (whole / 'metrics.jsonl').open()]
  assert list(dict.fromkeys(r['stage'] for r in found)) == NAMES
  for name in NAMES:
    assert len(rows(whole, name)) == 2, name
  stages = ('short', 'long', 'again')
  longest = [r['train/length_max'] for n in stages for r in rows(whole, n)]
  assert max(longest[:2]) <= 6 < max(longest[2:4])
  tried = [r['train/problems/tried'] for n in stages for r in rows(whole, n)]
  # 'long' continues with the statistics of problems of 'short'.
  assert 0 <= tried[0] < tried[1] < tried[2] < tried[3]
  assert tried[4] == tried[0]


def test_a_reference_is_reset_and_a_temperature_follows_the_entropy(whole):
  found = rows(whole, 'again')
  # Means over two steps: the ages are 1 and 0 (just reset), and one of two
  # steps resets.
  assert [r['train/reference/reset'] for r in found] == [0.5, 0.5]
  assert [r['train/reference/age'] for r in found] == [0.5, 0.5]
  assert all('train/reference/age' not in r for r in rows(whole, 'long'))
  # An untrained model has far more entropy than 0.3, so its temperature falls.
  assert found[1]['train/temperature'] < found[0]['train/temperature'] < 1


@pytest.mark.slow
def test_a_run_killed_in_any_stage_resumes_bit_for_bit(env, tmp_path):
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  run(env, whole, recipe=RECIPE)
  for stage, step in (('short', 6), ('long', 10), ('again', 18)):
    process = subprocess.Popen(
      command(killed, recipe=RECIPE),
      env=env,
      stderr=subprocess.PIPE,
      cwd=ROOT,
    )
    code = kill_when(process, reached(killed, stage, step))
    assert code == -signal.SIGKILL
  assert 'Resuming at step' in run(env, killed, recipe=RECIPE)
  assert content(killed) == content(whole)


def test_a_stage_begins_with_the_weights_it_names(tmp_path):
  c = recipe(**{'stages': ('sft', 'rl', 'still'), 'sft.steps': 2})
  c.rl.steps = 1
  c.rl.rewards = dict(answer=dict(reward='random', kwargs=dict(p=0.5)))
  c.named.still = dict(kind='rl', weights='sft')
  c.named.still['rl'] = dict(optimizer=dict(lr=0.0))
  state = train.run(c, tmp_path)
  warm = other_run.read_params(epath.Path(f'{tmp_path}'), 2)
  for path, x in trees.flatten(state.params).items():
    np.testing.assert_array_equal(x, trees.flatten(warm)[path], path)
  moved = other_run.read_params(epath.Path(f'{tmp_path}'), 3)
  differs = jax.tree.map(lambda a, b: not np.array_equal(a, b), warm, moved)
  assert any(jax.tree.leaves(differs))


def planned(**flat):
  c = stage_recipe.get_config()
  c.update_from_flattened_dict(flat)
  return c


def test_a_stage_changes_only_its_keys():
  c = planned()
  by_name = {p.name: p for p in staging.each(c)}
  own = by_name['again'].config
  assert own.rl.reference.every == 2 and c.rl.reference.every == 0
  run = config_lib.read(c)
  back = {f'rl.{k}': run.rl[k] for k in ('reference', 'temperature_control')}
  back = {key: record.to_dict() for key, record in back.items()}
  assert own.changed(back | {'stages': run.stages, 'named': run.named}) == run
  assert by_name['sft#2'].kind == 'sft'
  assert by_name['again'].origin == 'again:rl'
  assert by_name['sft#2'].origin == 'sft#2'


def test_a_plan_has_every_kind_of_stage_as_its_last_stage_is():
  stages = staging.each(planned(**{'named.again.eval': {'every': 77}}))
  last = {p.kind: p.config for p in stages}
  plan = staging.last_of_each_kind(stages)
  assert plan.stages == tuple(last) and not plan.named
  for kind, own in last.items():
    assert plan.training(kind) == own.training(kind)
  assert plan.data == last['rl'].data
  assert plan.eval.every == last['rl'].eval.every == 77
  assert staging.one(stages, 'again').eval.every == 77


def test_kinds_alone_are_the_runs_own_config():
  c = recipe(stages=('sft', 'rl'))
  for p in staging.each(c):
    assert p.config.changed({'stages': c.stages}) == config_lib.read(c)
    assert p.origin == p.kind == p.name


BAD = [
  ({'named.long.kind': 'dpo'}, 'named.long.kind='),
  ({'named.long.weights': 'later'}, "named.long.weights='later'"),
  ({'named.long.weights': 'again'}, "named.long.weights='again'"),
  ({'named.long.keep': ('optimiser',)}, "named.long.keep='optimiser'"),
  ({'named.long.weights': 'start'}, 'set one'),
  ({'named.again.keep': ('optimizer',), 'named.again.weights': ''}, 'sft#2'),
  ({'named.short.rl.steps': 0}, 'named.short: rl.steps=0'),
  ({'named.short.rl.steps': 3}, 'named.short: rl.steps = 3'),
  ({'named.short.data.completion_len': 99}, 'named.short: data.completion_len'),
  ({'stages': ('sft', 'shrot')}, "Did you mean 'short'"),
]


@pytest.mark.parametrize('flat, words', BAD)
def test_bad_stages_are_named_in_a_line(flat, words):
  with pytest.raises(ValueError) as e:
    config_checks.check(planned(**flat), 1)
  assert words in str(e.value) and '\n' not in str(e.value)


@pytest.mark.parametrize(
  'given, words',
  [
    (dict(kind='rl', rl=dict(stepz=3)), 'unknown key named.new.rl.stepz'),
    (dict(kind='rl', rl=dict(steps='many')), "named.new: rl.steps='many'"),
    (dict(kind='rl', rl=3), 'named.new.rl=3: must be a section'),
    (dict(kind='rl', sft=dict(steps=3)), 'named.new.sft.steps'),
    (dict(kind='rl', model=dict(width=3)), 'named.new.model.width'),
    (dict(rl=dict(steps=3)), 'must be a section such as'),
    (3, 'must be a section such as'),
    (
      dict(kind='rl', rl=dict(algorithm='dapo', reference=dict(ema=0.9))),
      'reads no reference',
    ),
    (
      dict(kind='rl', rl=dict(temperature_control=dict(entropy=1.0, low=1.5))),
      'rl.temperature_control.low',
    ),
  ],
)
def test_bad_overrides_are_named_in_a_line(given, words):
  c = recipe(stages=('new',))
  c.named.new = given
  with pytest.raises(ValueError) as e:
    config_checks.check(c, 1)
  assert words in str(e.value) and '\n' not in str(e.value)


def test_impossible_stage_lists_are_refused_before_the_first_step(tmp_path):
  c = recipe(stages=('rl', 'wide'))
  c.named.wide = dict(kind='rl', keep=('optimizer', 'control'))
  with pytest.raises(ValueError, match="named.wide.keep='control'.*no control"):
    train.run(c, tmp_path)
  assert not (tmp_path / 'metrics.jsonl').exists()


def test_overrides_on_the_command_line(tmp_path):
  stages = '--config.stages=rl,more'
  named = "--config.named.more={'kind':'rl','rl':{'stepz':3}}"
  words = 'unknown key named.more.rl.stepz'
  assert words in refusal(tmp_path, stages, named)


def test_a_stage_that_no_recipe_names_on_the_command_line(tmp_path):
  flags = (
    '--config.stages=rl,more',
    '--config.named.more.kind=rl',
    '--config.named.more.rl.optimizer.lrr=1.0',
  )
  words = 'unknown key named.more.rl.optimizer.lrr'
  assert words in refusal(tmp_path, *flags)
  # A mistyped name is a stage of no kind.
  words = "must be a section such as dict(kind='rl'"
  assert words in refusal(tmp_path, '--config.named.shrot.rl.steps=1')


TURNS = (
  '--config.stages=sft,explore,rft,explore,rft',
  '--config.named.explore.kind=rl',
  '--config.named.explore.rl.steps=4',
  '--config.named.explore.rl.archive=2',
  '--config.named.rft.kind=sft',
  '--config.named.rft.weights=sft',
  '--config.named.rft.data.solutions=explore',
  '--config.named.rft.sft.steps=2',
  # The policy does not change, so that final and initial weights are equal.
  '--config.named.rft.sft.optimizer.lr=0.0',
  '--config.sft.steps=2',
  '--config.data.controller.name=uniform',
  '--config.data.controller.window=16',
  '--config.rl.rewards.answer.reward=random',
  "--config.rl.rewards.answer.kwargs={'p':0.5}",
  '--config.rl.epochs=1',
  '--config.rl.minibatches=1',
  '--config.eval.problems=2',
)


def test_turns_of_exploring_and_learning_again_from_one_policy(tmp_path):
  """This is RLoop (2511.04285), with all stages on the command line."""
  run_here(tmp_path, *TURNS)
  names = dict.fromkeys(
    json.loads(x)['stage'] for x in (tmp_path / 'metrics.jsonl').open()
  )
  assert [*names] == ['sft', 'explore', 'rft', 'explore#2', 'rft#2']
  ends = {
    step: trees.flatten(other_run.read_params(epath.Path(f'{tmp_path}'), step))
    for step in (2, 6, 8, 12, 14)
  }
  for step, weights in ends.items():
    same = [np.array_equal(x, ends[2][k]) for k, x in weights.items()]
    assert all(same) if step in (8, 14) else step == 2 or not all(same), step
  found = [
    (tmp_path / 'archive' / f'{name}.jsonl').read_text()
    for name in ('explore', 'explore-2')
  ]
  assert found[0] and found[1] and found[0] != found[1]


def test_a_turn_trains_on_solutions_of_the_last_turn():
  c = recipe(stages=('explore', 'rft', 'explore', 'rft', 'first'))
  c.named.explore = dict(kind='rl', rl=dict(archive=1))
  c.named.rft = dict(kind='sft', data=dict(solutions='explore'))
  c.named.first = dict(kind='sft', data=dict(solutions='explore#2'))
  read = {p.name: p.config.data.solutions for p in staging.each(c)}
  assert read['rft'] == 'explore'
  assert read['rft#2'] == read['first'] == 'explore#2'


def test_correct_samples_are_trained_on(tmp_path):
  """Rejection sampling fine-tuning: a random verifier accepts every finished
  completion with probability 1/2.
  """
  c = recipe(**{'stages': ('explore', 'rft', 'shown'), 'rl.samples': 4})
  c.data.controller.update(name='uniform', window=16)
  c.rl.rewards = dict(answer=dict(reward='random', kwargs=dict(p=0.5)))
  still = dict(optimizer=dict(lr=0.0))
  c.named = dict(
    explore=dict(kind='rl', rl=dict(archive=2) | still),
    rft=dict(kind='sft', weights='start', data=dict(solutions='explore')),
    shown=dict(kind='rl', data=dict(solutions='explore')),
  )
  c.sft.update(steps=2, rows=8)
  c.rl.steps = 4
  c.rollouts.update(every=1, problems=8)
  train.run(c, tmp_path)
  archive = [json.loads(x) for x in (tmp_path / 'archive/explore.jsonl').open()]
  right = {}
  for path in sorted((tmp_path / 'rollouts').glob('*.jsonl')):
    for r in map(json.loads, path.open()):
      if r['stage'] == 'explore' and r['reward'] > 0.5 and not r['truncated']:
        right.setdefault(r['problem'], {})[r['completion']] = r['length']
  assert right and {r['problem'] for r in archive} == set(right)
  for row in archive:
    known = right[row['problem']]
    kept = [known[x] for x in row['solutions']]
    assert kept == sorted(known.values())[:2]
    assert len(set(row['solutions'])) == len(kept)
  assert len(rows(tmp_path, 'rft')) == 2 and len(rows(tmp_path, 'shown')) == 4


@pytest.mark.parametrize(
  'named, words',
  [
    (dict(kind='sft', data=dict(solutions='rl')), 'there is none'),
    (dict(kind='sft', data=dict(solutions='later')), "solutions='later'"),
  ],
)
def test_a_missing_archive_is_refused(named, words):
  c = recipe(stages=('rl', 'rft'))
  c.named.rft = named
  with pytest.raises(ValueError, match=words):
    config_checks.check(c, 1)


def test_an_archive_without_solutions_is_an_error(tmp_path):
  c = recipe(**{'stages': ('explore', 'rft'), 'rl.steps': 1})
  c.data.controller.update(name='uniform', window=8)
  c.rl.rewards = dict(answer=dict(reward='random', kwargs=dict(p=0.0)))
  c.named.explore = dict(kind='rl', rl=dict(archive=1))
  c.named.rft = dict(kind='sft', data=dict(solutions='explore'))
  with pytest.raises(ValueError, match='has solved no problem'):
    train.run(c, tmp_path)
