"""Runs with controllers of problems: both paths, mixtures, devices,
resuming.
"""

import json
import os
import subprocess

import jax
import numpy as np
import pytest
import test_resume as resumed
from paths import ROOT
from test_hosts import FUSED as HOSTS_FUSED
from test_hosts import finish, start_worker
from test_recipe_features import PARITY, recipe, rows
from test_resume import kill_when, reached

from jaxrl_reason.run import train

pytestmark = pytest.mark.one_device

RECIPE = ROOT / 'tests' / 'pool_recipe.py'
COIN = dict(reward='random', kwargs=dict(p=0.5))
CHAINS = {
  f'chain{n}': dict(knobs=dict(min_ops=n, max_ops=n), difficulty=n, weight=n)
  for n in (1, 2, 3)
}


def chosen(path='fused', controller='priority', **flat):
  """Returns a tiny recipe whose rewards differ by noise or by length."""
  c = recipe(**{'rl.path': path, 'log_every': 1})
  c.data.controller.update(name=controller, window=24)
  c.rl.rewards = dict(answer=COIN if path == 'fused' else dict(reward=PARITY))
  c.update_from_flattened_dict(flat)
  return c


def controlled(state):
  return jax.tree.map(np.asarray, state.control['pool'])


@pytest.mark.parametrize('path', ['fused', 'host'])
def test_statistics_count_the_problems_of_a_run(tmp_path, path):
  c = chosen(path, **{'rl.samples': 4})
  stats = controlled(train.run(c, tmp_path))
  assert stats.visits.shape == (24,)
  found = rows(tmp_path)
  assert len(found) == 6
  assert 0 < stats.visits.sum() <= 6 * 8
  assert stats.seen.max() == 5 and (stats.visits > 0).sum() > 8
  assert np.all((stats.rate == 0.5) | (stats.visits > 0))
  assert found[0]['train/problems/tried'] == 0
  tried = [r['train/problems/tried'] for r in found]
  assert tried == sorted(tried) and tried[-1] > tried[1] > 0
  assert found[0]['train/problems/entropy'] == pytest.approx(1)
  assert found[-1]['train/problems/entropy'] < 0.999
  rate = stats.rate[stats.visits > 0]
  assert 0.2 < rate.mean() < 0.8 and rate.std() > 0.05


@pytest.mark.parametrize('path', ['fused', 'host'])
def test_epochs_visit_every_problem_once(tmp_path, path):
  """With 24 problems and 8 per step, each occurs twice in six steps."""
  c = chosen(path, 'uniform')
  stats = controlled(train.run(c, tmp_path))
  np.testing.assert_array_equal(stats.visits, 2)


def test_a_set_of_one_problem(tmp_path):
  stats = controlled(
    train.run(chosen(**{'data.controller.window': 1}), tmp_path)
  )
  np.testing.assert_array_equal(stats.visits, [6])


def test_steps_in_one_dispatch_are_those_one_by_one(tmp_path):
  """Each step uses the statistics of the previous one."""
  every = {'log_every': 6, 'eval.every': 6, 'checkpoint.every': 6}
  one = chosen(**every)
  k = chosen(**every, **{'rl.steps_per_dispatch': 6})
  a = train.run(one, tmp_path / 'one')
  b = train.run(k, tmp_path / 'k')
  for x, y in zip(*map(jax.tree.leaves, (controlled(a), controlled(b)))):
    np.testing.assert_allclose(x, y, rtol=1e-5)


def mixture(path, **flat):
  c = chosen(path, 'uniform', **flat)
  c.data.sources = CHAINS | {
    'sums': dict(name='countdown', knobs=dict(max_number=4), weight=2)
  }
  c.data.update(prompt_len=14)
  c.rl.rewards = dict(answer=dict(reward='task'))
  c.rl.prompts = 16
  return c


@pytest.mark.parametrize('path', ['fused', 'host'])
def test_a_mixture_of_tasks(tmp_path, path):
  """The verifier of its source scores each row, and sources have their
  ratios.
  """
  stats = controlled(train.run(mixture(path), tmp_path))
  assert len(stats.visits) == 4 * 24
  np.testing.assert_array_equal(stats.source, np.repeat(np.arange(4), 24))
  found = rows(tmp_path)
  for name, weight in {'chain1': 1, 'chain3': 3, 'sums': 2}.items():
    share = np.mean([r[f'train/source/{name}/share'] for r in found])
    assert abs(share - weight / 8) <= 1 / 16
  text = (tmp_path / 'metrics.jsonl').read_text()
  for name in ('heldout', 'heldout/chain2', 'heldout/sums'):
    assert f'"eval/{name}/pass@1"' in text
  assert not any(r['train/reward_invalid'] for r in found)


