"""Grouped products and their gradients equal loops in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason import sharding
from jaxrl_reason.models.parts import grouped

M, K, F = 300, 7, 130
# One expert has no rows, and rows after the last run have no expert.
SIZES = np.array([100, 0, 37, 150])


def arrays():
  keys = jax.random.split(jax.random.key(0), 3)
  shapes = (M, K), (len(SIZES), K, F), (M, F)
  return [jax.random.normal(k, s) for k, s in zip(keys, shapes)]


def runs():
  ends = np.cumsum(SIZES)
  return [slice(b - n, b) for n, b in zip(SIZES, ends)]


def by_loop(rows, w, g):
  rows, w, g = (np.asarray(x, np.float64) for x in (rows, w, g))
  y, of_rows, of_w = np.zeros((M, F)), np.zeros((M, K)), np.zeros_like(w)
  for e, run in enumerate(runs()):
    y[run] = rows[run] @ w[e]
    of_rows[run] = g[run] @ w[e].T
    of_w[e] = rows[run].T @ g[run]
  return y, of_rows, of_w


def test_product_and_gradients():
  rows, w, g = arrays()
  y, pull = jax.vjp(lambda *x: grouped.dot(*x, jnp.asarray(SIZES)), rows, w)
  for got, want in zip((y, *pull(g)), by_loop(rows, w, g)):
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  'dtype, tolerance', [('float32', 1e-4), ('bfloat16', 1)]
)
def test_the_kernel_gives_the_same_gradient(dtype, tolerance):
  rows, w, g = arrays()
  args = rows.astype(dtype), g.astype(dtype), jnp.asarray(SIZES)
  got = grouped.tiled(*args, jnp.dtype(dtype), interpret=True)
  want = by_loop(rows, w, g)[2]
  assert got.dtype == dtype and not got[1].any()
  got = np.asarray(got, np.float32)
  np.testing.assert_allclose(got, want, atol=tolerance)


@pytest.mark.parametrize('sizes', [(0, 0, 300, 0), (300, 0, 0, 0), (0,) * 4])
def test_experts_without_rows_have_no_gradient(sizes):
  rows, _, g = arrays()
  sizes = jnp.asarray(sizes)
  got = grouped.tiled(rows, g, sizes, rows.dtype, interpret=True)
  assert not got[np.asarray(sizes) == 0].any() and np.isfinite(got).all()


@pytest.mark.parametrize('split', ['in', 'out', ''])
def test_the_kernel_runs_on_each_device_of_the_tensor_axis(monkeypatch, split):
  """Rows are those of a device, and the features are split by the partitioner,
  as in `sharding.by_expert`.
  """
  calls, kernel = [], functools.partial(grouped.tiled, interpret=True)

  def counted(rows, g, *rest, **named):
    calls.append((rows.shape, g.shape))
    return kernel(rows, g, *rest, **named)

  monkeypatch.setattr(grouped, 'tiled', counted)
  monkeypatch.setattr(sharding, 'platform', lambda: 'tpu')
  keys = jax.random.split(jax.random.key(0), 3)
  k, f = 8, 128
  rows, g = (jax.random.normal(x, (M, n)) for x, n in zip(keys, (k, f)))
  w = jax.random.normal(keys[2], (len(SIZES), k, f))

  def pulled(rows, w, g):
    product = functools.partial(
      grouped.dot, sizes=jnp.asarray(SIZES), split=split
    )
    return jax.vjp(product, rows, w)[1](g)

  want = pulled(rows, w, g)
  mesh = sharding.make_mesh((1, 4, 2))
  manual = {a for a in sharding.AXES if a != 'tensor'}
  with jax.set_mesh(mesh):
    got = jax.jit(
      jax.shard_map(
        pulled,
        in_specs=jax.P(),
        out_specs=jax.P(),
        axis_names=manual,
        check_vma=False,
      )
    )(rows, w, g)
  one, two = calls
  half_in, half_out = (1 + (split == x) for x in ('in', 'out'))
  assert one == ((M, k), (M, f))
  assert two == ((M, k // half_in), (M, f // half_out))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
    got,
    want,
  )


def test_gradients_of_frozen_weights_are_not_computed():
  """The gradient of unused weights is not computed."""
  rows, w, _ = arrays()

  def f(rows, w):
    return grouped.dot(rows, w, jnp.asarray(SIZES)).sum()

  def flops(wanted):
    program = jax.jit(jax.grad(f, wanted)).lower(rows, w).compile()
    return program.cost_analysis()['flops']

  assert flops((0,)) + 2 * M * K * F <= flops((0, 1))
