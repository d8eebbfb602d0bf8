"""Reward models of labels of steps, and rl stages that read their reward."""

import json
import shutil

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from test_recipe_features import recipe, rows

from jaxrl_reason import config as config_lib
from jaxrl_reason import trees
from jaxrl_reason.base import Rows
from jaxrl_reason.data import step_labels
from jaxrl_reason.run import prepare, train
from jaxrl_reason.run.rl import learners, programs
from jaxrl_reason.update import critics

pytestmark = pytest.mark.one_device


@pytest.fixture(scope='module')
def labels(tmp_path_factory):
  """Writes sums as problems, with steps of a digit: 1 is right, 2 is wrong."""
  path = tmp_path_factory.mktemp('labels') / 'labels.jsonl'
  rng = np.random.default_rng(0)
  with path.open('w') as f:
    for i in range(88):
      steps = rng.integers(1, 3, 1 + i % 3).tolist()
      row = {'prompt': f'{i % 9}+{i // 9}=', 'labels': [x == 1 for x in steps]}
      row['completions'] = [str(x) for x in steps]
      f.write(json.dumps(row) + '\n')
  return path


def labelled(labels, **flat):
  c = recipe(stages=('reward_model',))
  c.reward_model.update(labels=str(labels), separator=' ', rows=8, steps=30)
  c.reward_model.optimizer.update(warmup_steps=0, lr=2e-2)
  c.update_from_flattened_dict(flat)
  return c


@pytest.fixture(scope='module')
def rewarded(labels, tmp_path_factory):
  where = tmp_path_factory.mktemp('rewarded')
  flat = {'checkpoint.every': 15, 'reward_model.heldout': 8, 'eval.every': 30}
  return where, train.run(labelled(labels, **flat), where)


def test_held_out_accuracy_rises(rewarded):
  where, state = rewarded
  found = rows(where, 'reward_model')
  assert found[0]['train/loss'] == pytest.approx(np.log(2))  # the head is zero
  assert found[0]['train/steps/wrong_found'] == found[0]['train/steps/wrong']
  assert found[-1]['train/loss'] < 0.4
  held = rows(where, 'reward_model', key='eval/steps/accuracy')
  before, after = (held[i]['eval/steps/accuracy'] for i in (0, -1))
  wrong = held[0]['eval/steps/wrong']
  assert before == pytest.approx(wrong) and after > 0.9
  assert held[-1]['eval/steps/wrong_found'] > 0.9 * wrong
  assert not jax.tree.leaves(state.opt_state)


def test_a_row_has_its_labels_at_the_ends_of_its_steps(labels, tmp_path):
  parts = prepare.prepare(labelled(labels), tmp_path)
  c, d = parts.config.reward_model, parts.config.data
  encode = step_labels.encoder(c, d, parts.tokenizer)
  given = {'completions': ['12', '3', '4'], 'labels': [True, False, True]}
  row = encode(0, given | {'prompt': '1+1='})
  ids = row['tokens'][0][d.prompt_len :]
  text = parts.tokenizer.decode(ids[row['valid'][0][d.prompt_len :]].tolist())
  assert text == '12 3 4'
  at = np.flatnonzero(row['mask'][0]) - d.prompt_len
  assert at.tolist() == [2, 4, 6]  # two blanks, and the stop token
  assert row['step_label'][0][row['mask'][0]].tolist() == [1, 0, 1]
  assert not row['step_label'][0][~row['mask'][0]].any()


def logits_by_hand(params, tokens, valid):
  """Returns logits [N,T] and hidden states [N,T,D], in numpy."""
  hidden = np.float64(L.MODEL.hidden(params['body'], tokens, valid))
  return hidden @ np.float64(params['reward_head']), hidden


def labels_of_rows(rng, n=4):
  """Returns n rows with labels at random tokens, and at least one wrong."""
  shape = n, L.P + L.C
  valid = np.arange(shape[1]) < rng.integers(L.P + 2, shape[1], n)[:, None]
  valid[:, :2] = False  # padding of prompts
  own = valid & (np.arange(shape[1]) >= L.P)
  ends = own & (rng.random(shape) < 0.6)
  label = np.float32(ends & (rng.random(shape) < 0.5))
  tokens = rng.integers(1, L.SHAPE['vocab'], shape).astype(np.int32)
  return {'tokens': tokens, 'valid': valid, 'mask': ends, 'step_label': label}


