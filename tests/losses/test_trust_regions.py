"""Trust regions of other trainers equal loops over tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from losses_batch import close

from jaxrl_reason import losses

RNG = np.random.default_rng(5)
MASK = RNG.random((6, 8)) < 0.7
MASK[4] = False
GROUP = np.array([7, 7, -2, -2, -2, 7])
SAMPLER = np.float32(-RNG.random(MASK.shape) - 0.1)
OLD = np.float32(SAMPLER + 0.4 * RNG.normal(size=MASK.shape))
LOGP = np.float32(OLD + 0.1 * RNG.normal(size=MASK.shape))
ADV = np.float32([1, -1, 0.5, -2, 1, 0.3])


def moderate(old, sampler, mask, bound):
  """Implements AReaL: removes the largest squares until the mean is below the
  bound.
  """
  squares = sorted((old[mask] - sampler[mask]) ** 2)
  while len(squares) > 1 and np.mean(squares) >= bound:
    squares.pop()
  largest = squares[-1] * (1 + 1e-6)
  return mask & ((old - sampler) ** 2 <= largest)


@pytest.mark.parametrize('bound', [1e-9, 0.01, 0.04, 0.1, 9.0])
def test_second_moment_of_m2po(bound):
  poisoned = np.where(MASK, SAMPLER, np.nan)
  got = losses.second_moment_tokens(
    OLD, poisoned, MASK, max_second_moment=bound
  )
  want = moderate(np.float64(OLD), np.float64(SAMPLER), MASK, bound)
  assert (np.asarray(got) == want).all()
  assert 1 <= got.sum() <= MASK.sum()


def test_m2po_is_the_masked_ratio():
  """AReaL's page on M2PO: J = sum M r A / tokens, r = pi / behaviour."""
  want = moderate(np.float64(OLD), np.float64(SAMPLER), MASK, 0.04)
  r = np.exp(np.float64(LOGP) - SAMPLER)
  loss, metrics = losses.policy_loss(
    'm2po', LOGP, ADV, MASK, old_logp=OLD, sampler_logp=SAMPLER
  )
  close(loss, -(want * r * ADV[:, None]).sum() / MASK.sum(), 1e-5)
  close(metrics['outside_second_moment'], 1 - want.sum() / MASK.sum(), 1e-5)
  assert losses.needs('m2po') == {'old_logp', 'sampler_logp', 'selected'}


def within(bound):
  """Implements open-instruct: mean |r - 1| / 2 over a row, then over a prompt's
  rows.
  """
  r = np.exp(np.float64(LOGP) - SAMPLER)
  tv = {i: np.mean(abs(r[i][m] - 1) / 2) for i, m in enumerate(MASK) if m.any()}
  out = np.zeros(MASK.shape, bool)
  for i, t in zip(*np.nonzero(MASK), strict=True):
    prompt = np.mean([x for j, x in tv.items() if GROUP[j] == GROUP[i]])
    away = ADV[i] * np.sign(r[i, t] - 1) > 0
    out[i, t] = prompt <= bound or not away
  return out


@pytest.mark.parametrize('bound', [0.01, 0.14, 0.9])
def test_total_variation_of_tvpo(bound):
  got = losses.tokens_within_tv(
    np.where(MASK, LOGP, np.nan), SAMPLER, ADV, MASK, GROUP, max_prompt_tv=bound
  )
  assert (np.asarray(got) == within(bound)).all()


def test_tvpo_stops_the_gradient_of_tokens_that_leave():
  s = losses.resolve({'name': 'tvpo', 'max_prompt_tv': 0.14, 'clip_high': 0.2})

  def loss(logp):
    arrays = dict(sampler_logp=SAMPLER, group=GROUP)
    return losses.policy_loss(s, logp, ADV, MASK, **arrays)[0]

  r = np.exp(np.float64(LOGP) - SAMPLER)
  slope = -np.minimum(r, 1.2) * ADV[:, None] * within(0.14) / MASK.sum()
  close(jax.grad(loss)(jnp.asarray(LOGP)), slope, 1e-5)
  assert 0 < within(0.14).sum() < MASK.sum()
  with pytest.raises(ValueError, match="'group'"):
    losses.policy_loss('tvpo', LOGP, ADV, MASK, sampler_logp=SAMPLER)
