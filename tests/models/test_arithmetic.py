"""A sum of models has the sum of their logits, in all computations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from jaxrl_reason.base import Rows
from jaxrl_reason.data import tokenizers
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logit_sums, logprobs
from jaxrl_reason.rollouts import sampler

WEIGHTS = (1.0, 0.7, -0.7)


def three():
  shapes = [dict(seed=0, width=32, layers=2), dict(seed=1), dict(seed=2)]
  made = [small_model(**shape) for shape in shapes]
  model = logit_sums.total(
    [m for _, m, _ in made], WEIGHTS, [c.width for c, _, _ in made]
  )
  return made, model, {str(i): p for i, (_, _, p) in enumerate(made)}


def test_logits_are_the_sum_and_samples_are_of_it():
  made, model, params = three()
  tokens = jax.random.randint(jax.random.key(0), (2, 5), 2, 14)
  valid = jnp.arange(5) >= jnp.array([[2], [0]])
  got = model.unembed(params, model.hidden(params, tokens, valid))
  want = sum(
    w * m.unembed(p, m.hidden(p, tokens, valid))
    for w, (_, m, p) in zip(WEIGHTS, made)
  )
  np.testing.assert_allclose(got, want, atol=1e-5)
  settings = Sampling.make(0.8, 0, 0.9)
  out = jax.jit(
    lambda p: sampler.generate(
      model, p, tokens, valid, jax.random.key(1), settings,
      jnp.array([1, -1]), n_samples=16, max_new=40, segments=2,
    )
  )(params)  # fmt: skip
  rows = Rows(
    jnp.concatenate([jnp.repeat(tokens, 16, axis=0), out.tokens], axis=1),
    jnp.concatenate([jnp.repeat(valid, 16, axis=0), out.valid], axis=1),
    out.temperature,
  )
  logp = logprobs.score(model, params, rows, settings, start=5)[0][:, 5:]
  gaps = jnp.abs(jnp.where(out.sampled, logp - out.logp, 0))
  assert gaps.max() < 1e-5 and out.sampled.sum() > 50


def test_a_single_model_is_unchanged():
  made, _, params = three()
  model = logit_sums.total(
    [m for _, m, _ in made], (1.0, 0.0, 0.0), [c.width for c, _, _ in made]
  )
  tokens, valid = jnp.full((1, 3), 5), jnp.ones((1, 3), bool)
  _, large, own = made[0]
  np.testing.assert_array_equal(
    model.unembed(params, model.hidden(params, tokens, valid)),
    large.unembed(own, large.hidden(own, tokens, valid)),
  )


def test_other_tokens_are_refused():
  ours, theirs = (tokenizers.CharTokenizer(x) for x in ('abc', 'abd'))
  logit_sums.refuse_other_tokens(['x', 'y'], [ours, ours])
  with pytest.raises(ValueError, match='y and x have different tokens'):
    logit_sums.refuse_other_tokens(['x', 'y'], [ours, theirs])
