"""The policy as a verifier of its completions: rows by hand, the gradient of an
SFT step on the question, and equality over micro-batches and devices.
"""

import dataclasses

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxrl_reason import sharding
from jaxrl_reason.parts import Chain, Step
from jaxrl_reason.rollouts import filters
from jaxrl_reason.rollouts.own_verdicts import Verdicts
from jaxrl_reason.run.rl import programs
from jaxrl_reason.update import packing
from jaxrl_reason.update import step as step_lib

QUESTION, YES, NO = (5, 7, 6), 9, 10
COEF = 0.7
PART = Verdicts(L.MODEL, QUESTION, YES, NO, parts=2)
SETTINGS = {'sft_coef': COEF, 'sft_on': 'verdict'}


@pytest.fixture(scope='module')
def batch():
  """Returns rows. Some are correct, and some have no verdict."""
  batch = L.rollout_batch(L.learner())
  right = (jnp.arange(L.B * L.G) % 3 == 0).astype(jnp.float32)
  parts = batch.reward_parts.at[:, 0].set(right)
  valid = jnp.arange(L.B * L.G) % 5 != 0
  return batch.replace(reward_parts=parts, reward_valid=valid)


def questions(batch):
  """Returns (tokens without padding, whether it is right) of each row that has
  a verdict.
  """
  out = []
  for i in range(len(batch.tokens)):
    if batch.reward_valid[i]:
      own = np.asarray(batch.tokens[i])[np.asarray(batch.valid[i])]
      out.append(([*own.tolist(), *QUESTION], batch.reward_parts[i, 0] > 0.5))
  return out


@jax.jit
def asked(batch):
  step = Step(None, L.state(L.learner()), L.NEUTRAL, batch, batch, None)
  _, step, metrics = PART.before(None, step)
  return step.batch, metrics


def logp_of(params, rows):
  """Computes log p [n,V] of the token after each question. Padding is on the
  right here, and there is no verdict token.
  """
  ends = np.array([len(ids) for ids, _ in rows])
  tokens = np.zeros((len(rows), max(ends)), np.int32)
  for row, (ids, _) in zip(tokens, rows):
    row[: len(ids)] = ids
  valid = np.arange(max(ends)) < ends[:, None]
  hidden = L.MODEL.hidden(params, jnp.array(tokens), jnp.array(valid))
  last = hidden[np.arange(len(rows)), ends - 1]
  return jax.nn.log_softmax(L.MODEL.unembed(params, last))


def test_the_question_follows_each_row_that_has_a_verdict(batch):
  new, _ = asked(batch)
  t = batch.tokens.shape[1]
  assert new.tokens.shape[1] == t + 4 == t + PART.columns
  want = iter(questions(batch))
  for i in range(len(batch.tokens)):
    own = np.asarray(new.tokens[i])[np.asarray(new.valid[i])].tolist()
    before = np.asarray(batch.tokens[i])[np.asarray(batch.valid[i])].tolist()
    marked = np.flatnonzero(new.observed[i])
    if not batch.reward_valid[i]:
      assert own == before and not marked.size
      continue
    ids, right = next(want)
    assert own == [*ids, YES if right else NO]
    [place] = marked
    assert place == np.flatnonzero(new.valid[i])[-1]
  # No token of the completion is trained on more, or less.
  np.testing.assert_array_equal(new.mask[:, :t], batch.mask)
  assert not new.mask[:, t:].any()
  np.testing.assert_array_equal(new.reward_parts, batch.reward_parts)


def test_metrics_of_the_verdicts(batch):
  _, metrics = asked(batch)
  params, rows = L.model_and_params()[1], questions(batch)
  p = np.exp(jax.jit(lambda params: logp_of(params, rows))(params))
  right = np.array([right for _, right in rows])
  odds = np.log(p[:, YES] / p[:, NO])
  above = odds[right][:, None] > odds[~right]
  want = {
    'accuracy': ((odds > 0) == right).mean(),
    'auroc': above.mean(),
    'loss': -np.log(np.where(right, p[:, YES], p[:, NO])).mean(),
    'mass': (p[:, YES] + p[:, NO]).mean(),
    'right': right.mean(),
  }
  assert 0.05 < want['auroc'] < 0.95
  for name, value in want.items():
    np.testing.assert_allclose(metrics[f'verdict/{name}'], value, rtol=1e-4)


