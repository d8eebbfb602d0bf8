"""Supervised stages with several losses and paddings."""

import json
import shutil
import time

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from test_recipe_features import recipe, rows

from jaxrl_reason import config as config_lib
from jaxrl_reason import losses
from jaxrl_reason.data import pipeline
from jaxrl_reason.logits import Sampling
from jaxrl_reason.run import train
from jaxrl_reason.run.rl import learners, programs
from jaxrl_reason.update import step as step_lib

pytestmark = pytest.mark.one_device


def supervised(**flat):
  c = recipe(stages=('sft',), **flat)
  c.sft.optimizer.warmup_steps = 0
  return c


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  where = tmp_path_factory.mktemp('whole')
  train.run(supervised(), where)
  return rows(where, 'sft')


@pytest.mark.parametrize('padding', ['packed:40', 'buckets:3'])
def test_padding_changes_nothing(padding, whole, tmp_path):
  own = {'sft.padding': padding, 'sft.micro_batches': 2}
  train.run(supervised(**own), tmp_path)
  for got, want in zip(rows(tmp_path, 'sft'), whole, strict=True):
    for key in ('train/loss', 'train/grad_norm'):
      np.testing.assert_allclose(got[key], want[key], rtol=1e-4)


def test_a_line_has_the_cpu_seconds_of_its_steps(whole):
  """The seconds of all lines are at most those of the process."""
  spent = [r['perf/cpu_s'] for r in whole]
  steps = np.diff([0, *(r['step'] for r in whole)])
  assert min(spent) > 0 and np.dot(spent, steps) <= time.process_time()


def learner_and_batch(loss, **own):
  c = supervised(**{'sft.loss': loss} | own)
  c.data.prompt_len, c.data.completion_len = L.P, L.C
  learner = learners.learner(config_lib.read(c), L.MODEL, 'sft')
  sampled = L.rollout_batch(L.learner())
  fields = {k: getattr(sampled, k) for k in ('tokens', 'valid', 'mask')}
  return learner, programs.supervised_batch(fields)


def log_softmax(params, batch):
  """Returns log-probabilities [N,T-1,V] from whole rows, and those [N,T-1] of
  the tokens.
  """
  hidden = L.MODEL.hidden(params, batch.tokens, batch.valid)
  logp = jax.nn.log_softmax(L.MODEL.unembed(params, hidden)[:, :-1])
  tokens = batch.tokens[:, 1:, None]
  return logp, jnp.take_along_axis(logp, tokens, -1)[..., 0]


def test_dft_weighs_a_token_by_its_probability():
  """The gradient is that of the plain formula, by autodiff."""
  learner, batch = learner_and_batch('dft')
  params = L.model_and_params()[1]
  adv = step_lib.advantages(learner, batch)
  got, metrics = step_lib.gradients(
    learner, params, batch, adv, Sampling.fixed()
  )

  def plain(params):
    logp, mask = log_softmax(params, batch)[1], batch.mask[:, 1:]
    loss = -jax.lax.stop_gradient(jnp.exp(logp)) * logp
    return jnp.where(mask, loss, 0).sum() / mask.sum()

  want, grad = jax.jit(jax.value_and_grad(plain))(params)
  L.assert_close(got, grad)
  np.testing.assert_allclose(metrics['loss'], want, rtol=1e-5)
  assert float(metrics['nll']) > float(metrics['loss'])
  # No sampler made these rows, so there is no gap to it.
  assert not {'gap_mean', 'gap_max', 'nll_sampler'} & set(metrics)


@pytest.mark.parametrize('parts', [1, 4])
def test_weights_of_tokens_multiply_the_loss_and_not_its_divisor(parts):
  own = {'sft.micro_batches': parts, 'sft.rows': 32}
  learner, batch = learner_and_batch('sft', **own)
  weight = jax.random.uniform(jax.random.key(1), batch.mask.shape) * 2
  batch, params = batch.replace(token_weight=weight), L.model_and_params()[1]
  adv = step_lib.advantages(learner, batch)
  got, metrics = step_lib.gradients(
    learner, params, batch, adv, Sampling.fixed()
  )

  def plain(params):
    logp, mask = log_softmax(params, batch)[1], batch.mask[:, 1:]
    return -jnp.where(mask, weight[:, 1:] * logp, 0).sum() / mask.sum()

  want, grad = jax.jit(jax.value_and_grad(plain))(params)
  L.assert_close(got, grad)
  np.testing.assert_allclose(metrics['loss'], want, rtol=1e-5)


