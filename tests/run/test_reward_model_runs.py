"""Stages of kind `reward_model`, and rl stages that read their reward."""

import json
import shutil

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from etils import epath
from test_recipe_features import recipe, rows

from jaxrl_reason import config as config_lib
from jaxrl_reason import evaluate, trees
from jaxrl_reason.base import Prompts, Rows
from jaxrl_reason.checkpoints import other_run
from jaxrl_reason.evals import loading
from jaxrl_reason.rollouts import views
from jaxrl_reason.run import prepare, stages, train
from jaxrl_reason.run.rl import learners, programs, reward_models
from jaxrl_reason.update import critics

pytestmark = pytest.mark.one_device


@pytest.fixture(scope='module')
def pairs(tmp_path_factory):
  """Writes sums as problems; the chosen answer begins with 1 and the rejected
  one with 2.
  """
  path = tmp_path_factory.mktemp('pairs') / 'pairs.jsonl'
  with path.open('w') as f:
    for i in range(81):
      row = {'prompt': f'{i % 9}+{i // 9}='}
      row |= {'chosen': f'1{i % 7}', 'rejected': f'2{i % 5}'}
      f.write(json.dumps(row) + '\n')
  return path


def rewarding(pairs, **flat):
  c = recipe(stages=('reward_model',))
  c.reward_model.update(pairs=str(pairs), rows=8, steps=10)
  c.reward_model.optimizer.update(warmup_steps=0, lr=1e-2)
  c.update_from_flattened_dict(flat)
  return c


@pytest.fixture(scope='module')
def rewarded(pairs, tmp_path_factory):
  where = tmp_path_factory.mktemp('rewarded')
  return where, train.run(rewarding(pairs, **{'checkpoint.every': 5}), where)


def test_accuracy_rises_on_pairs_that_are_new(rewarded):
  """The 80 pairs of 10 steps are each seen once."""
  where, state = rewarded
  found = rows(where, 'reward_model')
  assert found[0]['train/loss'] == pytest.approx(np.log(2))
  assert found[0]['train/preferred'] == 0  # the head is zero
  assert found[-1]['train/preferred'] == 1
  assert found[-1]['train/loss'] < 0.4
  assert not jax.tree.leaves(state.opt_state)


def rewards_by_hand(params, tokens, valid):
  """Computes the reward of each row and its last hidden state, in numpy."""
  hidden = np.float64(L.MODEL.hidden(params['body'], tokens, valid))
  last = [int(np.flatnonzero(row)[-1]) for row in np.asarray(valid)]
  hidden = hidden[np.arange(len(last)), last]
  return hidden @ np.float64(params['reward_head']), hidden


def loss_by_hand(params, batch):
  chosen, rejected = (
    rewards_by_hand(params, batch['tokens'][:, i], batch['valid'][:, i])[0]
    for i in (0, 1)
  )
  return np.log1p(np.exp(rejected - chosen)).mean()


def pairs_of_rows(rng, n=4):
  """Returns n pairs of rows that end in different columns."""
  shape = n, 2, L.P + L.C
  valid = (
    np.arange(shape[-1])
    < rng.integers(L.P + 1, L.P + L.C, shape[:2])[..., None]
  )
  valid[..., :2] = False  # padding of prompts
  tokens = rng.integers(1, L.SHAPE['vocab'], shape).astype(np.int32)
  mask = valid & (np.arange(shape[-1]) >= L.P)
  return {'tokens': tokens, 'valid': valid, 'mask': mask}


@pytest.mark.parametrize('micro_batches', [1, 2])
def test_loss_and_gradient_are_those_of_the_formula(micro_batches, pairs):
  c = rewarding(pairs, **{'reward_model.micro_batches': micro_batches})
  c.data.update(prompt_len=L.P, completion_len=L.C)
  c.reward_model.optimizer.update(name='sgd', lr=1.0, clip_norm=0.0)
  learn = learners.learner(config_lib.read(c), L.MODEL, 'reward_model')
  rng, body = np.random.default_rng(0), L.model_and_params()[1]
  params = L.state(learn).critic.params
  params['reward_head'] = jnp.asarray(rng.normal(size=16), jnp.float32)
  state = L.state(learn)
  state = state.replace(critic=state.critic.replace(params=params))
  batch = pairs_of_rows(rng)
  new, metrics = programs.preference_steps(
    learn, state, jax.tree.map(lambda x: x[None], batch), jax.random.key(0)
  )
  want = loss_by_hand(params, batch)
  np.testing.assert_allclose(metrics['loss'][0], want, rtol=1e-5)
  L.assert_close(new.params, body)  # the policy stays
  grad = jax.tree.map(jnp.subtract, params, new.critic.params)  # lr is 1
  (chosen, h), (rejected, g) = (
    rewards_by_hand(params, batch['tokens'][:, i], batch['valid'][:, i])
    for i in (0, 1)
  )
  wrong = 1 / (1 + np.exp(chosen - rejected))
  head = -(wrong[:, None] * (h - g)).mean(0)
  np.testing.assert_allclose(grad['reward_head'], head, rtol=1e-4, atol=1e-6)
  # The gradient of the body: the change of the loss along a random direction.
  step = jax.tree.map(
    lambda x: 1e-2 * rng.normal(size=x.shape).astype(np.float32), body
  )
  slope = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, grad['body'], step)))

  def at(s):
    moved = jax.tree.map(lambda x, d: x + s * d, body, step)
    return loss_by_hand(params | {'body': moved}, batch)

  np.testing.assert_allclose((at(0.1) - at(-0.1)) / 0.2, slope, rtol=2e-2)
  preferred = (chosen > rejected).mean()
  np.testing.assert_allclose(metrics['preferred'][0], preferred)


