"""Runs with an environment: one program, metrics per turn, resuming."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import run_records
from refusals import refusal

from jaxrl_reason import config as config_lib
from jaxrl_reason.base import Prompts
from jaxrl_reason.models import spec
from jaxrl_reason.run import prepare, stages, train
from jaxrl_reason.run.rl import programs, several_runs
from jaxrl_reason.update import learner as learner_lib
from jaxrl_reason.verifiers import records
from jaxrl_reason.verifiers.tools import calculator

pytestmark = pytest.mark.one_device
WARM = 100  # supervised steps: some turns are calls


def recipe(**rl):
  c = config_lib.default()
  c.data.update(name='products', prompt_len=6, completion_len=24)
  c.data.knobs = dict(min_digits=1, max_digits=2, call=0.7)
  c.model.update(layers=1, width=16, mlp=16, heads=2, kv_heads=2, head_dim=8)
  c.sft.update(steps=4, rows=8, steps_per_dispatch=2)
  c.rl.update(steps=4, prompts=8, samples=4, steps_per_dispatch=2)
  c.rl.update(algorithm='mt_grpo', cache_segments=1)
  c.rl.turns.update(env='calculator', most=2, tokens=8, observation=6)
  c.rl.update(rl)
  c.eval.update(every=4, problems=8, samples=1, harder=False)
  c.checkpoint.update(every=2)
  c.log_every, c.compile_cache = 2, ''
  return c


def lines(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.split('\n') if line]


def built(config, tmp_path):
  """Returns (learner, source, state, prompts [2,B], root, sampling, stop)."""
  p = prepare.prepare(config, tmp_path)
  config = config_lib.read(config)
  learn = stages.learner(config, p.model, 'rl')
  source, encode, sampling = stages.fused_source(
    config.rl, config.data, learn, p.problems.kernel, p.tokenizer
  )
  row = stages.prompt_encoder(config.rl, config.data, p.tokenizer, encode)
  rows = [row(i, p.problems.train[i]) for i in range(16)]
  rows = jax.tree.map(lambda *x: np.stack(x), *rows)
  rows = jax.tree.map(lambda x: x.reshape(2, 8, *x.shape[1:]), rows)
  params = spec.init(p.model.specs, jax.random.key(0))
  state = learner_lib.init_state(learn, params)
  prompts = Prompts(**rows)
  return learn, source, state, prompts, p.root, sampling, p.stop


def test_terms_of_answers_read_those_of_episodes(tmp_path):
  config = recipe()
  config.rl.shaping.repeats = 0.1
  learn, source, state, *rest = built(config, tmp_path)
  state = state.replace(control=learn.chain.init(jnp.int32(0)))
  steps = functools.partial(programs.rl_steps, learn, source)
  _, metrics = jax.eval_shape(steps, state, *rest)
  assert metrics['shaping/repeats'].shape == metrics['answer_entropy'].shape


def test_episodes_and_updates_are_one_program(tmp_path):
  """K steps and several seeds, without a call of the host."""
  learn, source, state, prompts, *rest = built(recipe(), tmp_path)
  root, sampling, stop = rest
  f = jax.jit(programs.rl_steps, static_argnums=(0, 1))
  lowered = f.lower(learn, source, state, prompts, root, sampling, stop)
  text = lowered.as_text()
  for word in ('callback', 'outfeed', 'infeed', 'stablehlo.send'):
    assert word not in text, word
  after, metrics = f(learn, source, state, prompts, *rest)
  assert int(after.step) == 2 and metrics['turns/mean'].shape == (2,)

  def twice(x):
    return jax.tree.map(lambda x: jnp.stack([x, x]), x)

  def same(_):
    return learn, source, sampling

  g = jax.jit(several_runs.rl_seeds, static_argnums=0)
  roots = jnp.stack([root, jax.random.key(9)])
  both, more = g(same, twice(state), twice(prompts), roots, {}, stop)
  np.testing.assert_allclose(
    more['turns/mean'][0], metrics['turns/mean'], rtol=1e-6
  )
  assert not np.allclose(more['length_mean'][0], more['length_mean'][1])


def test_turns_are_credited_by_their_own_rewards(tmp_path):
  """mt_grpo: advantages of a turn's tokens follow its reward. The row's outcome
  belongs to its last turn.
  """
  from jaxrl_reason import batch as batch_lib
  from jaxrl_reason.update import step

  given = built(recipe(), tmp_path)
  learn, source, state, prompts, root, sampling, stop = given
  first = jax.tree.map(lambda x: x[0], prompts)
  sample = jax.jit(source)
  found = sample(state.params, None, first, root, state.step, sampling, stop)
  batch = batch_lib.make_batch(found)
  n = batch.tokens.shape[0]
  own = jnp.where(jnp.arange(2) == 0, jnp.arange(n)[:, None] % 4 * 0.1, 0.0)
  batch = batch.replace(
    reward=own.sum(1),  # only the rewards of turns
    reward_valid=jnp.ones(n, bool),
    episode=batch.episode.replace(reward=own),
    turn=jnp.where(batch.turn > 0, jnp.arange(batch.turn.shape[1]) % 2 + 1, 0),
  )
  adv = np.asarray(step.advantages(learn, batch))
  mask, turn = np.asarray(batch.mask), np.asarray(batch.turn)
  assert not adv[mask & (turn == 2)].any()  # equal rewards have no advantage
  by_row = [
    set(np.round(a[m & (t == 1)], 4)) for a, m, t in zip(adv, mask, turn)
  ]
  assert all(len(values) <= 1 for values in by_row)
  seen = [min(values) for values in by_row[:4] if values]
  assert seen == sorted(seen) and len(set(seen)) > 1


def test_a_run_with_episodes_logs_and_resumes(tmp_path):
  """Checks metrics per turn, samples and resuming. The model loops over layers,
  and trains on the sampled tokens.
  """
  whole = recipe()
  whole.model.update(layers=2, decode_layers='scan')
  train.run(whole, tmp_path / 'whole')
  told = [x for x in lines(tmp_path / 'whole') if 'train/turns/mean' in x]
  assert told and {
    'train/turns/0/length', 'train/turns/1/reward', 'train/turns/malformed',
    'train/turns/cut', 'train/turns/too_many', 'train/reward/env',
    'train/reward/answer',
  } <= set(told[-1])  # fmt: skip
  assert 0 < told[-1]['train/gap_max'] < 1e-5
  run_records.check_resumed(whole, tmp_path / 'whole', tmp_path / 'parts')


@pytest.fixture(scope='module')
def start(tmp_path_factory):
  """Returns a run that has learnt to call the calculator."""
  c = recipe()
  c.stages, c.log_every = ('sft',), WARM
  c.eval.every, c.checkpoint.every = WARM, WARM
  c.sft.update(steps=WARM, rows=64)
  workdir = tmp_path_factory.mktemp('start')
  train.run(c, workdir)
  return workdir


@pytest.fixture(scope='module', params=['fused', 'host'])
def played(request, start, tmp_path_factory):
  """Returns the workdir of a run that plays with these weights."""
  c = recipe(path=request.param, steps=1, steps_per_dispatch=1)
  c.stages, c.init_from = ('rl',), str(start)
  c.rl.turns.observation = 14  # no reply is cut
  c.eval.every, c.rollouts.every, c.checkpoint.every = WARM, 1, WARM
  workdir = tmp_path_factory.mktemp(request.param)
  train.run(c, workdir)
  return workdir


@pytest.mark.parametrize('kind', ['samples', 'rollouts'])
def test_conversations_have_the_turns_of_the_environment(played, kind):
  """Each observation replies to the previous turn."""
  last = sorted((played / kind).glob('*.jsonl'))[-1]
  rows = [row for _, row in records.read(last) if 'conversation' in row]
  assert rows
  if kind == 'samples':
    file = played / 'evaluations' / 'problems.json'
    prompts = json.loads(file.read_text())['heldout']
    assert all(prompts[row['problem']] == row['prompt'] for row in rows)
  for row in rows:
    turns = [(t['role'], t['content']) for t in row['conversation']]
    calls, replies = turns[::2], turns[1::2]
    assert {role for role, _ in calls} == {'policy'}
    assert ''.join(text for _, text in calls) == row['completion']
    for (_, call), reply in zip(calls, replies):
      want = calculator.step(call, {}, None).observation
      assert reply == ('environment', want)
    if kind == 'rollouts':
      told = ''.join(row['tokens']['text'])
      assert told == ''.join(text for _, text in turns)
      assert {'answer', 'env'} <= row['verdict']['parts'].keys()
    elif row['sample'] < 2:
      text = (played / 'samples.txt').read_text()
      assert all(f' {role:12} {said}\n' in text for role, said in turns)


@pytest.mark.parametrize('path', ['fused', 'host'])
def test_observations_and_rewards_are_on_disk(path, tmp_path):
  """This includes the environment's reward, also if it is the only reward. The
  part of this reward has no weight, so the weight does not change which
  episodes count as correct.
  """
  c = recipe(path=path)
  c.stages, c.rollouts.every, c.rl.steps = ('rl',), 1, 2
  c.rl.steps_per_dispatch = 1
  c.rl.rewards, c.rl.turns.reward = {}, 2.0
  train.run(c, tmp_path / 'run')
  (first, *_) = sorted((tmp_path / 'run' / 'rollouts').glob('*.jsonl'))
  rows = [json.loads(x) for x in first.read_text().split('\n') if x]
  assert any(row['reward'] for row in rows)
  assert all(
    row['verdict']['parts'] == {'env': row['reward'] / 2} for row in rows
  )


@pytest.mark.parametrize(
  'change, words',
  [
    ({'turns.env': 'abacus'}, "rl.turns.env='abacus': choose one of"),
    ({'turns.env': ''}, 'rl.turns.most=2 has no effect without rl.turns.env'),
    (
      {'path': 'host', 'steps_per_dispatch': 1, 'turns.env': 'guess'},
      "rl.turns.env='guess' is inside the program",
    ),
    ({'slots': 2}, 'rl.slots=2: with rl.turns.env'),
    (
      {'replay.rows': 4, 'replay.capacity': 8, 'old_logp': 'sampler'},
      'rl.replay.rows=4: with rl.turns.env',
    ),
    ({'turns.tokens': 25}, 'rl.turns.tokens=25 is more than data.completion'),
    ({'turns.most': 0}, 'rl.turns.most=0: must be a whole number'),
    ({'rewards': {'env': {'reward': 'task'}}}, 'rl.rewards.env: that name'),
  ],
)
def test_incompatible_settings_are_refused(change, words):
  assert words in refusal(recipe(), change)


def test_a_tokenizer_that_cannot_write_the_answers_is_refused(tmp_path):
  c = recipe()
  c.data.update(name='arithmetic')
  c.data.knobs = {}
  with pytest.raises(ValueError, match='rl.turns.env: the tokenizer has no'):
    train.run(c, tmp_path / 'run')
