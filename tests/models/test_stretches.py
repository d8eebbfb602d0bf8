"""Decoding in loops over repeated layers equals decoding layer by layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_config, small_model

from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import stretches, transformer
from jaxrl_reason.models.adapters import attach
from jaxrl_reason.rollouts import sampler

B, P = 4, 9
STOP = jnp.array([1, 2])
LATENT = dict(
  experts=4,
  experts_per_token=2,
  dense_layers=(0, 1),
  dense_mlp=24,
  kv_rank=8,
  q_rank=8,
  rope_dim=4,
  value_dim=6,
  head_dim=9,
  kv_heads=4,
  bias=False,
  qk_norm=False,
)
DELTA = dict(
  delta_layers=(0, 1, 3, 4),
  delta_heads=2,
  delta_groups=2,
  delta_key_dim=4,
  delta_value_dim=6,
  delta_taps=3,
  out_gate=True,
  experts=4,
  experts_per_token=2,
  bias=False,
)
WINDOWS = dict(windows=(5, 5, 0, 5, 5, 0), sinks=True)


def generate(model, params, **static):
  key = jax.random.key(1)
  prompts = jax.random.randint(key, (B, P), 3, 16)
  valid = jnp.arange(P) >= jnp.array([0, 3, 5, 8])[:, None]
  how = dict(n_samples=4, max_new=12) | static

  @jax.jit
  def f(params, key):
    return sampler.generate(
      model, params, prompts, valid, key, Sampling.make(1.0), STOP, **how
    )

  return f(params, key)


def assert_same(got, want):
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)
  if want.routes is not None:
    np.testing.assert_array_equal(got.routes, want.routes)


@pytest.mark.parametrize(
  'shape, static',
  [
    (WINDOWS | dict(cache_dtype='int8'), dict(slots=2, segments=2, max_new=40)),
    (LATENT, dict(routes=True)),
    pytest.param(
      DELTA, dict(routes=True, slots=2), marks=pytest.mark.slow, id='delta'
    ),
  ],
)
def test_loops_equal_layers_one_by_one(shape, static):
  """The model has steering vectors, each of which belongs to one layer."""
  found, steering = [], shape.keys() == WINDOWS.keys() | {'cache_dtype'}
  for how in ('scan', 'unroll'):
    _, model, params = small_model(layers=6, decode_layers=how, **shape)
    if steering:
      params['steering'] = jax.random.normal(jax.random.key(7), (6, 16))
      model = attach(model, steering=True)
    found.append(generate(model, params, **static))
  assert_same(*found)
  assert len(np.unique(found[0].length)) > 1


def test_the_kernel_samples_the_tokens_of_the_einsum():
  """The kernel runs in interpret mode, on a stack of layers with experts."""
  found = []
  for kind, how in (('splash', 'scan'), ('einsum', 'unroll')):
    _, model, params = small_model(
      layers=2,
      attention=kind,
      decode_layers=how,
      experts=4,
      experts_per_token=2,
    )
    found.append(generate(model, params, max_new=6))
  assert_same(*found)


@pytest.mark.parametrize(
  'shape, ranges',
  [
    ({}, [range(6)]),
    (dict(windows=(5, 5, 0) * 2), [range(i, i + 4, 3) for i in range(3)]),
    # The remaining layers are local.
    (
      dict(windows=(5, 0, 5, 0, 5, 5)),
      [range(0, 4, 2), range(1, 4, 2), range(4, 6)],
    ),
    (LATENT, [range(2), range(2, 6)]),
    (DELTA, [range(i, i + 4, 3) for i in range(3)]),
  ],
)
def test_layers_are_in_one_entry_each(shape, ranges):
  c = small_config(layers=6, decode_layers='scan', **shape)
  found = stretches.entries(c)
  assert [list(r) for r in found] == [list(r) for r in ranges]
  assert sorted(i for r in found for i in r) == list(range(6))
  # On a CPU, layers are unrolled by default.
  c = small_config(layers=6, **shape)
  assert [list(r) for r in stretches.entries(c)] == [[i] for i in range(6)]


def test_a_deeper_model_has_a_program_of_equal_length():
  """Counts the operations that decode one token."""
  n = {}
  for layers in (2, 12):
    for how in ('scan', 'unroll'):
      c = small_config(layers=layers, train_layers='scan', decode_layers=how)
      model = transformer.build(c)

      def decode(tokens, model=model, c=c):
        params = jax.eval_shape(
          lambda: jax.tree.map(
            lambda s: jnp.zeros(s.shape),
            model.specs,
            is_leaf=lambda s: hasattr(s, 'axes'),
          )
        )
        params = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), params)
        valid = jnp.ones((B, P), bool)
        _, cache = model.prefill(params, tokens, valid, 2, 8)
        weights = model.decode_params(params)
        return model.decode(weights, jnp.zeros(2 * B, int), cache, 0)[0]

      text = jax.jit(decode).lower(jnp.zeros((B, P), int)).as_text()
      n[how, layers] = text.count('stablehlo.')
  assert n['scan', 12] == n['scan', 2]
  assert n['unroll', 12] > 3 * n['unroll', 2]
