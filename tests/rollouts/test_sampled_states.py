"""Hidden states that the sampler reads are those of a pass over whole rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from models.family_shapes import config
from small import small_config
from test_hidden_states import arrays, built

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.models import spec, transformer
from jaxrl_reason.rollouts import fused, sampler
from jaxrl_reason.rollouts.hidden_states import HIDDEN, HiddenStates

B, G, P, C = 3, 4, 6, 9
# Layers that decode in a loop, and others unrolled.
SHAPES = {
  'loop': small_config(layers=3, decode_layers='scan'),
  'windows in a loop': config('gpt_oss', decode_layers='scan'),
  'delta': config('qwen3_next'),
  'streams': config('gemma3n_text'),
}
TOKENS = 'last', 'mean', 'prompt_last'


def assert_near(got, want):
  """Asserts equality up to 1e-5 of the largest number."""
  atol = 1e-5 * max(1, np.abs(want).max())
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=atol)


def generate(model, params, states, stop, max_new=C):
  tokens = jax.random.randint(jax.random.key(0), (B, P), 3, 16)
  valid = jnp.arange(P) >= jnp.array([[0], [5], [2]])

  @jax.jit
  def f(params):
    return sampler.generate(
      model, params, tokens, valid, jax.random.key(3), Sampling.make(1.0),
      jnp.asarray(stop), n_samples=G, max_new=max_new, segments=2,
      states=states,
    )  # fmt: skip

  out = f(params)
  own = jnp.concatenate([jnp.repeat(tokens, G, 0), out.tokens], 1)
  mask = jnp.pad(out.sampled, ((0, 0), (P, 0)))
  rows = Rows(own, mask.at[:, :P].set(jnp.repeat(valid, G, 0)))
  return out, rows, mask


@pytest.mark.parametrize(
  'name, token, layers',
  [
    ('loop', 'last', (0,)),
    ('loop', 'mean', (-1, 0)),
    ('windows in a loop', 'last', (1, 0)),
    ('delta', 'mean', (-1, 0)),
    ('streams', 'last', (0, -1)),
  ],
)
def test_states_of_the_sampler_are_those_of_a_pass(
  monkeypatch, name, token, layers
):
  """Some rows end early, and some at the limit."""
  monkeypatch.setattr(cache_lib, 'TILE', 2)
  model, params = built(SHAPES[name])
  states = HiddenStates(model, layers, token)
  out, rows, mask = generate(model, params, states, range(3, 6))
  assert out.length.min() < 4 and out.length.max() == C
  assert_near(out.views[HIDDEN], jax.jit(states)(params, rows, mask))


@pytest.mark.parametrize('token', ['last', 'mean'])
@pytest.mark.parametrize('stop, max_new', [(range(16), C), ([-1], 1)])
def test_rows_of_one_token_have_states(token, stop, max_new):
  model, params = built(small_config())
  states = HiddenStates(model, (0,), token)
  out, rows, mask = generate(model, params, states, stop, max_new)
  assert out.length.max() == 1
  want = jax.jit(states)(params, rows, mask)
  assert_near(out.views[HIDDEN], want)


def complete(token, mesh=None):
  gen = dataclasses.replace(L.GEN, hidden=HiddenStates(L.MODEL, (1, 0), token))
  params = L.model_and_params()[1]
  if mesh is None:
    return L.sample(params, L.prompts(), gen)
  with jax.set_mesh(mesh):
    where = sharding.shardings(L.MODEL.specs, mesh, sharding.TRAIN_RULES)
    params = jax.tree.map(
      lambda x, s: jax.device_put(np.asarray(x), s), params, where
    )
    prompts = sharding.to_global(L.prompts(), mesh)
    return jax.jit(fused.complete, static_argnums=0)(
      gen, params, prompts, L.ROOT, 0, L.NEUTRAL, L.STOP
    )


@pytest.mark.parametrize('token', TOKENS)
def test_a_source_completes_rows_with_their_states(token):
  """Other arrays of the rollout do not change."""
  out = complete(token)
  plain = L.sample(L.model_and_params()[1], L.prompts())
  rows = batch_lib.rows_of(L.prompts(), out)
  mask = batch_lib.sampled_of(rows, out)
  want = HiddenStates(L.MODEL, (1, 0), token)(
    L.model_and_params()[1], rows, mask
  )
  assert_near(out.views[HIDDEN], want)
  jax.tree.map(np.testing.assert_array_equal, out.replace(views=None), plain)


@pytest.mark.parametrize('shape', [(8, 1, 1), (1, 2, 2, 2)])
def test_eight_devices_equal_one(shape):
  want, got = (complete('mean', m) for m in (None, sharding.make_mesh(shape)))
  np.testing.assert_array_equal(got.tokens, want.tokens)
  assert_near(got.views[HIDDEN], want.views[HIDDEN])


@pytest.mark.parametrize(
  'how, words',
  [
    (dict(slots=2), 'states needs a slot for every row, not 2 of 4'),
    (dict(segments=0), 'hidden states need segments'),
  ],
)
def test_rows_whose_last_token_is_not_decoded_are_refused(how, words):
  gen = dataclasses.replace(L.GEN, hidden=HiddenStates(L.MODEL, (0,), 'last'))
  gen = dataclasses.replace(gen, **how)
  with pytest.raises(ValueError, match=words):
    L.sample(L.model_and_params()[1], L.prompts(), gen)


def test_no_array_has_the_states_of_tokens_of_completions():
  """The sizes N, C, T and D differ from each other and from all others."""
  c = small_config(layers=5, width=28, vocab=24)
  model = transformer.build(c)
  params, n = spec.abstract(model.specs), L.B * L.G

  def largest(states):
    """Counts the states [D] in the largest array of states of completions."""
    gen = fused.Generation(model, L.G, L.C, hidden=states)
    given = L.prompts(), L.ROOT, 0, L.NEUTRAL, L.STOP
    f = functools.partial(fused.complete, gen)
    found = arrays(jax.make_jaxpr(f)(params, *given).jaxpr)
    return max(np.prod(s) // 28 for s in found if s[:1] == (n,) and s[-1] == 28)

  assert largest(HiddenStates(model, (2,), 'last')) == largest(None) == n