def test_the_ladder_over_a_tasks_knobs_ignores_higher_rungs(tmp_path):
  c = mixture('fused')
  c.data.sources = CHAINS
  c.data.controller.update(name='ladder', rungs=3, sources='free')
  stats = controlled(train.run(c, tmp_path))
  assert stats.visits[stats.difficulty == 0].sum() > 0
  assert stats.visits[stats.difficulty > 0].sum() == 0
  assert rows(tmp_path)[-1]['train/problems/rung'] == 0


def start(env, workdir, *flags, path='fused'):
  given = resumed.command(workdir, *flags, recipe=f'{RECIPE}:{path}')
  return subprocess.Popen(given, env=env, stderr=subprocess.PIPE, cwd=ROOT)


def command(workdir, env, *flags, code=0, path='fused'):
  given = resumed.command(workdir, *flags, recipe=f'{RECIPE}:{path}')
  done = subprocess.run(
    given, env=env, capture_output=True, text=True, cwd=ROOT
  )
  assert done.returncode == code, done.stderr[-3000:]
  return done.stderr


@pytest.fixture(scope='module')
def env(tmp_path_factory):
  cache = tmp_path_factory.mktemp('cache')
  flags = os.environ['XLA_FLAGS'].replace('device_count=8', 'device_count=1')
  return os.environ | {'XDG_CACHE_HOME': str(cache), 'XLA_FLAGS': flags}


def content(workdir):
  """Returns the rows of metrics.jsonl without timings."""
  found = [json.loads(x) for x in (workdir / 'metrics.jsonl').open()]
  timing = ('perf/', 'pool/')
  return [
    {k: v for k, v in row.items() if not k.startswith(timing)} for row in found
  ]


@pytest.mark.parametrize(
  'path', ['fused', pytest.param('host', marks=pytest.mark.slow)]
)
def test_killed_and_resumed_chooses_the_same_problems(tmp_path, env, path):
  """The checkpoint has the statistics of the controller."""
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  command(whole, env, path=path)
  process = start(env, killed, path=path)
  assert kill_when(process, reached(killed, 'rl', 10)) == -9
  log = command(killed, env, path=path)
  assert 'Resuming at step' in log
  assert content(killed) == content(whole)
  told = [r for r in content(whole) if 'train/problems/tried' in r]
  assert told[-1]['train/problems/entropy'] < 0.9999


@pytest.mark.slow
def test_two_processes_choose_as_one_does(tmp_path, env):
  base = HOSTS_FUSED | {'data.controller.window': 32, 'rl.steps': 8}
  keys = base | {'data.controller.name': 'priority', 'log_every': 2}
  two = start_worker(env, tmp_path / 'two', 2, [(tmp_path / 'b', keys)])
  finish(two, tmp_path / 'two')
  one = start_worker(env, tmp_path / 'one', 1, [(tmp_path / 'a', keys)])
  finish(one, tmp_path / 'one')
  for x, y in zip(content(tmp_path / 'a'), content(tmp_path / 'b')):
    for key, value in x.items():
      if key.startswith('train/problems') or key == 'train/reward_mean':
        np.testing.assert_allclose(y[key], value, rtol=1e-5, err_msg=key)


@pytest.mark.parametrize(
  'changes, words',
  [
    (dict(name='priorty'), "data.controller.name='priorty': choose one of"),
    (dict(name='band', low=0.9, high=0.1), 'data.controller.low=0.9 is above'),
    (dict(name='band', low=1.5), 'data.controller.low=1.5'),
    (dict(window=0), 'data.controller.window=0'),
    (
      dict(name='priority', rungs=3),
      'data.controller.rungs=3 has no effect: neither',
    ),
    (dict(name='uniform', sources='sec'), "sources='sec' chooses"),
    (dict(name='ladder', rungs=0), 'data.controller.rungs=0'),
  ],
)
def test_bad_controllers_are_named(tmp_path, changes, words):
  c = chosen()
  c.data.controller.update(**changes)
  with pytest.raises(ValueError) as e:
    train.run(c, tmp_path)
  assert words in str(e.value) and '\n' not in str(e.value)