@pytest.mark.parametrize('micro_batches', [1, 2])
def test_loss_and_gradient_are_those_of_the_formula(micro_batches, labels):
  c = labelled(labels, **{'reward_model.micro_batches': micro_batches})
  c.data.update(prompt_len=L.P, completion_len=L.C)
  c.reward_model.optimizer.update(name='sgd', lr=1.0, clip_norm=0.0)
  learn = learners.learner(config_lib.read(c), L.MODEL, 'reward_model')
  rng = np.random.default_rng(0)
  state = L.state(learn)
  params = state.critic.params
  params['reward_head'] = jnp.asarray(rng.normal(size=16), jnp.float32)
  state = state.replace(critic=state.critic.replace(params=params))
  row = labels_of_rows(rng)
  new, metrics = programs.preference_steps(
    learn, state, {k: x[None, :, None] for k, x in row.items()},
    jax.random.key(0),
  )  # fmt: skip
  z, hidden = logits_by_hand(params, row['tokens'], row['valid'])
  on, y = row['mask'], row['step_label']
  p, n = 1 / (1 + np.exp(-z)), on.sum()
  want = -np.log(np.where(y == 1, p, 1 - p))[on].mean()
  np.testing.assert_allclose(metrics['loss'][0], want, rtol=1e-5)
  grad = np.einsum('nt,ntd->d', np.where(on, p - y, 0), hidden) / n
  got = params['reward_head'] - new.critic.params['reward_head']  # lr is 1
  np.testing.assert_allclose(got, grad, rtol=1e-4, atol=1e-6)
  right = ((p > 0.5) == (y == 1))[on].mean()
  np.testing.assert_allclose(metrics['steps/accuracy'][0], right, rtol=1e-6)
  wrong = (on & (y == 0)).sum() / n
  np.testing.assert_allclose(metrics['steps/wrong'][0], wrong, rtol=1e-6)


@pytest.mark.parametrize('how', ['min', 'mean', 'product'])
def test_the_reward_is_that_of_the_steps_of_the_completion(how, labels):
  c = labelled(labels)
  c.data.update(prompt_len=L.P, completion_len=L.C)
  learn = learners.learner(config_lib.read(c), L.MODEL, 'reward_model')
  rng, state = np.random.default_rng(1), L.state(learn)
  params = state.critic.params
  params['reward_head'] = jnp.asarray(rng.normal(size=16), jnp.float32)
  row = labels_of_rows(rng, 6)
  tokens = np.where(rng.random(row['tokens'].shape) < 0.4, 5, row['tokens'])
  z, _ = logits_by_hand(params, tokens, row['valid'])
  got = critics.over_steps(
    learn.critic, how, jnp.array([5]), L.C, params, state.params,
    Rows(jnp.asarray(tokens), jnp.asarray(row['valid'])),
  )  # fmt: skip
  f, many = {'min': np.min, 'mean': np.mean, 'product': np.prod}[how], 0
  for i, (ids, there) in enumerate(zip(tokens, row['valid'])):
    own = np.flatnonzero(there)
    ends = [t for t in own if t >= L.P and (ids[t] == 5 or t == own[-1])]
    want = f(1 / (1 + np.exp(-z[i, ends])))
    np.testing.assert_allclose(got[i], want, rtol=1e-5)
    many += len(ends) > 1 and np.any(ids[: L.P][there[: L.P]] == 5)
  assert many > 2  # separators in prompts do not count


def flat_critic(state):
  return {k: np.asarray(x) for k, x in trees.flatten(state.critic).items()}


def test_a_resumed_stage_is_the_uninterrupted_one(rewarded, labels, tmp_path):
  where, want = rewarded
  cut = tmp_path / 'cut'
  shutil.copytree(where, cut)
  shutil.rmtree(cut / 'checkpoints' / '30')
  flat = {'checkpoint.every': 15, 'reward_model.heldout': 8, 'eval.every': 30}
  got = flat_critic(train.run(labelled(labels, **flat), cut))
  for path, x in flat_critic(want).items():
    np.testing.assert_array_equal(got[path], x)


