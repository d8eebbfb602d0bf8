"""Divergences from a teacher equal the formulas of their papers in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from losses_batch import Compiled, close

from jaxrl_reason import losses as library

losses = Compiled(library)
RNG = np.random.default_rng(3)
Z, Z_T = RNG.normal(size=(2, 2, 3, 7)) * 2


def softmax(z):
  p = np.exp(z - z.max(-1, keepdims=True))
  return p / p.sum(-1, keepdims=True)


def kl(p, q):
  return (p * np.log(p / q)).sum(-1)


P, T = softmax(Z), softmax(Z_T)


def jsd(p, t, beta):
  """Computes https://arxiv.org/abs/2306.13649, eq. 1, of teacher t and student
  p.
  """
  m = beta * t + (1 - beta) * p
  return beta * kl(t, m) + (1 - beta) * kl(p, m)


def bucketed(p, t, k):
  """Returns the teacher's k likeliest tokens, then the sum of the rest."""
  order = np.argsort(-t, axis=-1)
  out = []
  for x in (p, t):
    x = np.take_along_axis(x, order, -1)
    rest = x[..., k:].sum(-1, keepdims=True)
    out.append(np.concatenate([x[..., :k], rest], -1))
  return out


WANT = {
  ('reverse', 0.5): lambda p, t: kl(p, t),
  ('forward', 0.5): lambda p, t: kl(t, p),
  ('jsd', 0.5): lambda p, t: jsd(p, t, 0.5),
  ('jsd', 0.1): lambda p, t: jsd(p, t, 0.1),
}


@pytest.mark.parametrize('chunk', [None, 4])
@pytest.mark.parametrize('top_k', [0, 1, 3, 7])
@pytest.mark.parametrize('kind, beta', WANT)
def test_a_divergence_is_its_formula(kind, beta, top_k, chunk):
  p, t = bucketed(P, T, top_k) if 0 < top_k < 7 else (P, T)
  how = dict(kind=kind, beta=beta, top_k=top_k, chunk=chunk)
  close(losses.divergence(Z, Z_T, **how), WANT[kind, beta](p, t), 1e-5)


@pytest.mark.parametrize('top_k', [0, 2])
@pytest.mark.parametrize('kind', sorted(library.DIVERGENCES))
def test_an_equal_teacher_has_no_gradient(kind, top_k):
  def total(z):
    return losses.divergence(z, Z, kind=kind, top_k=top_k).sum()

  value, grad = jax.value_and_grad(total)(jnp.asarray(Z))
  np.testing.assert_allclose(value, 0.0, atol=1e-5)
  np.testing.assert_allclose(grad, np.zeros_like(Z), atol=1e-6)


def test_a_gradient_by_finite_differences():
  def total(z):
    return WANT['jsd', 0.3](softmax(z), T).sum()

  WANT['jsd', 0.3] = lambda p, t: jsd(p, t, 0.3)
  want, step = np.zeros_like(Z), 1e-6
  for i in np.ndindex(Z.shape):
    move = np.zeros_like(Z)
    move[i] = step
    want[i] = (total(Z + move) - total(Z - move)) / (2 * step)
  got = jax.grad(
    lambda z: losses.divergence(z, Z_T, kind='jsd', beta=0.3).sum()
  )(jnp.asarray(Z))
  close(got, want, 1e-5)


def test_padding_of_a_vocabulary_is_left_out():
  """A teacher whose vocabulary is padded further has the same tokens."""
  wider = np.concatenate([Z_T, np.full((2, 3, 5), 9.0)], -1)
  close(losses.divergence(Z, wider), kl(P, T), 1e-5)


def test_the_teacher_has_no_gradient():
  def total(z_t):
    return losses.divergence(Z, z_t).sum()

  assert not np.any(jax.grad(total)(jnp.asarray(Z_T)))


def test_the_advantage_of_a_sampled_token():
  """It is A + coef clip(log teacher - log pi), and 0 outside the mask."""
  mask = jnp.array([[1, 1, 0]])
  old = jnp.log(jnp.array([[0.5, 0.1, jnp.nan]]))
  teacher = jnp.log(jnp.array([[0.25, 0.8, jnp.nan]]))
  adv = jnp.array([2.0])
  got = losses.teach(adv, old, teacher, mask, distill_coef=0.5)
  close(got, [[2 - 0.5 * np.log(2), 2 + 0.5 * np.log(8), 0]], 1e-5)
  got = losses.teach(adv, old, teacher, mask, distill_max=1.0)
  close(got, [[2 - np.log(2), 3, 0]], 1e-5)