@pytest.mark.parametrize(
  'source, words',
  [
    (dict(name='riddles'), "data.sources.x.name='riddles': choose"),
    (dict(wieght=2), 'unknown key data.sources.x.wieght. Did you mean'),
    (dict(weight=-1), 'data.sources.x.weight=-1: must be a number'),
    (dict(weight=0), 'data.sources.x.weight: all are 0'),
    (dict(weight=dict(by='step', at=[0], values=[])), 'as many values'),
    (dict(weight=dict(by='loss', at=[0], values=[1])), "{'by': 'step'"),
    (
      dict(weight=dict(by='step', at=[0, 9], values=[1, 0])),
      'all weights are 0 at step 9',
    ),
    (dict(knobs=dict(max_opps=3)), 'data.sources.x.knobs.max_opps'),
    (dict(knobs=3), 'data.sources.x.knobs=3: must be a section'),
    (dict(difficulty='hard'), "data.sources.x.difficulty='hard'"),
    (
      dict(name='files', dir='/nowhere'),
      'data.sources.x: data.dir=/nowhere is no',
    ),
    ('arithmetic', "data.sources.x='arithmetic': must be a section"),
  ],
)
def test_bad_sources_are_named(tmp_path, source, words):
  c = chosen()
  c.data.sources = {'x': source}
  with pytest.raises((ValueError, OSError)) as e:
    train.run(c, tmp_path)
  assert words in str(e.value) and '\n' not in str(e.value)


def test_equal_difficulties_are_refused(tmp_path):
  c = chosen(controller='ladder', **{'data.controller.sources': 'free'})
  c.data.sources = {'a': dict(difficulty=2), 'b': dict(difficulty=2)}
  with pytest.raises(ValueError, match='data.controller.name=.ladder.*alike'):
    train.run(c, tmp_path)


@pytest.mark.parametrize('path', ['fused', 'host'])
def test_a_pool_advances_to_its_next_window(tmp_path, path):
  """Six steps of eight problems use two windows of 24, each once. A run that is
  interrupted at any step resumes with its window.
  """
  flat = {'data.controller.refresh': 3, 'checkpoint.every': 1, 'eval.every': 6}
  flat |= {'rollouts.every': 1, 'data.controller.name': 'uniform'}
  c = chosen(path, **flat)
  stats = controlled(train.run(c, tmp_path / 'whole'))
  np.testing.assert_array_equal(stats.visits, 1)
  assert stats.seen.min() == 3 and stats.begun == 0
  asked = []
  for file in sorted((tmp_path / 'whole' / 'rollouts').glob('*.jsonl')):
    asked.append({json.loads(x)['prompt'] for x in file.open()})
  first, second = set.union(*asked[:3]), set.union(*asked[3:])
  assert len(first) == len(second) == 24 and len(first & second) < 6
  if path == 'host':
    return
  # Cut within a window and at its very end.
  for steps in (2, 3):
    part = chosen(path, **flat)
    part.rl.steps = steps
    train.run(part, tmp_path / 'cut')
  train.run(c, tmp_path / 'cut')
  names = ('train/grad_norm', 'train/length_mean', 'train/problems/tried')
  whole, cut = (
    [[r[k] for k in names] for r in rows(tmp_path / x)]
    for x in ('whole', 'cut')
  )
  assert whole == cut


@pytest.mark.parametrize(
  'flat, words',
  [
    ({'data.controller.name': 'none'}, 'refresh=3 has no effect without'),
    ({'rl.steps_per_dispatch': 2, 'rl.path': 'fused'}, 'does not divide'),
    ({'rl.archive': 1}, 'rl.archive=1 and data.controller.refresh=3'),
    ({'rl.shaping.historical': 0.1}, 'rl.shaping.historical=0.1'),
  ],
)
def test_windows_that_cannot_move_are_refused(tmp_path, flat, words):
  c = chosen(**{'data.controller.refresh': 3, 'log_every': 2, 'eval.every': 2})
  c.checkpoint.every = 2
  c.update_from_flattened_dict(flat)
  with pytest.raises(ValueError) as e:
    train.run(c, tmp_path)
  assert words in str(e.value) and '\n' not in str(e.value)
