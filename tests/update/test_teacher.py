"""Teachers in the update: their scores, gradients and layouts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import losses
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.update import learner as learner_lib
from jaxrl_reason.update import packing, scoring
from jaxrl_reason.update import step as step_lib

NEUTRAL = Sampling.make()
# Another family of sizes, and a vocabulary that is padded further.
OTHER = L.SHAPE | dict(
  layers=3, width=20, heads=5, kv_heads=5, vocab=40, mlp=36
)
_, TEACHER, WEIGHTS = small_model(7, **OTHER)
FORMS = ['advantage', 'k2', 'reverse', 'forward', 'jsd']


def learner(form, which=learner_lib.OWN, **changes):
  settings = {
    'name': 'opd', 'policy': 'log_likelihood', 'distill': form,
  }  # fmt: skip
  settings |= changes.pop('settings', {})
  model = TEACHER if which == learner_lib.OWN else L.MODEL
  teacher = learner_lib.Teacher(model, which)
  changes = {'logprob_chunk': 3} | changes
  return L.learner(settings, teacher=teacher, **changes)


def state(learner):
  own = learner.teacher.weights == learner_lib.OWN
  return L.state(learner).replace(teacher_params=WEIGHTS if own else None)


@pytest.fixture(scope='module')
def batch():
  return L.rollout_batch(L.learner())


def updated(learner, batch):
  f = jax.jit(lambda s, b: step_lib.update(learner, s, b, NEUTRAL, L.ROOT))
  return f(state(learner), batch)


@pytest.fixture(scope='module')
def plain(batch):
  """Returns a function: form -> the update with all padded rows at once."""
  return functools.cache(lambda form: updated(learner(form), batch))


@pytest.fixture(scope='module')
def plain_under(batch):
  """Returns the same function, with the policy under a longer prompt as the
  teacher.
  """
  return functools.cache(
    lambda form: updated(learner(form, learner_lib.POLICY), longer(batch))
  )


def logits(model, params, batch):
  hidden = model.hidden(params, batch.tokens, batch.valid)
  return np.float64(model.unembed(params, hidden))[:, :-1]


def log_softmax(z):
  z = z - z.max(-1, keepdims=True)
  return z - np.log(np.exp(z).sum(-1, keepdims=True))


@pytest.mark.parametrize('form', FORMS)
def test_the_teachers_metric_is_that_of_its_logits(form, batch, plain):
  """Compares with the metric from whole logits in numpy."""
  params = L.model_and_params()[1]
  pi = logits(L.MODEL, params, batch)
  teacher = logits(TEACHER, WEIGHTS, batch)
  tokens, mask = np.asarray(batch.tokens)[:, 1:], np.asarray(batch.mask)[:, 1:]
  at = np.arange(tokens.shape[0])[:, None], np.arange(tokens.shape[1]), tokens
  gap = log_softmax(pi)[at] - log_softmax(teacher)[at]
  # The teacher's vocabulary has padding that the policy's lacks.
  p, t = (
    np.exp(log_softmax(x[..., : L.SHAPE['vocab']])) for x in (pi, teacher)
  )
  m = (p + t) / 2

  def kl(a, b):
    return (a * np.log(a / b)).sum(-1)

  want = {
    'advantage': gap,
    'k2': gap**2 / 2,
    'reverse': kl(p, t),
    'forward': kl(t, p),
    'jsd': (kl(p, m) + kl(t, m)) / 2,
  }[form]
  _, metrics = plain(form)
  found = float(metrics['teacher_kl'])
  np.testing.assert_allclose(found, want[mask].mean(), rtol=1e-4)


@pytest.mark.parametrize(
  'form, which',
  [
    *((form, learner_lib.POLICY) for form in FORMS),
    # Two that read all arrays of a reference: log-probs, and distributions.
    *((form, learner_lib.REFERENCE) for form in ('advantage', 'jsd')),
  ],
)
def test_the_policy_as_its_own_teacher_has_no_gradient(
  form, which, batch, plain
):
  lr = learner(form, which)
  before = state(lr)
  assert (before.ref_params is not None) == (which == learner_lib.REFERENCE)
  new, metrics = updated(lr, batch)
  np.testing.assert_allclose(metrics['teacher_kl'], 0, atol=1e-5)
  np.testing.assert_allclose(metrics['grad_norm'], 0, atol=2e-5)
  assert float(plain(form)[1]['grad_norm']) > 1e-2


HOW = {
  'micro_batches': dict(micro_batches=4),
  'chunk': dict(logprob_chunk=4),
  'packed': dict(packing=packing.Packing(2 * (L.P + L.C)), micro_batches=2),
  'buckets': dict(packing=packing.Lengths(L.P, 2), micro_batches=2),
  'shared': dict(packing=packing.Shared(L.P, 1, L.G, L.B), micro_batches=2),
  'tree': dict(packing=packing.Tree(L.P, 1, L.G, L.B), micro_batches=2),
}


@pytest.mark.parametrize('how', HOW)
def test_a_layout_of_rows_changes_nothing(how, batch, plain):
  """The form `advantage` is tested under another prompt, below."""
  want = plain('jsd')
  got = updated(learner('jsd', **HOW[how]), batch)
  L.assert_close(got[0].params, want[0].params)
  for key in ('teacher_kl', 'loss', 'grad_norm'):
    np.testing.assert_allclose(got[1][key], want[1][key], rtol=1e-4, atol=1e-6)


def under(batch, tokens, valid):
  """Returns the batch with a prompt for the teacher only."""
  return batch.replace(teacher_tokens=tokens, teacher_valid=valid)


def longer(batch):
  """Prepends two tokens to the problem; in even rows one is padding."""
  n = batch.tokens.shape[0]
  first = np.tile([[7, 5]], (n, 1))
  real = np.stack([np.arange(n) % 2 > 0, np.ones(n, bool)], 1)
  tokens = np.concatenate([first, batch.tokens[:, : L.P]], 1)
  valid = np.concatenate([real, batch.valid[:, : L.P]], 1)
  return under(batch, jnp.asarray(tokens), jnp.asarray(valid))


@pytest.mark.parametrize('form', ['advantage', 'jsd'])
def test_the_same_prompt_for_the_teacher_changes_nothing(form, batch, plain):
  same = under(batch, batch.tokens[:, : L.P], batch.valid[:, : L.P])
  want, got = plain(form), updated(learner(form), same)
  L.assert_close(got[0].params, want[0].params)


@pytest.mark.parametrize('form', ['advantage', 'jsd'])
@pytest.mark.parametrize('how', HOW)
def test_a_layout_changes_nothing_under_another_prompt(
  form, how, batch, plain_under
):
  want = plain_under(form)
  lr = learner(form, learner_lib.POLICY, **HOW[how])
  got = updated(lr, longer(batch))
  L.assert_close(got[0].params, want[0].params)
  for key in ('teacher_kl', 'loss', 'grad_norm'):
    np.testing.assert_allclose(got[1][key], want[1][key], rtol=1e-4, atol=1e-6)


def test_the_metric_under_another_prompt_is_that_of_its_logits(batch):
  """Compares with whole rows with that prompt, in numpy."""
  seen, params = longer(batch), L.model_and_params()[1]
  tokens = jnp.concatenate([seen.teacher_tokens, batch.tokens[:, L.P :]], 1)
  valid = jnp.concatenate([seen.teacher_valid, batch.valid[:, L.P :]], 1)
  rows = batch.replace(tokens=tokens, valid=valid)
  pi = log_softmax(logits(L.MODEL, params, batch)[:, -L.C :])
  teacher = log_softmax(logits(L.MODEL, params, rows)[:, -L.C :])
  kl = (np.exp(pi) * (pi - teacher)).sum(-1)
  want = kl[np.asarray(batch.mask)[:, -L.C :]].mean()
  _, metrics = updated(learner('reverse', learner_lib.POLICY), seen)
  np.testing.assert_allclose(float(metrics['teacher_kl']), want, rtol=1e-4)
  assert want > 1e-3 and float(metrics['grad_norm']) > 1e-3


def test_the_gradient_of_a_divergence_is_that_of_whole_logits(batch):
  """Compares with autodiff of the plain formula, without chunks and trainer."""
  lr = learner('forward')
  params = L.model_and_params()[1]
  teacher = jax.nn.softmax(logits(TEACHER, WEIGHTS, batch)[..., :24])

  def whole(params):
    hidden = L.MODEL.hidden(params, batch.tokens, batch.valid)
    pi = jax.nn.log_softmax(L.MODEL.unembed(params, hidden)[:, :-1])
    kl = (teacher * (jnp.log(teacher) - pi)).sum(-1)
    mask = batch.mask[:, 1:]
    return jnp.where(mask, kl, 0).sum() / mask.sum()

  adv = step_lib.advantages(lr, batch)
  assert not np.any(adv)
  other = logprobs.Other(TEACHER, WEIGHTS)
  got, _ = step_lib.gradients(lr, params, batch, adv, NEUTRAL, teacher=other)
  L.assert_close(got, jax.jit(jax.grad(whole))(params))


def gradients(learner, batch, state=state):
  """Returns the gradient at the initial parameters, in one program."""

  @jax.jit
  def f(start, batch):
    full = scoring.add_arrays(learner, start, batch, NEUTRAL)
    adv = step_lib.advantages(learner, full)
    return step_lib.gradients(learner, start.params, full, adv, NEUTRAL)[0]

  return f(state(learner), batch)


def test_a_reward_and_a_teacher_add_up(batch):
  """KDRL's gradient is GRPO's and coef times that of the estimate."""

  def grads(**settings):
    return gradients(learner('k2', settings=dict(settings)), batch)

  coef = 0.3
  reward = dict(name='grpo', kl_coef=0.0, policy='ppo_clip')
  both = grads(**reward, distill_coef=coef)
  alone = grads(distill_coef=1.0, aggregation='seq_mean_token_mean')
  plain = gradients(L.learner(), batch, L.state)
  want = jax.tree.map(lambda x, y: x + coef * y, plain, alone)
  L.assert_close(both, want)


def test_no_array_holds_two_whole_vocabularies(batch):
  """Logits are in chunks of columns, in the forward and the backward pass."""
  lr = learner('jsd')
  f = jax.jit(lambda s, b: step_lib.update(lr, s, b, NEUTRAL, L.ROOT))
  text = f.lower(state(lr), batch).as_text()
  n, t = batch.tokens.shape
  for columns in (t, t - 1, L.C):
    for vocab in (24, 40):
      assert f'tensor<{n}x{columns}x{vocab}xf32>' not in text
  assert f'tensor<{n}x3x24xf32>' in text


def test_later_updates_keep_the_teacher_of_the_step(batch):
  """The policy as its own teacher keeps its parameters from the start of the
  step.
  """
  lr = learner('reverse', learner_lib.POLICY, minibatches=2, settings=dict(
    advantage='group_zscore', policy='ppo_clip'
  ))  # fmt: skip
  _, metrics = updated(lr, batch)
  # In the second update the policy has moved away from it.
  assert float(metrics['teacher_kl']) > 1e-4


def test_weights_in_host_memory_are_named():
  lr = learner('jsd')
  kept = dataclasses.replace(lr.teacher, memory='host')
  assert dataclasses.replace(lr, teacher=kept).offload == ('teacher_params',)
  assert lr.offload == ()


def test_needs_name_the_arrays():
  assert 'teacher_logp' in losses.needs('opd')
  assert 'teacher_kl' in losses.needs('gkd')