def flat_critic(state):
  return {k: np.asarray(x) for k, x in trees.flatten(state.critic).items()}


def test_a_resumed_stage_is_the_uninterrupted_one(rewarded, pairs, tmp_path):
  where, want = rewarded
  cut = tmp_path / 'cut'
  shutil.copytree(where, cut)
  shutil.rmtree(cut / 'checkpoints' / '10')
  got = flat_critic(train.run(rewarding(pairs, **{'checkpoint.every': 5}), cut))
  for path, x in flat_critic(want).items():
    np.testing.assert_array_equal(got[path], x)


def test_eight_devices_equal_one(pairs, tmp_path):
  sgd = {'reward_model.optimizer.name': 'sgd', 'reward_model.steps': 3}
  want = train.run(rewarding(pairs, **sgd), tmp_path / 'one')
  got = train.run(rewarding(pairs, **sgd, mesh=(2, 2, 2)), tmp_path / 'eight')
  L.assert_close(got.critic.params, want.critic.params)
  head = got.critic.params['reward_head']
  assert np.abs(head).max() > 1e-4


def test_pairs_without_a_rejected_answer_are_refused(tmp_path):
  path = tmp_path / 'pairs.jsonl'
  path.write_text('{"prompt": "1+1=", "chosen": "2"}\n')
  with pytest.raises(ValueError, match="row 1: its 'rejected' is None"):
    prepare.prepare(rewarding(path), tmp_path / 'run')
  (tmp_path / 'rl').mkdir()
  with pytest.raises(ValueError, match='reward_model.pairs=.* no problem with'):
    prepare.prepare(rewarding(tmp_path / 'rl'), tmp_path / 'run')


def test_a_stage_may_continue_the_reward_model_of_the_one_before(
  pairs, tmp_path
):
  c = rewarding(pairs, stages=('reward_model', 'more'))
  more = dict(steps=2, optimizer=dict(lr=0.0))
  c.named = dict(more=dict(kind='reward_model', keep=('critic',)))
  c.named.more.reward_model = more
  train.run(c, tmp_path / 'kept')
  assert rows(tmp_path / 'kept', 'more')[0]['train/loss'] < 0.5
  c.named.more.keep = ('optimizer',)
  with pytest.raises(ValueError, match="keep='optimizer': the stage has no"):
    train.run(c, tmp_path / 'refused')


def test_adapters_are_a_second_set_of_them(pairs, tmp_path):
  state = train.run(rewarding(pairs, **{'lora.rank': 2}), tmp_path)
  paths = trees.flatten(state.critic.params['body'])
  assert paths and all(path.startswith('lora/') for path in paths)
  assert rows(tmp_path, 'reward_model')[-1]['train/preferred'] > 0.8


def reinforcing(weights, **flat):
  """Returns an rl run whose reward is that of a reward model."""
  c = recipe(**{'rl.optimizer.lr': 1e-2, 'rl.steps': 4} | flat)
  c.rl.reward_model.weights = str(weights)
  c.rl.rewards = dict(
    answer=dict(reward='task', weight=0.0),
    preferred=dict(reward='reward_model', weight=1.0),
  )
  return c


def preferred(workdir):
  return [row['train/reward/preferred'] for row in rows(workdir)]


def test_a_policy_learns_what_the_reward_model_prefers(rewarded, tmp_path):
  """The reward model is from another run, and has another size."""
  where, state = rewarded
  own = {'rl.steps': 20, 'rl.samples': 8, 'model.width': 24}
  got = train.run(reinforcing(where, **own), tmp_path)
  found = preferred(tmp_path)
  assert np.mean(found[-4:]) > np.mean(found[:4]) + 0.2
  jax.tree.map(
    np.testing.assert_array_equal, got.reward_params, state.critic.params
  )