def pear_weights(ratio, block):
  """Returns the weights of a row's tokens by the formulas of the paper."""
  n = len(ratio)
  if not block:
    return np.full(n, np.exp(ratio.sum()))
  last = [min(t // block * block + block, n) - 1 for t in range(n)]
  later = [0.9 ** (n - 1 - e) * np.exp(ratio[e + 1 :].sum()) for e in last]
  return np.array(later)


@pytest.mark.parametrize('parts, block', [(1, 1), (4, 1), (1, 3), (1, 0)])
def test_pear_weighs_a_token_by_the_ratio_of_the_later_ones(parts, block):
  own = {'sft.micro_batches': parts, 'sft.rows': 32, 'sft.block': block}
  own |= {'sft.gamma': 0.9} if block else {}
  learner, batch = learner_and_batch('pear', **own | {'sft.behaviour': 'logp'})
  params = L.model_and_params()[1]
  behaviour = -3 * jax.random.uniform(jax.random.key(1), batch.mask.shape)
  batch = batch.replace(sampler_logp=behaviour)
  adv = step_lib.advantages(learner, batch)
  got, metrics = step_lib.gradients(
    learner, params, batch, adv, Sampling.fixed()
  )
  logp, mask = np.asarray(log_softmax(params, batch)[1]), batch.mask[:, 1:]
  weight = np.zeros(mask.shape, np.float32)
  for i, row in enumerate(np.asarray(mask)):
    at = np.flatnonzero(row)
    ratio = np.clip(logp[i, at] - behaviour[i, at + 1], -0.08, 0.3)
    weight[i, at] = pear_weights(ratio, block)

  def plain(params):
    logp = log_softmax(params, batch)[1]
    return -jnp.where(mask, weight * logp, 0).sum() / mask.sum()

  want, grad = jax.jit(jax.value_and_grad(plain))(params)
  L.assert_close(got, grad)
  np.testing.assert_allclose(metrics['loss'], want, rtol=1e-5)
  assert len(np.unique(weight.round(3))) > 5


def weighted(folder, weights, **flat):
  """Returns a run on a file; `weights` is a function of the solution."""
  path = folder / 'rows.jsonl'
  with path.open('w') as f:
    for i in range(64):
      solution = f'{i % 7}#{i % 5}'
      row = {'question': f'{i}+1=', 'answer': f'{i % 5}', 'text': solution}
      f.write(json.dumps(row | {'weights': weights(solution)}) + '\n')
  c = supervised(**{'sft.weights': 'weights'} | flat)
  c.data.update(name='files', dir=str(path), tokenizer='byte')
  c.data.knobs, c.data.harder = {}, {}
  c.data.files.update(solution='text', heldout=0.2)
  return c


@pytest.mark.parametrize(
  'other', [{'mesh': (2, 2, 2)}, {'sft.padding': 'packed:64'}]
)
def test_a_run_reads_weights_from_the_data_in_any_layout(other, tmp_path):
  """Only answers have a weight, so the loss is below the likelihood."""
  c = weighted(tmp_path, lambda text: [0.0] * (len(text) - 1) + [0.5])
  train.run(c, tmp_path / 'one')
  c.update_from_flattened_dict(other)
  train.run(c, tmp_path / 'other')
  one, changed = (rows(tmp_path / name, 'sft') for name in ('one', 'other'))
  for got, want in zip(changed, one, strict=True):
    assert want['train/loss'] < want['train/nll'] / 2
    for key in ('train/loss', 'train/nll'):
      np.testing.assert_allclose(got[key], want[key], rtol=2e-3)


@pytest.mark.parametrize('bad', [[1.0], -1])
def test_invalid_weights_are_refused_by_the_row(bad, tmp_path):
  c = weighted(tmp_path, lambda text: bad)
  with pytest.raises(ValueError, match="example 0: sft.weights='weights' is"):
    train.run(c, tmp_path / 'run')


def test_a_number_is_the_weight_of_every_token():
  example = {'task': 'files', 'meta': {'w': 0.25}}
  valid = np.array([0, 1, 1, 1, 1, 0], bool)
  for bad in (None, [1.0, 'x'], [1.0, 2e99], [1.0, -1.0], [[1.0, 1.0]]):
    with pytest.raises(ValueError, match='example 3: sft.weights'):
      own = example | {'meta': {'w': bad}}
      pipeline.weight_row(3, own, 'w', valid, (2, 4))
  found = pipeline.weight_row(0, example, 'w', valid, (2, 4))
  assert found['token_weight'].tolist() == [0, 0, 0.25, 0.25, 0.25, 0]


def moved(params, size):
  return jax.tree.map(
    lambda x: x + size * jnp.cos(jnp.arange(x.size)).reshape(x.shape), params
  )


def test_psft_clips_the_ratio_to_the_policy_before_the_updates():
  own = {'sft.minibatches': 2, 'sft.clip_high': 0.1}
  learner, batch = learner_and_batch('psft', **own)
  old, params = L.model_and_params()[1], moved(L.model_and_params()[1], 0.05)
  before = jnp.pad(log_softmax(old, batch)[1], ((0, 0), (1, 0)))
  batch = batch.replace(old_logp=before)
  adv = step_lib.advantages(learner, batch)
  got, metrics = step_lib.gradients(
    learner, params, batch, adv, Sampling.fixed()
  )

  def plain(params):
    mask = batch.mask[:, 1:]
    ratio = jnp.exp(log_softmax(params, batch)[1] - before[:, 1:])
    return -jnp.where(mask, jnp.minimum(ratio, 1.1), 0).sum() / mask.sum()

  want, grad = jax.jit(jax.value_and_grad(plain))(params)
  L.assert_close(got, grad)
  np.testing.assert_allclose(metrics['loss'], want, rtol=1e-5)
  assert 0 < float(metrics['clip_high']) < 1


@pytest.mark.parametrize('parts', [1, 4])
def test_eksft_leaves_out_uncertain_and_moved_tokens(parts):
  own = {'sft.left_out': 0.3, 'sft.micro_batches': parts, 'sft.rows': 32}
  own |= {'sft.entropy_coef': 0.5, 'sft.kl_coef': 0.2}
  learner, batch = learner_and_batch('eksft', **own)
  params = L.model_and_params()[1]
  ref = moved(params, 0.05)
  state = L.state(learner).replace(ref_params=ref)
  adv = step_lib.advantages(learner, batch)
  teacher = step_lib._other(learner, state)
  got, metrics = step_lib.gradients(
    learner, params, batch, adv, Sampling.fixed(), teacher=teacher
  )
  mask = np.asarray(batch.mask)[:, 1:]
  logp, other = (np.asarray(log_softmax(p, batch)[0]) for p in (params, ref))
  n = int(0.3 * mask.sum())
  entropy = -(np.exp(logp) * logp).sum(-1)
  divergence = (np.exp(logp) * (logp - other)).sum(-1)
  high = [mask & (s >= np.sort(s[mask])[-n]) for s in (entropy, divergence)]
  kept = mask & ~(high[0] | high[1])
  assert 0 < kept.sum() < mask.sum() - n
  share = 0.3 * mask.sum()  # n, before it is rounded

  def plain(params):
    every, logp = log_softmax(params, batch)
    entropy = -(jnp.exp(every) * every).sum(-1)
    divergence = (jnp.exp(every) * (every - other)).sum(-1)
    loss = -jnp.where(kept, logp, 0).sum() / mask.sum()
    loss -= 0.5 * jnp.where(high[0], entropy, 0).sum() / share
    return loss + 0.2 * jnp.where(high[1], divergence, 0).sum() / share

  want, grad = jax.jit(jax.value_and_grad(plain))(params)
  L.assert_close(got, grad)
  np.testing.assert_allclose(metrics['loss'], want, rtol=1e-5)


def test_one_eksft_token_in_ten_by_each_score():
  entropy = jnp.arange(12.0).reshape(2, 6)
  kl = jnp.where(entropy == 3, 9.0, 0.0)
  mask = jnp.ones((2, 6), bool).at[1, 4:].set(False)
  uncertain = losses.uncertain_tokens(entropy, mask, left_out=0.1)
  assert uncertain.tolist() == [[0] * 6, [0, 0, 0, 1, 0, 0]]
  moved = losses.moved_tokens(kl, mask, left_out=0.1)
  assert moved.tolist() == [[0, 0, 0, 1, 0, 0], [0] * 6]
  assert not losses.moved_tokens(0 * kl, mask, left_out=0.1).any()


LOSSES = {
  'psft': {'sft.minibatches': 2, 'sft.clip_high': 0.05},
  'eksft': {'sft.left_out': 0.25},
  'dft': {},
}


@pytest.mark.parametrize(
  'loss, padding, parts',
  [('psft', 'packed:40', 1), ('eksft', 'packed:40', 2)],
)
def test_padding_changes_none_of_these_losses(loss, padding, parts, tmp_path):
  own = {'sft.loss': loss, 'sft.micro_batches': parts} | LOSSES[loss]
  train.run(supervised(**own), tmp_path / 'whole')
  train.run(supervised(**own, **{'sft.padding': padding}), tmp_path / 'packed')
  packed, whole = (rows(tmp_path / x, 'sft') for x in ('packed', 'whole'))
  for got, want in zip(packed, whole, strict=True):
    np.testing.assert_allclose(got['train/nll'], want['train/nll'], rtol=1e-4)


@pytest.mark.parametrize('loss', LOSSES)
def test_a_run_raises_the_likelihood_by_each_loss(loss, whole, tmp_path):
  c = supervised(**{'sft.loss': loss, 'checkpoint.every': 4} | LOSSES[loss])
  c.sft.micro_batches = 2
  train.run(c, tmp_path / 'run')
  found = rows(tmp_path / 'run', 'sft')
  assert len(found) == len(whole)
  assert found[-1]['train/nll'] < found[0]['train/nll']
  assert found[-1]['train/nll'] != whole[-1]['train/nll']
  cut = tmp_path / 'cut'
  shutil.copytree(tmp_path / 'run', cut)
  shutil.rmtree(cut / 'checkpoints' / '8')
  train.run(c, cut)
  assert [r['train/nll'] for r in rows(cut, 'sft')] == [
    r['train/nll'] for r in found
  ]
  c.mesh, c.sft.micro_batches = (2, 2, 2), 1
  train.run(c, tmp_path / 'eight')
  eight = rows(tmp_path / 'eight', 'sft')
  for got, want in zip(eight, found, strict=True):
    np.testing.assert_allclose(got['train/nll'], want['train/nll'], rtol=2e-3)


@pytest.mark.parametrize(
  'flat, message',
  [
    ({'loss': 'dpo'}, 'sft.loss='),
    ({'minibatches': 2}, "minibatches=2 has no effect without sft.loss='psft'"),
    ({'clip_high': 0.1}, "clip_high=0.1 has no effect without sft.loss='psft'"),
    ({'left_out': 0.1, 'loss': 'dft'}, "no effect without sft.loss='eksft'"),
    ({'loss': 'psft'}, 'sft.minibatches=1: with one update'),
    ({'loss': 'psft', 'minibatches': 3}, 'sft.rows'),
  ],
)
def test_settings_without_effect_are_refused(flat, message, tmp_path):
  flat = {f'sft.{key}': value for key, value in flat.items()}
  with pytest.raises(ValueError, match=message):
    train.run(supervised(**flat), tmp_path)


def test_the_progress_bar_is_complete_if_the_likelihood_ends_a_stage(
  tmp_path, capsys
):
  c = supervised(**{'sft.steps': 40, 'sft.stop_loss': 50.0})
  train.run(c, tmp_path)
  end = rows(tmp_path, 'sft')[-1]['step']
  assert end < 40
  last = [x for x in capsys.readouterr().err.splitlines() if 'until nll' in x]
  assert 'sft until nll 50: 100%' in last[-1] and f'{end}/{end}' in last[-1]


def test_a_stage_ends_by_the_likelihood_for_any_loss(tmp_path):
  """The dft loss is below the bound from the first step on."""
  c = supervised(**{'sft.loss': 'dft', 'sft.stop_loss': 1.0})
  train.run(c, tmp_path)
  found = rows(tmp_path, 'sft')
  assert len(found) == c.sft.steps
  assert all(row['train/loss'] < 1 < row['train/nll'] for row in found)


def test_pear_reads_the_log_probs_of_a_field(tmp_path):
  """The loss of the first step is that of the field's weights."""
  own = {'sft.weights': '', 'sft.loss': 'pear', 'sft.behaviour': 'weights'}
  for name, x in (('low', -9.0), ('high', -0.01)):
    c = weighted(
      *(make(tmp_path, name), lambda solution, x=x: [x] * (len(solution) + 1)),
      **own,
    )
    train.run(c, tmp_path / name / 'run')
  low, high = (
    rows(tmp_path / name / 'run', 'sft')[0] for name in ('low', 'high')
  )
  # The policy is likelier than the first author: its weights are above 1.
  assert low['train/loss'] > low['train/nll'] > high['train/loss']
  c = weighted(make(tmp_path, 'short'), lambda solution: [-1.0], **own)
  with pytest.raises(ValueError, match="example 0: sft.behaviour='weights' is"):
    train.run(c, tmp_path / 'short' / 'run')


def test_pear_is_the_same_in_packed_rows(tmp_path):
  own = {'sft.weights': '', 'sft.loss': 'pear', 'sft.behaviour': 'weights'}
  found = []
  for padding in ('whole', 'packed:40'):
    at = make(tmp_path, padding.partition(':')[0])
    own['sft.padding'] = padding
    c = weighted(at, lambda s: [-0.5 * i for i in range(len(s) + 1)], **own)
    train.run(c, at / 'run')
    found.append(rows(at / 'run', 'sft'))
  for a, b in zip(*found, strict=True):
    for key in ('train/loss', 'train/grad_norm'):
      np.testing.assert_allclose(a[key], b[key], rtol=1e-4)


def make(folder, name):
  (folder / name).mkdir()
  return folder / name
