"""Power sampling: the distribution of completions, and its settings."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import sharding
from jaxrl_reason.evals import cell_settings
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts import power_sampling

STOP, V, C = 1, 4, 2
SEED, SCALE = 0, 0.3
COMPLETIONS = [
  (STOP, 0),
  *itertools.product((0, 2, 3), range(V)),
]


def flat_model():
  """Returns a model with a flat distribution of tokens, and its weights."""
  _, model, params = small_model(seed=SEED, vocab=V, tied=False)
  return model, params | {'head': SCALE * params['head']}


def sampled(how, n, temperature=1.0, b=1):
  """Samples n completions: n / b of each of b equal prompts."""
  model, params = flat_model()
  prompts = jnp.full((b, 2), 2)

  @jax.jit
  def f(params):
    sampling = Sampling.make(temperature)
    return power_sampling.generate(
      how, model, params, prompts, prompts > 0, jax.random.key(0), sampling,
      jnp.asarray([STOP]), row_ids=jnp.arange(n), n_samples=n // b, max_new=C,
    )  # fmt: skip

  return f(params)


def log_probs(power):
  """Returns the log-probs of the tokens of all completions at temperature
  1 / power, by whole rows, without the sampler.
  """
  model, params = flat_model()
  rows = jnp.asarray([[2, 2, *x] for x in COMPLETIONS])

  @jax.jit
  def f(params):
    hidden = model.hidden(params, rows, jnp.ones_like(rows, bool))
    return jax.nn.log_softmax(power * model.unembed(params, hidden))

  logp = np.asarray(f(params))
  return [
    [logp[i, 1 + t, x[t]] for t in range(1 if x[0] == STOP else C)]
    for i, x in enumerate(COMPLETIONS)
  ]


def chain(p, q, power):
  """Returns the probability of every move between two completions.

  Args:
    p, q: log-probs of their tokens by the policy and by the proposal.
  """
  n = len(COMPLETIONS)
  moves = np.zeros((n, n))
  for i, j in itertools.product(range(n), range(n)):
    for t in range(min(len(p[i]), len(p[j]))):
      if COMPLETIONS[i][:t] != COMPLETIONS[j][:t]:
        continue
      forward = np.exp(sum(q[j][t:])) / len(p[i])
      backward = np.exp(sum(q[i][t:])) / len(p[j])
      likely = np.exp(power * (sum(p[j]) - sum(p[i]))) * backward / forward
      moves[i, j] += forward * min(1, likely)
  return moves + np.diag(1 - moves.sum(axis=1))


def test_completions_have_the_distribution_of_the_chain():
  n, power, steps = 4000, 3.0, 20
  p, q = log_probs(1.0), log_probs(power)
  moves, start = chain(p, q, power), np.exp([sum(x) for x in q])
  of_power = np.exp(power * np.array([sum(x) for x in p]))
  of_power /= of_power.sum()
  np.testing.assert_allclose(of_power @ moves, of_power, atol=1e-6)
  want = start @ np.linalg.matrix_power(moves, steps)
  bound = 4 * (0.25 / n) ** 0.5  # four standard errors of the largest share
  assert np.abs(want - start).max() > 2 * bound
  assert np.abs(of_power - start).max() > 4 * bound

  out = sampled(power_sampling.Power(power, steps), n)
  tokens = list(map(tuple, np.asarray(out.tokens).tolist()))
  found = np.array([tokens.count(x) for x in COMPLETIONS]) / n
  np.testing.assert_allclose(found, want, atol=bound)
  for row, x in zip(np.asarray(out.policy_logp), tokens):
    own = p[COMPLETIONS.index(x)]
    np.testing.assert_allclose(row[: len(own)], own, atol=1e-5)


def test_eight_devices_sample_as_one_does():
  how, n, b = power_sampling.Power(3.0, 4), 32, 8
  want = sampled(how, n, b=b)
  with jax.set_mesh(sharding.make_mesh((2, 2, 2))):
    got = sampled(how, n, b=b)
  assert len(np.unique(want.tokens, axis=0)) > 3
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_array_equal(got.length, want.length)
  for name in ('logp', 'policy_logp'):
    x, y = (getattr(out, name) for out in (got, want))
    np.testing.assert_allclose(x, y, atol=1e-5)


def test_greedy_rows_stay_greedy():
  how = power_sampling.Power(3.0, 3)
  out = sampled(how, 6, jnp.asarray([0.0] * 3 + [1.0] * 3))
  (greedy,) = {tuple(x) for x in np.asarray(out.tokens[:3]).tolist()}
  assert greedy in COMPLETIONS


@pytest.mark.parametrize(
  'given, words',
  [
    (dict(power=4.0), 'go together'),
    (dict(moves=4), 'go together'),
    (dict(power=4.0, moves=2, top_k=3), 'cannot be combined with --top_k'),
    (dict(power=4.0, moves=2, least=3), 'cannot be combined with --least'),
  ],
)
def test_settings_that_change_the_distribution_are_refused(given, words):
  o = cell_settings.Options(models=(), suites=(), out=None, **given)
  with pytest.raises(ValueError, match=words):
    cell_settings._power(o, 1.0, {})
  o = cell_settings.Options((), (), None, power=4.0, moves=2)
  for temperature, chunks in (0.5, {}), (1.0, {'chunk': 8, 'carry': 2}):
    with pytest.raises(ValueError, match='cannot be combined'):
      cell_settings._power(o, temperature, chunks)
  assert cell_settings._power(o, 1.0, {}) == {'power': 4.0, 'moves': 2}
