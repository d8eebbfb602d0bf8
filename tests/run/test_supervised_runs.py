"""Supervised stages choose their loss and their padding."""

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from test_recipe_features import recipe, rows

from jaxrl_reason import config as config_lib
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
@pytest.mark.parametrize('parts', [1, 2])
def test_padding_changes_nothing(padding, parts, whole, tmp_path):
  own = {'sft.padding': padding, 'sft.micro_batches': parts}
  train.run(supervised(**own), tmp_path)
  for got, want in zip(rows(tmp_path, 'sft'), whole, strict=True):
    for key in ('train/loss', 'train/grad_norm'):
      np.testing.assert_allclose(got[key], want[key], rtol=1e-4)


def test_dft_weighs_a_token_by_its_probability():
  """The gradient is that of the plain formula, by autodiff."""
  c = supervised(**{'sft.loss': 'dft'})
  c.data.prompt_len, c.data.completion_len = L.P, L.C
  learner = learners.learner(config_lib.read(c), L.MODEL, 'sft')
  params, sampled = L.model_and_params()[1], L.rollout_batch(L.learner())
  fields = {k: getattr(sampled, k) for k in ('tokens', 'valid', 'mask')}
  batch = programs.supervised_batch(fields)
  adv = step_lib.advantages(learner, batch)
  got, metrics = step_lib.gradients(
    learner, params, batch, adv, Sampling.fixed()
  )

  def plain(params):
    hidden = L.MODEL.hidden(params, batch.tokens, batch.valid)
    logp = jax.nn.log_softmax(L.MODEL.unembed(params, hidden)[:, :-1])
    tokens, mask = batch.tokens[:, 1:, None], batch.mask[:, 1:]
    logp = jnp.take_along_axis(logp, tokens, -1)[..., 0]
    loss = -jax.lax.stop_gradient(jnp.exp(logp)) * logp
    return jnp.where(mask, loss, 0).sum() / mask.sum()

  want, grad = jax.jit(jax.value_and_grad(plain))(params)
  L.assert_close(got, grad)
  np.testing.assert_allclose(metrics['loss'], want, rtol=1e-5)
  assert float(metrics['nll']) > float(metrics['loss'])


def test_a_stage_ends_by_the_likelihood_whatever_its_loss(tmp_path):
  """Of dft the loss is below the bound from the first step on."""
  c = supervised(**{'sft.loss': 'dft', 'sft.stop_loss': 1.0})
  train.run(c, tmp_path)
  found = rows(tmp_path, 'sft')
  assert len(found) == c.sft.steps
  assert all(row['train/loss'] < 1 < row['train/nll'] for row in found)
