"""Statistics and terms of the policy's own tokens leave demonstrations out.

A sampler has no log-probs of demonstrations: the arrays have 0 there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from losses_batch import close

from jaxrl_reason import losses

N, T = 8, 6
DEMO = (np.arange(N) % 4 == 3)[:, None] & np.ones((N, T), bool)


def arrays(seed=0):
  rng = np.random.default_rng(seed)
  out = {k: -np.abs(rng.normal(1, 0.5, (N, T))) for k in ('logp', 'sampler')}
  mask = rng.random((N, T)) < 0.8
  out['sampler'][DEMO] = 0
  return out | {'mask': mask, 'entropy': np.abs(rng.normal(1, 0.5, (N, T)))}


def loss_of(settings, given, **changes):
  """Returns (loss, metrics, gradient) without a difference of advantages."""
  s = losses.resolve({'name': 'luffy'} | settings)
  g = given | changes
  own = dict(sampler_logp=g['sampler'], is_offpolicy=DEMO)

  def f(logp):
    return losses.policy_loss(
      s, logp, jnp.zeros(N), g['mask'], entropy=g['entropy'], **own
    )

  (loss, metrics), grad = jax.jit(jax.value_and_grad(f, has_aux=True))(
    g['logp']
  )
  return loss, metrics, grad


@pytest.mark.parametrize('kl', losses.KL_ESTIMATORS)
def test_a_kl_to_the_sampler_is_that_of_its_samples(kl):
  to_sampler = {'kl_coef': 0.7, 'kl_to': 'sampler', 'kl': kl}
  given = arrays()
  loss, metrics, grad = loss_of(to_sampler, given)
  assert not np.any(np.asarray(grad)[DEMO]) and np.any(np.asarray(grad))
  own = given['mask'] & ~DEMO
  each = losses.kl_penalty(given['logp'], given['sampler'], kl)
  close(metrics['kl'], np.asarray(each)[own].mean(), 1e-5)
  other = np.where(DEMO, -5.0, given['logp'])
  close(loss_of(to_sampler, given, logp=other)[0], loss, 1e-5)


def test_the_entropy_is_that_of_sampled_tokens():
  given = arrays()
  _, metrics, _ = loss_of({}, given)
  own = given['mask'] & ~DEMO
  close(metrics['entropy'], given['entropy'][own].mean(), 1e-5)


@pytest.mark.parametrize(
  'settings',
  [
    {'max_second_moment': 0.3},
    {'entropy_share': 0.3},
    {'random_share': 0.3},
  ],
  ids=str,
)
def test_choices_of_tokens_are_among_sampled_tokens(settings):
  g = arrays()
  s = losses.resolve({'name': 'luffy'} | settings)
  call = dict(sampler_logp=g['sampler'], entropy=g['entropy'])
  call['key'] = jax.random.key(0)

  def chosen(mask, **more):
    adv = jnp.arange(N) - 3.5
    return losses.select_tokens(s, g['logp'], adv, mask, **call, **more)

  got = chosen(g['mask'], is_offpolicy=DEMO)
  want = chosen(g['mask'] & ~DEMO)
  for name, tokens in want.items():
    np.testing.assert_array_equal(got[name], tokens)
    assert np.any(tokens) and not np.any(np.asarray(tokens)[DEMO])


def test_weights_of_advantages_are_normalised_over_samples():
  """The optimal token baseline reads the weights of a correction."""
  g = arrays()
  s = losses.resolve(
    {'name': 'otb', 'offpolicy': 'luffy'}
    | {'correction': 'truncate', 'correction_normalise': True}
  )
  call = dict(group=np.arange(N) // 4, mask=g['mask'], old_logp=g['logp'])
  call |= dict(sum_p_squared=np.full((N, T), 0.3), is_offpolicy=DEMO)
  reward = np.arange(N) * 5.0 % 7

  def read(sampler):
    call['sampler_logp'] = sampler
    return losses.advantages(s, reward, **call)

  want = read(np.where(DEMO, -9.0, g['sampler']))
  np.testing.assert_allclose(read(g['sampler']), want, rtol=1e-5)


def test_metrics_are_averaged_over_the_updates_that_train():
  metrics = {
    'entropy': jnp.float32([[2, 0], [4, 0]]),
    'a_max': jnp.ones((2, 2)),
  }
  some = jnp.array([[True, False], [True, False]])
  out = losses.over_updates(metrics, some)
  assert out == {'entropy': 3, 'a_max': 1}
  assert losses.over_updates(metrics, some & False)['entropy'] == 0
  metrics = {'entropy': jnp.float32([2, 0]), 'loss': jnp.float32([4, 6])}
  out = losses.over_updates(metrics, *jnp.array([[True, True], [True, False]]))
  assert out == {'entropy': 2, 'loss': 5}
  weights = {'loss': jnp.float32([0.125, 0.375])}
  both = jnp.array([True, True])
  assert losses.over_updates(metrics, both, None, weights)['loss'] == 5.5
