"""Bytes kept for the backward pass, counted by hand and limited by a budget."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small import small_config

from jaxrl_reason.models import remat, spec, transformer

T = 40
LONG = 300  # tokens: several blocks of attention


@pytest.fixture(scope='module')
def config():
  return small_config(layers=5)


def with_policy(c, policy):
  return dataclasses.replace(c, remat=policy)


def test_full_keeps_a_stream_per_layer(config):
  """It keeps float32 [layers, T, D], and the arrays of one layer."""
  more = dataclasses.replace(config, layers=config.layers + 3)
  a, b = (remat.kept_bytes(with_policy(c, 'full'), T) for c in (config, more))
  assert b - a == 3 * T * config.width * 4


def test_dots_keeps_products_with_weights(config):
  """It keeps the residual stream, q, k, v, the attention's output, gate and up.
  The down projection is not needed, and batched products are recomputed.
  """
  c = config
  more = dataclasses.replace(c, layers=c.layers + 1)
  a, b = (remat.kept_bytes(with_policy(x, 'dots'), T) for x in (c, more))
  heads = c.head_dim * (c.heads + 2 * c.kv_heads)
  assert b - a == 4 * T * (c.width + heads + c.width + 2 * c.mlp)


@pytest.mark.parametrize('kernel', ['blocked', 'splash'])
def test_attention_keeps_its_output_and_sums(config, kernel):
  """It keeps float32 [T,Q,H] and [T,Q] per layer, for rows with the kernel's
  padding.
  """
  c = dataclasses.replace(config, attention=kernel)
  more = dataclasses.replace(c, layers=c.layers + 1)
  full, with_it = (
    remat.kept_bytes(with_policy(more, policy), LONG)
    - remat.kept_bytes(with_policy(c, policy), LONG)
    for policy in ('full', 'attention')
  )
  rows = {'blocked': LONG, 'splash': 384}[kernel]
  assert with_it - full == 4 * rows * c.heads * (c.head_dim + 1)


@pytest.mark.parametrize('kernel', ['blocked', 'splash'])
def test_attention_outputs_are_not_recomputed(config, kernel):
  """Gradients are equal and need fewer FLOPs."""
  shape = 1, LONG
  tokens = jax.random.randint(jax.random.key(1), shape, 1, config.vocab)

  def squares(policy):
    c = dataclasses.replace(with_policy(config, policy), attention=kernel)
    model = transformer.build(c)
    params = spec.init(model.specs, jax.random.key(0))

    def loss(p):
      return (model.hidden(p, tokens, tokens > 0) ** 2).sum()

    return params, jax.jit(jax.grad(loss))

  params, f = squares('full')
  _, g = squares('attention')
  a, b = (ravel_pytree(x(params))[0] for x in (f, g))
  np.testing.assert_allclose(a, b, atol=1e-6 * abs(a).max())
  flops = [x.lower(params).compile().cost_analysis()['flops'] for x in (f, g)]
  assert flops[1] < flops[0]


def test_the_compiler_keeps_the_counted_bytes(config):
  """Compares the temporaries of compiled gradients with `full` and `none`."""

  def temporaries(c):
    model = transformer.build(c)
    params = spec.init(model.specs, jax.random.key(0))
    rows = jnp.ones((8, T), jnp.int32)

    def loss(p):
      return model.hidden(p, rows, rows > 0).sum()

    done = jax.jit(jax.grad(loss)).lower(params).compile()
    return done.memory_analysis().temp_size_in_bytes

  policies = [with_policy(config, p) for p in ('none', 'full')]
  less = temporaries(policies[0]) - temporaries(policies[1])
  counted = 8 * (
    remat.kept_bytes(policies[0], T) - remat.kept_bytes(policies[1], T)
  )
  assert 0.5 < less / counted < 1.5


@pytest.mark.parametrize('policy', ['none', 'dots', 'attention', 'full'])
def test_the_budget_decides(config, policy):
  budget = 3 * remat.kept_bytes(with_policy(config, policy), LONG)
  assert remat.choose(config, 3, LONG, budget).remat == policy


def test_full_is_chosen_if_nothing_fits(config):
  assert remat.choose(config, 3, T, 1.0).remat == 'full'