@pytest.mark.parametrize('micro_batches', [1, 4])
def test_the_reward_of_a_step_is_the_head_on_each_row_alone(
  micro_batches, rewarded, tmp_path
):
  where, trained = rewarded
  c = reinforcing(where, **{'rl.micro_batches': micro_batches})
  parts = prepare.prepare(c, tmp_path)
  run, weights = parts.config, trained.critic.params
  learn = learners.learner(run, parts.model, 'rl')
  rest = parts.problems.kernel, parts.tokenizer
  source, encode, sampling = stages.fused_source(run.rl, run.data, learn, *rest)
  row = stages.prompt_encoder(run.rl, run.data, parts.tokenizer, encode)
  prompts = trees.stacked([row(i, parts.problems.train[i]) for i in range(4)])
  prompts = Prompts(**jax.tree.map(jnp.asarray, prompts))
  step, control = jnp.int32(0), {views.REWARD: weights}
  found = jax.jit(source)(
    trained.params, control, prompts, parts.root, step, sampling, parts.stop
  )
  for i, length in enumerate(np.asarray(found.rollout.length)):
    b = i // run.rl.samples
    prompt = np.asarray(prompts.tokens[b])[np.asarray(prompts.valid[b])]
    answer = np.asarray(found.rollout.tokens[i, :length])
    ids = np.concatenate([prompt, answer])[None]
    hidden = parts.model.hidden(weights['body'], ids, ids == ids)[0, -1]
    want = np.float64(hidden) @ np.float64(weights['reward_head'])
    np.testing.assert_allclose(found.reward.parts[i, 1], want, rtol=1e-4)
    np.testing.assert_allclose(found.reward.total[i], want, rtol=1e-4)
  assert np.ptp(found.reward.total) > 0.1


def in_one_run(pairs, **flat):
  """Returns a run whose rl stage reads the reward model of an earlier stage."""
  c = reinforcing('reward_model', stages=('sft', 'reward_model', 'rl'))
  c.reward_model = rewarding(pairs).reward_model
  c.sft.update(steps=2)
  c.update_from_flattened_dict({'checkpoint.every': 2, 'reward_model.steps': 4})
  c.update_from_flattened_dict(flat)
  return c


@pytest.mark.parametrize('rank', [0, 2])
def test_an_rl_stage_reads_the_stage_before_it(rank, pairs, tmp_path):
  """This holds with adapters, and in a resumed run."""
  c = in_one_run(pairs, **{'lora.rank': rank, 'checkpoint.keep': 9})
  want = train.run(c, tmp_path / 'whole')
  ended = other_run.Weights(tmp_path / 'whole', 6)
  paths = trees.flatten(want.reward_params)
  device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  saved = ended.read_arrays({f'critic/params/{k}': device for k in paths})
  for path, x in paths.items():
    np.testing.assert_array_equal(x, saved[f'critic/params/{path}'])
  assert rank == 0 or all('lora' in path for path in paths if 'body' in path)
  cut = tmp_path / 'cut'
  shutil.copytree(tmp_path / 'whole', cut)
  # With rank 2 the run resumes before the first step of the stage, and
  # otherwise in the stage.
  for step in ('10', '8')[: 1 + bool(rank)]:
    shutil.rmtree(cut / 'checkpoints' / step)
  got = train.run(c, cut)
  for path, x in trees.flatten(want.params).items():
    np.testing.assert_array_equal(trees.flatten(got.params)[path], x)
  assert preferred(cut) == preferred(tmp_path / 'whole')


def test_adapters_of_another_run_are_merged(pairs, tmp_path):
  """The rewards are those of the adapters in the run that trained them."""
  lora = {'lora.rank': 2, 'lora.alpha': 64.0}
  state = train.run(
    in_one_run(pairs, **lora, **{'rl.steps': 1}), tmp_path / 'one'
  )
  c = reinforcing(tmp_path / 'one', **{'rl.steps': 1})
  other = train.run(c, tmp_path / 'other')
  assert not any('lora' in path for path in trees.flatten(other.reward_params))
  given = pairs_of_rows(np.random.default_rng(1))
  batch = Rows(given['tokens'][:, 0] % 9, given['valid'][:, 0])
  found = []
  sources = ('stage:rm', lora, state), (f'{tmp_path}/one', {}, other)
  for name, flat, params in sources:
    run = prepare.prepare(recipe(**flat), tmp_path / 'parts')
    own = run.config.model, run.model, run.config.trained_paths
    critic = reward_models.of(name, *own)
    rest = params.reward_params, params.params, batch
    found.append(critics.evaluate(critic, *rest))
  np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
  assert np.ptp(found[0]) > 1e-3


