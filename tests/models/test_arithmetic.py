"""Several models as one: the sum of their logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from jaxrl_reason.data import tokenizers
from jaxrl_reason.models import arithmetic

WEIGHTS = (1.0, 0.7, -0.7)


def three():
  shapes = [dict(seed=0, width=32, layers=2), dict(seed=1), dict(seed=2)]
  made = [small_model(**shape) for shape in shapes]
  model = arithmetic.total(
    [m for _, m, _ in made], WEIGHTS, [c.width for c, _, _ in made]
  )
  return made, model, {str(i): p for i, (_, _, p) in enumerate(made)}


def test_logits_are_the_sum():
  made, model, params = three()
  tokens = jax.random.randint(jax.random.key(0), (2, 5), 2, 14)
  valid = jnp.arange(5) >= jnp.array([[2], [0]])
  got = model.unembed(params, model.hidden(params, tokens, valid))
  want = sum(
    w * m.unembed(p, m.hidden(p, tokens, valid))
    for w, (_, m, p) in zip(WEIGHTS, made)
  )
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_model_that_nothing_is_added_to_is_itself():
  made, _, params = three()
  model = arithmetic.total(
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
  arithmetic.refuse_other_tokens(['x', 'y'], [ours, ours])
  with pytest.raises(ValueError, match='y has other tokens than x'):
    arithmetic.refuse_other_tokens(['x', 'y'], [ours, theirs])
