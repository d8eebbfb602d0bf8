"""Runs with completions in chunks: metrics, files, resuming, both paths."""

import json

import numpy as np
import pytest
from refusals import refusal
from tiny_recipe import get_config

from jaxrl_reason import config as config_lib
from jaxrl_reason import evaluate
from jaxrl_reason.evals import evaluation as session
from jaxrl_reason.evals import loading, suites
from jaxrl_reason.planning import phases
from jaxrl_reason.run import train
from jaxrl_reason.run.records import journal

pytestmark = pytest.mark.one_device


def recipe(**rl):
  c = get_config()
  c.stages = ('sft', 'rl')
  c.data.knobs = dict(min_ops=4, max_ops=5, modulus=3, ops='+-', numbered=True)
  c.data.update(prompt_len=16, completion_len=16)
  c.eval.harder = False
  c.sft.steps, c.rl.steps = 4, 4
  c.rl.update(prompts=8, samples=4, parts=1, epochs=1, minibatches=1)
  c.rl.chunks.update(tokens=7, carry=3)
  c.rollouts.update(every=2, problems=2)
  c.rl.update(rl)
  c.compile_cache = ''
  return c


def metric_rows(workdir, stage='rl'):
  """Returns the lines of metrics without timings."""
  text = (workdir / 'metrics.jsonl').read_text()
  found = [json.loads(line) for line in text.split('\n') if line]
  return [
    {k: v for k, v in line.items() if not k.startswith('perf/')}
    for line in found
    if line['stage'] == stage
  ]


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('runs') / 'whole'
  train.run(recipe(), workdir)
  return workdir


