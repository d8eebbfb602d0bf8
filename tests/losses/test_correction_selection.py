"""Weights for off-policy data, and the selection of tokens in a loss."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from losses_batch import Compiled, close

from jaxrl_reason import losses as library

losses = Compiled(library)

MASK = jnp.array([[1, 1, 0], [1, 1, 1]])
# w = old / sampler: [2, 1/4, -] and [1, 4, 1/2]
SAMPLER = jnp.array([[-2.0, -2.0, jnp.nan], [-3.0, -3.0, -3.0]])
OLD = SAMPLER + jnp.log(jnp.array([[2.0, 0.25, 1.0], [1.0, 4.0, 0.5]]))


def weight(**knobs):
  return losses.correction_weight(OLD, SAMPLER, MASK, **knobs)


def test_truncate_clip_and_mask_by_hand():
  close(weight(correction_high=1.5), [[1.5, 0.25, 0], [1, 1.5, 0.5]], 1e-5)
  clip = weight(correction='clip', correction_low=0.5, correction_high=3.0)
  close(clip, [[2, 0.5, 0], [1, 3, 0.5]], 1e-5)
  mask = weight(correction='mask', correction_low=0.5, correction_high=3.0)
  close(mask, [[2, 0, 0], [1, 0, 0.5]], 1e-5)
  free = weight(correction_high=None)
  close(free, [[2, 0.25, 0], [1, 4, 0.5]], 1e-5)


def test_levels_by_hand():
  """Products 1/2 and 2; geometric means sqrt(1/2) and 2^(1/3)."""
  product = weight(correction_level='sequence_product', correction_high=1.75)
  close(product, [[0.5, 0.5, 0], [1.75] * 3], 1e-5)
  mean = weight(correction_level='sequence_mean', correction_high=None)
  close(mean, [[0.5**0.5, 0.5**0.5, 0], [2 ** (1 / 3)] * 3], 1e-5)


def test_rejection_rules():
  def reject(**k):
    return losses.rejection_weight(OLD, SAMPLER, MASK, **k)

  row = reject(reject_low=0.8, reject_high=2.0)  # geometric means 0.71, 1.26
  close(row, [[0, 0, 0], [1, 1, 1]], 0)
  token = reject(reject_level='token', reject_high=3.0)
  close(token, [[1, 1, 0], [1, 0, 1]], 0)
  close(reject(veto=0.3), [[0, 0, 0], [1, 1, 1]], 0)


def test_normalised_weights_have_mean_one():
  w = losses.normalise(weight(correction_high=None), MASK)
  close(w.sum() / 5, 1.0, 1e-6)
  assert not np.any(losses.normalise(jnp.zeros((2, 3)), MASK))


def test_normalised_weights_in_the_loss():
  """The weights 2, 1/4, 1, 2 (cut), 1/2 sum to 23/4 over 5 tokens."""
  s = library.resolve({'correction': 'truncate', 'correction_normalise': True})
  adv = jnp.array([1.0, 0.0])
  loss, metrics = losses.policy_loss(
    s, OLD, adv, MASK, old_logp=OLD, sampler_logp=SAMPLER
  )
  close(metrics['weight_mean'], 1.0, 1e-5)
  close(loss, -2.25 / 5.75, 1e-5)


def test_weights_are_normalised_over_the_tokens_that_have_one():
  """The second row, except for its first token, is of another policy: the
  weights 2, 1/4 and 1 sum to 13/4 over 3 tokens.
  """
  s = {'correction': 'truncate', 'correction_normalise': True}
  s |= {'offpolicy': 'sft', 'aggregation': 'token_sum'}
  off = jnp.array([[0, 0, 0], [0, 1, 1]])
  run = functools.partial(
    losses.policy_loss,
    library.resolve(s),
    OLD,
    jnp.ones(2),
    MASK,
    old_logp=OLD,
    sampler_logp=SAMPLER,
    is_offpolicy=off,
  )
  loss, metrics = run()
  others = -OLD[1, 1:].sum()
  close(loss, -3 + others, 1e-5)
  divisors = losses.denominators(
    library.resolve(s),
    MASK,
    old_logp=OLD,
    sampler_logp=SAMPLER,
    is_offpolicy=off,
  )
  close(divisors['weights'], 13 / 4, 1e-6)
  close(run(denominators=divisors)[0], loss, 1e-6)


def test_decoupled_ppo_is_a_correction():
  """The clipped proximal ratio is multiplied by proximal / behaviour, which has
  no bound.
  """
  s = library.resolve({'name': 'decoupled_ppo', 'advantage': 'group_mean'})
  logp = OLD + 0.5
  adv = jnp.array([1.0, -1.0])
  loss, metrics = losses.policy_loss(
    s, logp, adv, MASK, old_logp=OLD, sampler_logp=SAMPLER
  )
  r = np.exp(0.5)
  want = (-1.2 * (2 + 0.25) + r * (1 + 4 + 0.5)) / 5
  close(loss, want, 1e-5)
  close(metrics['weight_mean'], 7.75 / 5, 1e-5)


def test_covariance_picks():
  """Covariances 0.75 at the largest; the share rounds down, at least one."""
  logp = jnp.array([[-1.0, -2.0, jnp.nan], [-3.0, -4.0, -5.0]])
  adv = jnp.array([[2.0, 1.0, 9.0], [0.0, -1.0, -2.0]])
  # Means -3 and 0: covariances (4, 1), (0, 1, 4).
  close(losses.covariance(logp, adv, MASK), [[4, 1, 0], [0, 1, 4]], 1e-6)
  pick = losses.kl_cov_tokens(logp, adv, MASK, cov_share=0.4)
  close(pick, [[1, 0, 0], [0, 0, 1]], 0)
  one = losses.kl_cov_tokens(logp, adv, MASK, cov_share=0.0)
  assert one.sum() == 1
  draw = functools.partial(
    library.clip_cov_tokens, logp, adv, MASK, cov_low=0.5, cov_high=2.0
  )
  keys = jax.random.split(jax.random.key(0), 20)
  drawn = np.asarray(jax.jit(jax.vmap(draw))(keys)).sum(0)
  assert drawn.sum() == 20 and drawn[0, 1] > 3 and drawn[1, 1] > 3
  none = losses.clip_cov_tokens(logp, adv, MASK, jax.random.key(0), cov_low=9.0)
  assert not none.any()


def test_entropy_picks():
  entropy = jnp.array([[0.3, 0.9, jnp.inf], [0.1, 0.5, 0.7]])
  top = losses.top_entropy_tokens(entropy, MASK, entropy_share=0.4)
  close(top, [[0, 1, 0], [0, 0, 1]], 0)
  low = library.low_entropy_tokens(entropy, MASK, low_entropy_share=0.6)
  close(low, MASK - top, 0)  # the complement, if no entropies are equal
  # Rank ceil(0.6 * 2) = 2 and ceil(0.6 * 3) = 2 of each row, from below.
  high = losses.high_entropy_in_row(entropy, MASK, entropy_quantile=0.6)
  close(high, [[0, 1, 0], [0, 1, 1]], 0)


def test_random_tokens_are_a_fixed_share_drawn_evenly():
  keys = jax.random.split(jax.random.key(1), 400)
  draw = functools.partial(library.random_tokens, MASK, random_share=0.4)
  drawn = np.asarray(jax.jit(jax.vmap(draw))(keys))
  assert (drawn.sum((1, 2)) == 2).all()  # floor(0.4 * 5)
  often, at = drawn.mean(0), np.asarray(MASK) > 0
  assert not often[~at].any()
  # 0.4 each, within 4 standard errors of 400 draws.
  np.testing.assert_allclose(often[at], 0.4, atol=4 * (0.24 / 400) ** 0.5)


def test_a_random_share_is_trained_on_under_the_divisor_of_all():
  """At the drawn tokens, the gradient is that of a loss of all tokens. At other
  tokens it is 0.
  """
  logp = jnp.array([[-1.0, -2.0, 0.0], [-1.5, -0.5, -1.0]])
  adv, key = jnp.array([1.0, -2.0]), jax.random.key(3)

  def grad(settings):
    def loss(logp):
      o = library.resolve({'name': 'dapo', **settings})
      return library.policy_loss(o, logp, adv, MASK, key=key)[0]

    return np.asarray(jax.jit(jax.grad(loss))(logp))

  some, whole = grad({'random_share': 0.4}), grad({})
  drawn = some != 0
  assert drawn.sum() == 2
  np.testing.assert_allclose(some[drawn], whole[drawn], rtol=1e-6)
  assert 'key' in library.needs({'name': 'dapo', 'random_share': 0.4})


def test_high_and_low_entropy_shares_add_up_to_all_tokens():
  """The gradients of a share and of the rest sum to that of all tokens."""
  logp = jnp.array([[-1.0, -2.0, 0.0], [-1.5, -0.5, -1.0]])
  entropy = jnp.array([[0.3, 0.9, 0.0], [0.1, 0.5, 0.7]])
  adv = jnp.array([1.0, -2.0])

  def grad(settings):
    def loss(logp):
      o = library.resolve({'name': 'dapo', **settings})
      given = dict(entropy=entropy, old_logp=jax.lax.stop_gradient(logp))
      return library.policy_loss(o, logp, adv, MASK, **given)[0]

    return np.asarray(jax.jit(jax.grad(loss))(logp))

  high, low = grad({'entropy_share': 0.4}), grad({'low_entropy_share': 0.6})
  assert (high != 0).sum() == 2 and (low != 0).sum() == 3
  np.testing.assert_allclose(high + low, grad({}), rtol=1e-6)


def test_off_policy_rows_drop_only_negative_ones():
  logp = jnp.array([[-3.0, -3.0, jnp.nan], [-3.0, -3.0, -3.0]])
  old = logp + 1

  def keep(adv):
    return losses.off_policy_rows(
      logp, old, jnp.array(adv), MASK, max_row_drift=0.5
    )

  close(keep([1.0, -1.0]), [[1, 1, 0], [0, 0, 0]], 0)
  close(keep([-1.0, 1.0]), [[0, 0, 0], [1, 1, 1]], 0)
