"""Conditionals of a plan: the dearest branch, or shares of the branches."""

import jax
import jax.numpy as jnp
import pytest
from small import small_config

from jaxrl_reason import logits as logits_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.models.parts import attention
from jaxrl_reason.planning import costs, hlo, seeds

N = 16
PRODUCT = 2 * N**3


def text_of(f, *args) -> str:
  return jax.jit(f).lower(*args).compile().as_text()


def flops(text: str) -> float:
  return costs.of(text, sharding.make_mesh((8, 1, 1))).total().flops


def products(n: int):
  """Returns a branch of n products."""

  def f(x):
    for _ in range(n):
      x = jnp.sin(x @ x)
    return x

  return f


def switch(which, x):
  return jax.lax.switch(which, [products(n) for n in (1, 2, 6)], x)


def shared(which, x):
  with trees.branches((3, 0, 1)):
    return switch(which, x)


# Other trips, because names are no part of the key of a compilation cache.
@pytest.mark.parametrize(
  'f, trips, want', [(switch, 5, 6), (shared, 7, (3 + 6) / 4)]
)
def test_a_conditional_counts_its_dearest_branch_or_its_shares(f, trips, want):
  def repeated(x, which):
    return jax.lax.scan(lambda x, i: (f(i, x), None), x, which)[0]

  text = text_of(repeated, jnp.ones((N, N)), jnp.zeros(trips, int))
  assert flops(text) == pytest.approx(trips * want * PRODUCT)


def test_the_gradient_of_branches_has_their_shares():
  def f(x, which):
    return shared(which, x).sum()

  text = text_of(jax.grad(f), jnp.ones((N, N)), 1)
  # Two more products of the gradient for each product.
  assert flops(text) == pytest.approx(3 * (3 + 6) / 4 * PRODUCT)


def test_filters_count_as_off():
  def f(x, k):
    return logits_lib.shaped(x, logits_lib.Sampling.make(1.0, k, 1.0, 0.0))

  text = text_of(f, jnp.ones((4, 64)), 0)
  module = hlo.parse(text)
  ops = [o for c in module.computations.values() for o in c.values()]
  assert [hlo.shares(o) for o in ops if o.kind == 'conditional'] == [(1.0, 0.0)]
  dear = text.replace('branches_1_0', 'branches_0_1')
  assert seeds.starts(hlo.parse(dear)) > seeds.starts(module) + 2


def test_layers_with_windows_count_by_their_number():
  """Layers with two windows share one body and one kernel for each window."""
  c = small_config(attention='splash', layers=3, windows=(4, 0, 4))
  rows = attention.describe(jnp.ones((1, 128), bool))
  attend = attention.make(rows, c, (4, 0))
  q, k = (jnp.ones((1, 128, n, c.head_dim)) for n in (c.heads, c.kv_heads))
  text = jax.jit(attend).lower(q, k, k, 0).compile().as_text()
  ops = [o for x in hlo.parse(text).computations.values() for o in x.values()]
  found = [hlo.shares(o) for o in ops if o.kind == 'conditional']
  assert (2 / 3, 1 / 3) in found