def test_chunks_have_metrics_and_are_evaluated(whole):
  lines = [line for line in metric_rows(whole) if 'train/chunks' in line]
  assert lines and all(1 < x['train/chunks'] <= 4 for x in lines)
  assert all(x['train/chunks_max'] <= 4 for x in lines)
  # One update: what is trained is what was sampled.
  (first, *_) = sorted((whole / 'rollouts').glob('*.jsonl'))
  rows = [json.loads(x) for x in first.read_text().split('\n') if x]
  ratios = np.concatenate([row['tokens']['ratio'] for row in rows])
  np.testing.assert_allclose(ratios, 1, atol=1e-4)
  chunks = [max(row['tokens'].get('turn', [0])) for row in rows]
  assert max(chunks) > 0
  for row, last in zip(rows, chunks):
    n = row['length']
    assert last == max(0, -(-(n - 7) // 4))


def test_it_is_evaluated_in_its_chunks(whole, tmp_path):
  """The command uses the run's chunks by default, and a plan without chunks is
  refused.
  """
  given = f'--model={whole}', '--suite=task:arithmetic?n=4', '--k=2'

  def settings(name, *more):
    a = evaluate.parser().parse([*given, *more, f'--out={tmp_path / name}'])
    o = evaluate.options(a)
    suite = suites.load(o.suites[0], loading.full_name(o.models[0]))
    (cell,) = session.cells_of(o, [suite])
    return o, {k: cell.cell.settings.get(k) for k in ('chunk', 'carry')}

  o, found = settings('own')
  assert found == {'chunk': 7, 'carry': 3}
  session.run(o, print, journal.bar)
  assert settings('other', '--chunk=5', '--carry=1')[1]['chunk'] == 5
  assert settings('whole', '--chunk=16', '--carry=1')[1]['chunk'] is None
  for wrong in ('--chunk=4', '--carry=4'):
    with pytest.raises(ValueError, match='--carry='):
      settings('wrong', wrong)
  with pytest.raises(ValueError, match='rl.chunks.tokens=7: a plan counts'):
    phases._refuse_parts(config_lib.read(recipe()).rl)


@pytest.mark.slow
def test_killed_and_resumed_is_the_same(whole, tmp_path):
  half = recipe(steps=2)
  train.run(half, tmp_path / 'parts')
  train.run(recipe(), tmp_path / 'parts')
  assert metric_rows(tmp_path / 'parts')[-1] == metric_rows(whole)[-1]
  kept = [line for line in metric_rows(whole) if 'train/loss' in line]
  again = [
    line for line in metric_rows(tmp_path / 'parts') if 'train/loss' in line
  ]
  assert again[-1] == kept[-1]


@pytest.mark.slow
def test_the_host_path_samples_the_same(whole, tmp_path):
  """The host path samples in pieces and verifies in Python. It is another
  program with the same samples.
  """
  train.run(
    recipe(path='host', steps_per_dispatch=1, steps=2), tmp_path / 'run'
  )
  here = [x for x in metric_rows(tmp_path / 'run') if 'train/loss' in x][0]
  there = [x for x in metric_rows(whole) if 'train/loss' in x][0]
  assert here['step'] == there['step']
  for key in ('reward_mean', 'length_mean', 'chunks', 'loss', 'grad_norm'):
    a, b = here[f'train/{key}'], there[f'train/{key}']
    np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4, err_msg=key)


OLD = {'rl.old_logp': 'sampler'}
# Other features of a step, and the gap of sampler and trainer in nats.
BESIDE = {
  'refill, adapters on int8': (
    {
      'rl.refill_rounds': 2,
      'rl.filter': 'dead_groups',
      'lora.rank': 2,
      'frozen_dtype': 'int8',
    },
    1e-5,
  ),
  'replay': ({'rl.replay.rows': 8, 'rl.replay.capacity': 16, **OLD}, 1e-5),
  'hints': ({'rl.hints.room': 4, 'rl.hints.share': (0.5,)}, 1e-5),
  'hints where all failed, an int8 cache': (
    {
      'rl.hints.room': 4,
      'rl.hints.when': 'failed',
      **OLD,
      'model.cache_dtype': 'int8',
    },
    0.02,
  ),
  'kept groups': (
    {
      'rl.refill_rounds': 2,
      'rl.refill_keep': True,
      **OLD,
      'rl.filter': 'dead_groups',
    },
    1e-5,
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', BESIDE)
def test_other_parts_of_a_step_work_with_chunks(name, tmp_path):
  """Weights are constant, so that all trained rows, also replayed ones, are
  samples of these weights.
  """
  changes, gap = BESIDE[name]
  c = recipe(steps=3, steps_per_dispatch=1)
  c.rollouts.every = 0
  c.log_every = c.sft.steps_per_dispatch = 1
  c.rl.rewards = {'luck': {'reward': 'random'}}  # groups with signal
  for key, value in (changes | {'rl.optimizer.lr': 0.0}).items():
    *sections, last = key.split('.')
    place = c
    for section in sections:
      place = place[section]
    place[last] = value
  train.run(c, tmp_path / 'run')
  lines = [x for x in metric_rows(tmp_path / 'run') if 'train/gap_max' in x]
  assert len(lines) == 3 and all(x['train/chunks'] > 1 for x in lines)
  for x in lines:
    assert 0 < x['train/nll'] and x['train/gap_max'] < gap
    # Also where old log-probs are the sampler's, and the gap is 0.
    assert abs(x['train/nll'] - x['train/nll_sampler']) < gap
  if 'replay' in name:
    assert lines[-1]['train/replay/used'] > 0


@pytest.mark.parametrize(
  'change, words',
  [
    ({'chunks.carry': 0}, 'rl.chunks.carry=0 of rl.chunks.tokens=7: at least'),
    ({'chunks.carry': 7}, 'rl.chunks.carry=7 of rl.chunks.tokens=7: at least'),
    ({'chunks.tokens': 0}, 'rl.chunks.carry=3 of rl.chunks.tokens=0'),
    ({'chunks.tokens': 17}, 'rl.chunks.tokens=17 is more than data.completion'),
    ({'chunks.tokens': -1}, 'rl.chunks.tokens=-1: must be a whole number'),
    ({'slots': 2}, 'rl.slots=2 and rl.chunks.tokens=7 cannot be'),
    ({'padding': 'buckets:2'}, "rl.padding='buckets:2' with rl.chunks.tokens"),
    ({'padding': 'packed:20'}, "rl.padding='packed:20' is less than 16 tokens"),
    ({'algorithm': 'ppo'}, "rl.algorithm='ppo' reads a critic"),
    ({'turns.env': 'calculator'}, "rl.turns.env='calculator' and rl.chunks"),
  ],
)
def test_incompatible_settings_are_refused(change, words):
  assert words in refusal(recipe(), change)


def test_rewards_of_whole_completions_are_refused(tmp_path):
  c = recipe(rewards={'sure': {'reward': 'mean_logp'}})
  with pytest.raises(ValueError, match='rl.rewards read logp of whole compl'):
    train.run(c, tmp_path / 'run')
