"""Grouped matrix products: each run of rows times its own matrix, for experts.

  dot(rows [M,K], w [E,K,F], sizes [E]) -> [M,F]

`jax.lax.ragged_dot` with a custom gradient. On TPU, jax 0.10 lowers its own
gradient of the weights to a product of all rows with all E matrices (128 times
the work for Qwen3-30B-A3B's experts). Here that gradient is computed by the
grouped kernel of `jax.experimental.pallas.ops.tpu.megablox`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import sharding

# Rows, inputs and outputs of a tile of the kernel: 2 MiB of on-chip memory.
TILE = (256, 512, 512)


@jax.custom_vjp
def dot(rows: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
  """Multiplies runs of rows [M,K], `sizes` int [E] long, by their w [E,K,F]."""
  return jax.lax.ragged_dot(rows, w, sizes)


def _forward(rows, w, sizes):
  return dot(rows, w, sizes), (rows, w, sizes)


def _backward(kept, g):
  rows, w, sizes = kept
  of_rows = jax.lax.ragged_dot(g, w.swapaxes(1, 2), sizes)
  if sharding.platform() == 'tpu' and sharding.is_own_device():
    of_w = tiled(rows, g, sizes, w.dtype)
  else:
    product = functools.partial(jax.lax.ragged_dot, rows, group_sizes=sizes)
    _, pull = jax.vjp(product, w)
    (of_w,) = pull(g)
  return of_rows, of_w.astype(w.dtype), np.zeros(sizes.shape, jax.dtypes.float0)


dot.defvjp(_forward, _backward)


def tiled(
  rows: jax.Array, g: jax.Array, sizes: jax.Array, dtype, *, interpret=False
) -> jax.Array:
  """Computes rows^T g of every run, [E,K,F], with the Pallas kernel on one
  device, summed in float32. An expert without rows has 0.
  """
  # This import takes a fifth of a second, and only this kernel needs it.
  from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

  padding = ((0, -rows.shape[0] % TILE[0]), (0, 0))
  rows, g = jnp.pad(rows, padding), jnp.pad(g, padding)
  return tgmm(rows.T, g, sizes, dtype, TILE, interpret=interpret)