def test_eight_devices_equal_one(labels, tmp_path):
  sgd = {'reward_model.optimizer.name': 'sgd', 'reward_model.steps': 3}
  want = train.run(labelled(labels, **sgd), tmp_path / 'one')
  got = train.run(labelled(labels, **sgd, mesh=(2, 2, 2)), tmp_path / 'eight')
  L.assert_close(got.critic.params, want.critic.params)
  assert np.abs(got.critic.params['reward_head']).max() > 1e-4


def reinforcing(weights, **flat):
  c = recipe(**{'rl.optimizer.lr': 1e-2, 'rl.steps': 20, 'rl.samples': 8})
  c.rl.reward_model.update(weights=str(weights), steps='mean', separator=' ')
  c.rl.rewards = dict(
    answer=dict(reward='task', weight=0.0),
    steps=dict(reward='reward_model', weight=1.0),
  )
  c.update_from_flattened_dict(flat)
  return c


def test_a_policy_learns_the_steps_that_the_model_prefers(rewarded, tmp_path):
  where, _ = rewarded
  train.run(reinforcing(where), tmp_path)
  found = [row['train/reward/steps'] for row in rows(tmp_path)]
  assert all(0 <= x <= 1 for x in found)
  assert np.mean(found[-4:]) > np.mean(found[:4]) + 0.1


@pytest.mark.parametrize(
  'row, message',
  [
    ({'labels': [True]}, 'row 1: it has 2 steps in completions and 1 labels'),
    ({'labels': [True, 0.5]}, "its 'labels' must be a list of true and false"),
    ({'labels': None}, "its 'labels' is None: a list is needed"),
    ({'completions': '1 2'}, "its 'completions' is '1 2': a list is needed"),
    ({'completions': ['1', '']}, "its 'completions' must be a list of texts"),
    ({'prompt': ''}, "its 'prompt' is ''"),
    ({'completions': ['1', '2 3']}, 'into 3 steps, and there are 2 labels'),
  ],
)
def test_rows_that_cannot_be_labelled_are_refused(row, message, tmp_path):
  path = tmp_path / 'labels.jsonl'
  whole = {'prompt': '1+1=', 'completions': ['1', '2'], 'labels': [True, False]}
  path.write_text(json.dumps(whole | row) + '\n')
  with pytest.raises(ValueError, match=message):
    prepare.prepare(labelled(path), tmp_path / 'run')


@pytest.mark.parametrize(
  'flat, message',
  [
    ({'reward_model.separator': ''}, 'set reward_model.separator to the text'),
    ({'reward_model.separator': '12'}, "'12' is the text of 2 tokens"),
    ({'reward_model.pairs': 'x.jsonl'}, "pairs='x.jsonl' and reward_model.lab"),
    ({'reward_model.labels': ''}, "separator=' ' has no effect without"),
  ],
)
def test_settings_that_cannot_work_are_refused(flat, message, labels, tmp_path):
  with pytest.raises(ValueError, match=message):
    prepare.prepare(labelled(labels, **flat), tmp_path)


@pytest.mark.parametrize(
  'flat, message',
  [
    ({'rl.reward_model.steps': ''}, 'was trained on labels of steps'),
    ({'rl.reward_model.separator': '#'}, "separator='#': the stage has ' '"),
    ({'rl.reward_model.separator': ''}, 'set rl.reward_model.separator'),
    ({'rl.reward_model.steps': 'max'}, "steps='max': choose"),
    (
      {'reward_model.labels': '', 'reward_model.separator': '',
       'reward_model.pairs': 'x.jsonl'},
      'was trained on pairs',
    ),
  ],
)  # fmt: skip
def test_a_stage_reads_the_model_as_it_was_trained(flat, message, labels):
  c = reinforcing('reward_model', stages=('reward_model', 'rl'))
  c.reward_model = labelled(labels).reward_model
  c.update_from_flattened_dict(flat)
  with pytest.raises(ValueError, match=message):
    train.run(c, '/nowhere')
