"""Budget forcing delays early ends and forces late ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts import forcing, sampler

STOP = jnp.array([1, 2, 3, -1])
WAIT, FINAL, C = (8, 9), (10, 11, 12), 24


def draw(force=None, **static):
  _, model, params = small_model()
  tokens = jnp.full((2, 3), 5)
  f = jax.jit(
    lambda params: sampler.generate(
      model, params, tokens, tokens > 0, jax.random.key(0), Sampling.make(1.5),
      STOP, n_samples=8, max_new=C, forcing=force, policy_logp=True, **static,
    )
  )  # fmt: skip
  return f(params)


def test_no_completion_ends_too_early_or_thinks_too_long():
  free = draw()
  assert int(free.length.min()) < 6  # some completions end early
  out = draw(forcing.Forcing(8, WAIT, 15, FINAL))
  tokens, n = np.asarray(out.tokens), np.asarray(out.length)
  stops = np.isin(tokens, [1, 2, 3]) & (np.arange(C) < n[:, None])
  waits = 0
  for row, stop, length in zip(tokens, stops, n):
    assert not stop[:8].any()
    assert stop[: length - 1].sum() == 0  # the last alone
    if length > 15:
      forced = row[15 : min(length, 18)]
      assert forced.tolist() == list(FINAL)[: len(forced)]
    pairs = list(zip(row[:9], row[1:10]))
    waits += WAIT in [(int(a), int(b)) for a, b in pairs]
  assert waits > 3 and (n > 15).any()


def test_rows_without_forced_tokens_are_unchanged():
  """The same noise samples the same tokens until one is forced."""
  free, out = draw(), draw(forcing.Forcing(4, WAIT))
  same = np.asarray(free.tokens == out.tokens).all(1)
  long = np.asarray(free.length) > 4
  assert same[long].all() and long.any() and not same.all()
  np.testing.assert_array_equal(free.logp[long], out.logp[long])


def test_forced_tokens_have_no_log_probability():
  out = draw(forcing.Forcing(most=3, final=FINAL))
  there = np.asarray(out.length) > 6
  np.testing.assert_array_equal(np.asarray(out.logp)[there, 3:6], 0)
  np.testing.assert_array_equal(np.asarray(out.policy_logp)[there, 3:6], 0)
  assert (np.asarray(out.logp)[there, :3] < 0).all()


@pytest.mark.parametrize(
  'given, words',
  [
    (dict(least=3), 'go together'),
    (dict(final=' so'), 'go together'),
    (dict(least=9, wait='xy'), 'least and its words need 11 tokens'),
    (dict(most=9, final='x'), 'most and its words need 10 tokens'),
  ],
)
def test_impossible_settings_are_refused(given, words):
  with pytest.raises(ValueError, match=words):
    forcing.make(list, 10, **given)
  assert forcing.make(list, 10) is None


def test_slots_are_refused():
  with pytest.raises(ValueError, match='forcing needs a slot for every row'):
    draw(forcing.Forcing(4, WAIT), slots=2)