def gradient(learner, batch):
  @jax.jit
  def f(params, batch):
    adv = step_lib.advantages(learner, batch)
    return step_lib.gradients(learner, params, batch, adv, L.NEUTRAL)[0]

  return ravel_pytree(f(L.model_and_params()[1], batch))[0]


@pytest.fixture(scope='module')
def by_sft(batch):
  """Returns the gradient of the cross-entropy of the verdicts after questions
  without padding.
  """
  rows = questions(batch)

  named = np.array([YES if right else NO for _, right in rows])

  def loss(params):
    logp = logp_of(params, rows)[np.arange(len(rows)), named]
    return -COEF * logp.mean()

  return ravel_pytree(jax.jit(jax.grad(loss))(L.model_and_params()[1]))[0]


@pytest.mark.parametrize(
  'how',
  [
    {},
    {'micro_batches': 4},
    {'logprob_chunk': 3, 'micro_batches': 2},
    {'packing': packing.Packing(28)},
    {'packing': packing.Lengths(L.P, 3)},
    {'packing': packing.Shared(L.P, 2, L.G, L.B)},
  ],
  ids=str,
)
def test_the_gradient_adds_that_of_an_sft_step_on_the_question(
  batch, by_sft, how
):
  plain = gradient(L.learner(), batch)
  both = gradient(L.learner(SETTINGS, **how), asked(batch)[0])
  size = float(jnp.abs(by_sft).max())
  assert size > 1e-3 and float(jnp.abs(plain).max()) > 1e-3
  np.testing.assert_allclose(both - plain, by_sft, rtol=1e-3, atol=1e-4 * size)


def test_eight_devices_change_nothing(batch):
  learner = L.learner(SETTINGS, micro_batches=2)
  want = *asked(batch), gradient(learner, asked(batch)[0])
  mesh = sharding.make_mesh((2, 2, 2))
  with jax.set_mesh(mesh):
    laid = jax.device_put(batch, sharding.row_sharding(mesh))
    new, metrics = asked(laid)
    got = new, metrics, gradient(learner, new)
  L.assert_close(got[1:], want[1:])
  jax.tree.map(np.testing.assert_array_equal, got[0], want[0])


def test_rows_without_trained_tokens_still_have_a_verdict(batch):
  learner = L.learner(SETTINGS)
  new, _ = asked(batch.replace(mask=jnp.zeros_like(batch.mask)))
  part = learner.objective.likelihood
  given = new.mask, new.reward, new.reward_valid, new.observed
  np.testing.assert_array_equal(part.tokens(*given), new.observed)
  assert new.observed.sum() == batch.reward_valid.sum() > 0


def test_rows_that_a_filter_drops_have_their_verdict(batch):
  keeps = filters.Selection(filters.make('best', {'keep': 2}), 0, L.C)
  step = Step(None, L.state(L.learner()), L.NEUTRAL, batch, batch, None)
  _, step, _ = keeps.before(None, step)
  assert not np.all(step.batch.reward_valid[np.asarray(batch.reward_valid)])
  new = PART.before(None, step)[1].batch
  np.testing.assert_array_equal(new.observed.any(axis=1), batch.reward_valid)


@pytest.mark.parametrize('how', [{}, SETTINGS], ids=['alone', 'verdicts'])
def test_a_step_that_waits_for_tokens_trains_verdicts(batch, how):
  """Without a row to train on, verdicts alone make an update."""
  learner = L.learner(how, waits=True)
  batch = batch.replace(mask=jnp.zeros_like(batch.mask))
  new = asked(batch)[0] if how else batch
  state, key = L.state(learner), L.ROOT
  step = jax.jit(programs._update_or_wait, static_argnums=0)
  after, metrics = step(learner, state, new, L.NEUTRAL, key)
  assert after.step == 1 and (metrics['grad_norm'] > 0) == bool(how)


def test_the_step_trains_the_verdicts():
  """The fused step lowers the loss of verdicts. No reward would lower it."""
  learner = L.learner(SETTINGS, lr=0.05)
  learner = dataclasses.replace(learner, chain=Chain((PART,)))
  step = jax.jit(lambda s, p: L.fused(learner, s, p))
  state, seen = L.state(learner), []
  for _ in range(6):
    state, metrics = step(state, L.prompts())
    seen.append(float(metrics['verdict/loss']))
    assert metrics['sft_loss'] == pytest.approx(seen[-1], rel=1e-3)
  assert seen[-1] < 0.7 * seen[0]