def test_its_policy_gradient_is_that_of_reverse_kl():
  """The gradients are equal in expectation over the student's tokens."""
  z, z_t = jnp.array([0.2, -0.5, 1.0]), jnp.array([1.0, 0.0, 0.5])
  tokens = jnp.arange(3)
  logp = jax.nn.log_softmax(z)[tokens][:, None]
  teacher = jax.nn.log_softmax(z_t)[tokens][:, None]
  one, reward = jnp.ones((3, 1)), jnp.array([5.0, 0.0, -1.0])
  settings = {'name': 'opd', 'policy': 'log_likelihood'}
  adv = losses.advantages(
    settings, reward, tokens, mask=one, logp=logp, teacher_logp=teacher
  )

  def expected(z):
    logp = jax.nn.log_softmax(z)[tokens]
    return -(jnp.exp(jax.lax.stop_gradient(logp)) * adv[:, 0] * logp).sum()

  exact = jax.grad(lambda z: losses.divergence(z, z_t))(z)
  close(jax.grad(expected)(z), exact, 1e-4)


def test_a_term_is_added_with_its_coefficient():
  """KDRL's loss is GRPO's plus coef times the k2 estimate."""
  rng = np.random.default_rng(0)
  logp, teacher, old = np.log(rng.uniform(0.1, 0.9, (3, 4, 5)))
  mask, adv = rng.uniform(size=(4, 5)) < 0.8, rng.normal(size=4)
  given = dict(old_logp=old, teacher_logp=teacher)
  got, metrics = losses.policy_loss('kdrl', logp, adv, mask, **given)
  bare, _ = losses.policy_loss(
    {'name': 'kdrl', 'distill_coef': 0.0}, logp, adv, mask, old_logp=old
  )
  k2 = (np.square(logp - teacher) / 2)[mask].mean()
  close(metrics['teacher_kl'], k2, 1e-5)
  close(got - bare, 0.002 * k2, 1e-4)


@pytest.mark.parametrize(
  'settings, message',
  [
    (dict(distill='jsd'), 'distill=.jsd. has no effect'),
    (dict(name='gkd', distill_beta=1), 'use a value between 0 and 1'),
    (dict(name='gkd', distill='reverse', distill_beta=0.2), 'distill_beta'),
    (dict(name='gkd', distill_max=2.0), 'distill_max=2.0 has no effect'),
    (dict(name='kdrl', distill_top_k=5), 'distill_top_k=5 has no effect'),
    (dict(name='kdrl', distill='mse'), "distill='mse' is no choice"),
    (dict(name='rover', distill_coef=1.0), 'distill_coef=1.0 gives one per'),
    (
      dict(name='tbrm', distill_coef=1.0, distill='k2'),
      "distill='k2' has no effect",
    ),
    (dict(name='gmpo', distill_coef=1.0), 'distill_coef=1.0 gives one per'),
  ],
)
def test_settings_without_effect_are_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    library.resolve(settings)


@pytest.mark.parametrize('kind', ['reverse', 'forward', 'jsd', 'tv'])
@pytest.mark.parametrize('k', [1, 3, 7])
def test_a_stored_divergence_is_the_formula_of_the_stored_tokens(kind, k):
  """Compares the value, and the gradient with finite differences."""
  ids, logp = library.likeliest(Z_T, k)
  assert ids.shape[-1] == k and logp.shape[-1] == k + 1
  order = np.argsort(-T, axis=-1)[..., :k]
  np.testing.assert_array_equal(ids, order)
  rest = 1 - np.take_along_axis(T, order, -1).sum(-1)
  np.testing.assert_allclose(np.exp(logp[..., -1]), rest, atol=1e-6)

  def want(z):
    p, t = bucketed(softmax(z), T, k) if k < 7 else (softmax(z), T)
    if kind == 'tv':
      return 0.5 * np.abs(p - t).sum(-1)
    return WANT[kind, 0.5](p, t)

  def got(z):
    return losses.stored_divergence(z, ids, logp, kind=kind)

  close(got(Z), want(Z), rtol=1e-4)
  slope = jax.grad(lambda z: got(z).sum())(jnp.asarray(Z))
  step = RNG.normal(size=Z.shape)
  difference = (want(Z + 1e-5 * step) - want(Z - 1e-5 * step)).sum() / 2e-5
  np.testing.assert_allclose((slope * step).sum(), difference, rtol=1e-2)


@pytest.mark.parametrize('kind', ['reverse', 'forward', 'jsd', 'tv'])
def test_stored_tokens_of_another_padding_are_left_out(kind):
  """Padding has no probability under either model."""
  padded = np.pad(Z_T, ((0, 0), (0, 0), (0, 2)), constant_values=-60.0)
  want = losses.divergence(Z, Z_T, kind=kind)
  ids, logp = library.likeliest(padded, 9)
  got = losses.stored_divergence(Z, ids, logp, kind=kind)
  close(got, want, rtol=1e-4)
  wide = np.pad(Z, ((0, 0), (0, 0), (0, 2)), constant_values=-60.0)
  ids, logp = library.likeliest(Z_T, 7)
  got = losses.stored_divergence(wide, ids, logp, kind=kind)
  close(got, want, rtol=1e-4)