def test_eight_devices_read_the_same_reward(rewarded, tmp_path):
  where, _ = rewarded
  sgd = {'rl.optimizer.name': 'sgd', 'rl.steps': 2}
  train.run(reinforcing(where, **sgd), tmp_path / 'one')
  eight = reinforcing(where, **sgd, mesh=(2, 2, 2))
  got = train.run(eight, tmp_path / 'eight')
  body = trees.flatten(got.reward_params['body'])
  assert len(body['embed'].sharding.device_set) > 1
  assert not body['embed'].sharding.is_fully_replicated
  np.testing.assert_allclose(
    preferred(tmp_path / 'eight'), preferred(tmp_path / 'one'), rtol=1e-3
  )


@pytest.mark.parametrize(
  'flat, message',
  [
    ({'rl.reward_model.weights': 'sft'}, "weights='sft': name a stage of kind"),
    ({'stages': ('rl', 'reward_model')}, "='reward_model': name a stage of"),
    ({'rl.path': 'host'}, "rl.rewards.preferred: 'reward_model' reads"),
  ],
)
def test_a_reward_model_that_cannot_be_read_is_refused(
  flat, message, pairs, tmp_path
):
  with pytest.raises(ValueError, match=message):
    train.run(in_one_run(pairs, **flat), tmp_path)


def test_runs_that_cannot_be_its_source_are_refused(rewarded, tmp_path):
  where, _ = rewarded
  c = reinforcing(where)
  c.data.tokenizer = 'byte'
  with pytest.raises(ValueError, match='has another tokenizer: .* token 2 is'):
    train.run(c, tmp_path / 'byte')
  train.run(recipe(**{'rl.steps': 1}), tmp_path / 'plain')
  with pytest.raises(ValueError, match='has no checkpoint with a reward model'):
    train.run(reinforcing(tmp_path / 'plain'), tmp_path / 'run')
  with pytest.raises(ValueError, match='has no checkpoint of step 7 with'):
    train.run(reinforcing(f'{where}@7'), tmp_path / 'run')


def test_an_evaluation_weights_votes_by_the_reward_model(rewarded, tmp_path):
  """The probability is the sigmoid of the reward of a row without padding."""
  where, state = rewarded
  suite = 'task:arithmetic?min_ops=2&max_ops=3&modulus=3&ops=+-&n=6'
  flags = [f'--suite={suite}', '--k=3', f'--out={tmp_path}', '--top_logprobs=1']
  evaluate.main([f'--model={where}', f'--judge={where}@10', *flags])
  (path,) = (tmp_path / 'answers').glob('*.jsonl')
  found = [json.loads(line) for line in path.read_text().splitlines()]
  params = jax.tree.map(jnp.asarray, state.critic.params)
  tokenizer = loading.load(str(where)).tokenizer
  model = prepare.prepare(recipe(stages=('sft',)), epath.Path(where)).model
  for row in found[:6]:
    ids = tokenizer.encode(row['prompt']) + row['top']['tokens']
    tokens = jnp.array([ids])
    hidden = model.hidden(params['body'], tokens, tokens >= 0)[0, -1]
    reward = float(np.float64(hidden) @ np.float64(params['reward_head']))
    want = 1 / (1 + np.exp(-reward))
    assert row['p_correct'] == pytest.approx(want, abs=1e-4)
  assert len({r['p_correct'] for r in found}) > 3
  text = (tmp_path / 'table.md').read_text()
  assert 'judge_vote@3' in text and 'judge_best@3' in text
  settings = json.loads(path.with_suffix('.json').read_text())
  assert settings['judge'] == f'{where}@10'


@pytest.mark.parametrize(
  'judge, message',
  [
    ('nowhere', "--judge='nowhere': "),
    ('{where}@99', 'has no checkpoint of step 99'),
    ('{plain}', 'has no checkpoint with a reward model or a value head'),
  ],
)
def test_a_judge_that_is_no_reward_model_is_refused(
  judge, message, rewarded, tmp_path, capsys
):
  where = rewarded[0]
  if 'plain' in judge:
    train.run(recipe(stages=('sft',)), tmp_path / 'plain')
  judge = judge.format(where=where, plain=tmp_path / 'plain')
  flags = ['--suite=run:heldout', f'--out={tmp_path / "out"}']
  with pytest.raises(SystemExit):
    evaluate.main([f'--model={where}', f'--judge={judge}', *flags])
  assert message in capsys.readouterr().err
