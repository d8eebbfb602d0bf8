"""KL estimators: expectations on a small vocabulary, precision, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from losses_batch import close

from jaxrl_reason import losses


@pytest.fixture(scope='module')
def policies():
  rng = np.random.default_rng(0)
  return rng.normal(size=(2, 6)), np.log(rng.dirichlet(np.ones(6), 2))


def kl(p, q):
  return (np.exp(p) * (p - q)).sum(-1)


def log_softmax(z):
  return z - np.log(np.exp(z).sum(-1, keepdims=True))


def test_golden_values():
  """d = ln 2: 1/r = 1/2."""
  logp, ref = jnp.log(jnp.array([0.5])), jnp.log(jnp.array([0.25]))
  d = np.log(2)
  want = dict(k1=d, k2=d * d / 2, k3=d - 0.5, abs=d, forward=0.5 - d / 2)
  want.update({name + '+': want[name] for name in ('k1', 'k3', 'abs')})
  assert set(want) == set(losses.KL_ESTIMATORS)
  for name, value in want.items():
    close(losses.kl_penalty(logp, ref, name), [value], 1e-6, name)
    slope = dict(k1=1, k2=d, k3=0.5, abs=1, forward=0.5 * d)
    slope.update({'k1+': d, 'k3+': d, 'abs+': d})
    grad = jax.grad(lambda lp, k: losses.kl_penalty(lp, ref, k).sum())(
      logp, name
    )
    close(grad, [slope[name]], 1e-5, name)
  close(losses.kl_penalty(logp, ref, 'k1', kl_max=0.5), [0.5], 1e-6)


def test_expectations(policies):
  """k1 and k3 average to KL(pi || ref), 'forward' to KL(ref || pi)."""
  logits, ref = policies
  logp = log_softmax(logits)

  def mean(name):
    return (np.exp(logp) * np.float64(losses.kl_penalty(logp, ref, name))).sum(
      -1
    )

  close(mean('k1'), kl(logp, ref), 1e-5)
  close(mean('k3'), kl(logp, ref), 1e-5)
  close(mean('forward'), kl(ref, logp), 1e-5)
  assert np.all(losses.kl_penalty(logp, ref, 'k3') >= 0)


def test_expected_gradients_of_the_estimators(policies):
  """In expectation, k2 and '+' have the gradient of reverse KL, k3 that of
  forward KL, and k1 none.
  """
  logits, ref = policies
  p = np.exp(log_softmax(logits))

  def expected(name):
    def surrogate(z):
      estimate = losses.kl_penalty(jax.nn.log_softmax(z), ref, name)
      return (p * estimate).sum()

    return jax.grad(surrogate)(jnp.asarray(logits))

  def exact(direction):
    return jax.grad(lambda z: losses.divergence(z, ref, kind=direction).sum())(
      jnp.asarray(logits)
    )

  for name in ('k2', 'k1+', 'k3+', 'abs+'):
    close(expected(name), exact('reverse'), 1e-4, name)
  close(expected('k3'), exact('forward'), 1e-4)
  close(expected('k1'), np.zeros((2, 6)), 1e-4)


@pytest.mark.parametrize(
  'd', [1e-6, -1e-4, 1e-3, 0.1, -0.249, 0.251, -0.251, 3.0]
)
def test_k3_keeps_its_digits(d):
  """Near 0, exp(d) - 1 - d has no correct digit in float32 by the plain
  formula.
  """
  logp, ref = np.float32(-1.0), np.float32(-1.0 + d)
  exact_d = float(np.float64(ref) - np.float64(logp))
  exact = sum(
    exact_d**n / np.prod(range(1, n + 1), dtype=float) for n in range(2, 30)
  )
  got = losses.kl_penalty(logp, ref, 'k3')
  np.testing.assert_allclose(got, exact, rtol=2e-6)


@pytest.mark.parametrize('chunk', [None, 4])
def test_exact_kl_and_entropy_over_the_vocabulary(policies, chunk):
  rng = np.random.default_rng(1)
  z, z_ref = rng.normal(size=(2, 2, 3, 7))
  logp, ref = log_softmax(z), log_softmax(z_ref)
  mask = np.array([[1, 1, 0], [0, 1, 1]])
  ours = losses.divergence(z, z_ref, chunk=chunk)
  close(ours, kl(logp, ref), 1e-5)
  close(losses.divergence(z, z_ref, kind='forward'), kl(ref, logp), 1e-5)
  entropy = losses.entropy_from_logits(z, chunk=chunk)
  close(entropy, -(np.exp(logp) * logp).sum(-1), 1e-5)
  poisoned = jnp.where(mask[..., None], z, jnp.nan)

  def total(x):
    return (
      losses.divergence(x, z_ref, mask=mask, chunk=chunk).sum()
      + losses.divergence(x, z_ref, mask=mask, kind='jsd', chunk=chunk).sum()
      + losses.entropy_from_logits(x, mask=mask, chunk=chunk).sum()
    )

  grad = jax.grad(total)(poisoned)
  assert np.isfinite(grad).all() and not np.any(grad[mask == 0])


def test_a_token_the_policy_cannot_sample():
  """-inf logits have probability 0 and add 0, not NaN."""
  z = jnp.array([0.0, 0.0, -jnp.inf])
  close(losses.entropy_from_logits(z), np.log(2), 1e-6)
  close(losses.divergence(z, jnp.zeros(3)), np.log(1.5), 1e-6)
  close(losses.divergence(z, 2 * z), 0.0, 1e-6)  # neither can
  grad = jax.grad(lambda z: losses.divergence(z, jnp.zeros(3)))(z)
  assert np.isfinite(grad).all()


def test_adaptive_coefficients():
  # KL 3 times its target: the error is clipped to 0.2; 0.2 * 50 / 1000 = 1%.
  coef = losses.adaptive_kl(0.1, 3.0, target=1.0, horizon=1000, rows=50)
  close(coef, 0.101, 1e-6)
  coef = losses.adaptive_kl(0.1, 0.9, target=1.0, horizon=1000, rows=50)
  close(coef, 0.1 * (1 - 0.1 * 0.05), 1e-6)
  low = losses.adaptive_entropy(0.01, 0.1, target=0.2, step=0.005)
  close(np.array(low), [0.015, 0.015], 1e-6)
  high = losses.adaptive_entropy(0.01, 0.3, target=0.2, step=0.005)
  close(np.array(high), [0.005, 0.0], 1e-6)
  kept = losses.adaptive_entropy(0.01, 0.3, target=0.2, step=0.005, low=0.008)
  close(np.array(kept), [0.008, 0.0], 1e-6)
