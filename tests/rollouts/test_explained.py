"""Demonstrations that the policy samples under a prompt with the answer."""

import functools

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import trees
from jaxrl_reason.base import Reward, Trajectories
from jaxrl_reason.rollouts import fused, rescue, rounds
from jaxrl_reason.update import scoring
from jaxrl_reason.update import step as step_lib

DEMOS = 2
LEARNER = L.learner({'name': 'luffy'})


def solves(rollout, answers, control=None):
  first = rollout.tokens[:, 0]
  total = ((first == 8) | (first == 14)).astype(jnp.float32)
  return Reward(total, total[:, None], total >= 0)


def problems():
  return L.prompts()


def shown():
  """Returns the other prompts of the same problems."""
  p = problems()
  tokens = np.where(np.arange(L.P) < 2, 0, (p.tokens + 5) % 20 + 2)
  return p.replace(tokens=np.int32(tokens), valid=tokens > 0)


def both():
  """Returns prompts as the pipeline encodes them."""
  p = problems()
  return shown().replace(train_tokens=p.tokens, train_valid=p.valid)


@functools.cache
def found(when, reward=solves):
  source = fused.FusedSource(L.GEN, reward)
  source = rounds.nested(source, (rescue.Explained(DEMOS, when),))
  params = L.model_and_params()[1]
  return jax.jit(lambda p: source(params, {}, p, L.ROOT, 0, L.NEUTRAL, L.STOP))(
    both()
  )


@functools.cache
def one_round(i):
  """Samples one of the rounds alone."""
  source = fused.FusedSource(L.GEN, solves)
  key = rounds.key_of_round(L.ROOT, 'demos', jnp.int32(i))
  params = L.model_and_params()[1]
  return jax.jit(lambda p: source(params, {}, p, key, 0, L.NEUTRAL, L.STOP))(
    shown() if i else problems()
  )


def replaced(when) -> np.ndarray:
  """Returns for each row the row of round 1 that replaces it, or -1."""
  right = [
    np.asarray(one_round(i).reward.total).reshape(L.B, L.G) > 0.5
    for i in range(2)
  ]
  out = np.full((L.B, L.G), -1)
  for b in range(L.B):
    if when == 'failed' and right[0][b].any():
      continue
    chosen = np.flatnonzero(right[1][b])[:DEMOS]
    for k, g in enumerate(chosen):
      out[b, L.G - 1 - k] = b * L.G + g
  return out.ravel()


@pytest.mark.parametrize('when', rescue.WHEN)
def test_correct_explanations_replace_the_last_samples(when):
  step, source = found(when), replaced(when)
  first, second = one_round(0), one_round(1)
  used = source >= 0
  assert 0 < used.sum() < len(used)

  def expected(own, other):
    own, other = np.asarray(own), np.asarray(other)
    mark = used.reshape(-1, *[1] * (own.ndim - 1))
    return np.where(mark, other[source], own)

  for name in ('tokens', 'sampled', 'length', 'truncated', 'turn'):
    want = expected(getattr(first.rollout, name), getattr(second.rollout, name))
    np.testing.assert_array_equal(getattr(step.rollout, name), want)
  np.testing.assert_array_equal(step.rollout.is_demo, used)
  want = expected(first.reward.total, second.reward.total)
  np.testing.assert_array_equal(step.reward.total, want)
  want = expected(first.rollout.logp, np.zeros((L.B * L.G, L.C)))
  np.testing.assert_array_equal(step.rollout.logp, want)
  groups = used.reshape(L.B, L.G).any(axis=1)
  metrics = step.account.metrics
  np.testing.assert_allclose(metrics['demos/groups'], groups.mean())


def test_rows_are_trained_on_under_the_problem_alone():
  """The log-probs and the update equal those of rows without a trace of the
  other prompt.
  """
  step, used = found('always'), replaced('always') >= 0
  plain = Trajectories(problems(), step.rollout, step.reward)
  batch, want = (batch_lib.make_batch(x) for x in (step, plain))
  prompts = np.repeat(problems().tokens, L.G, axis=0)
  np.testing.assert_array_equal(batch.tokens[:, : L.P], prompts)
  mask = np.asarray(batch.mask)
  demo = np.asarray(batch.is_offpolicy)
  np.testing.assert_array_equal(demo, mask & used[:, None])
  # Scores from whole logits in numpy.
  model, params = L.model_and_params()
  tokens = np.concatenate([prompts, np.asarray(step.rollout.tokens)], axis=1)
  hidden = model.hidden(params, jnp.asarray(tokens), batch.valid)
  z = np.float64(model.unembed(params, hidden))[:, :-1]
  z -= np.log(np.exp(z).sum(-1, keepdims=True))
  logp = np.take_along_axis(z, tokens[:, 1:, None], axis=-1)[..., 0]
  state = L.state(LEARNER)
  got, _ = scoring.scores(LEARNER, state.params, batch, L.NEUTRAL, 1)
  np.testing.assert_allclose(
    np.asarray(got)[mask], logp[mask[:, 1:]], rtol=1e-4, atol=1e-5
  )
  sampler = np.asarray(one_round(1).rollout.logp)[replaced('always')[used]]
  there = np.asarray(step.rollout.sampled)[used]
  gap = np.asarray(got)[used][:, L.P :] - sampler
  assert np.abs(gap[there]).max() > 1e-2
  update = jax.jit(
    lambda b: step_lib.update(LEARNER, state, b, L.NEUTRAL, L.ROOT)
  )
  a, b = update(batch), update(want)
  jax.tree.map(np.testing.assert_array_equal, a[0].params, b[0].params)
  assert float(a[1]['grad_norm']) > 0


def test_explanations_are_no_samples_of_the_policy():
  seen = found('always').account.seen
  own = np.asarray(seen.own)
  assert own[0].all() and not own[1].any() and seen.reward_valid[1].any()


def test_a_step_without_a_failed_group_has_one_round():
  def always(rollout, answers, control=None):
    total = jnp.ones(rollout.length.shape)
    return Reward(total, total[:, None], total > 0)

  step = found('failed', always)
  np.testing.assert_array_equal(step.account.ran, [True, False])
  assert not np.any(step.rollout.is_demo)
  assert step.account.metrics['demos/groups'] == 0
  for path, x in trees.flatten(step.rollout.replace(is_demo=None)).items():
    np.testing.assert_array_equal(
      x, trees.flatten(one_round(0).rollout)[path], err_msg=path
    )
