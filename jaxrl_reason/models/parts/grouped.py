"""Grouped matrix products: each run of rows times its own matrix, for experts.

  dot(rows [M,K], w [E,K,F], sizes [E]) -> [M,F]

`jax.lax.ragged_dot` with a custom gradient. On TPU, jax 0.10 lowers its own
gradient of the weights to a product of all rows with all E matrices (128 times
the work for Qwen3-30B-A3B's experts). Here that gradient is computed by the
grouped kernel of `jax.experimental.pallas.ops.tpu.megablox`, on each device of
the tensor axis for its own features.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import P

from jaxrl_reason import sharding

# Rows, inputs and outputs of a tile of the kernel: 2 MiB of on-chip memory.
TILE = (256, 512, 512)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def dot(
  rows: jax.Array, w: jax.Array, sizes: jax.Array, split: str = ''
) -> jax.Array:
  """Multiplies runs of rows [M,K], `sizes` int [E] long, by their w [E,K,F].

  Args:
    split: dimension of w that is split over the tensor axis, if any: 'in' (K),
      'out' (F), or '' for none.
  """
  return jax.lax.ragged_dot(rows, w, sizes)


def _forward(rows, w, sizes, split):
  return dot(rows, w, sizes, split), (rows, w, sizes)


def _backward(split, kept, g):
  rows, w, sizes = kept
  of_rows = jax.lax.ragged_dot(g, w.swapaxes(1, 2), sizes)
  of_w = None
  if sharding.platform() == 'tpu':
    kernel = functools.partial(tiled, dtype=w.dtype)
    of_w = _by_feature(kernel, rows, g, sizes, split)
  if of_w is None:
    product = functools.partial(jax.lax.ragged_dot, rows, group_sizes=sizes)
    _, pull = jax.vjp(product, w)
    (of_w,) = pull(g)
  return of_rows, of_w.astype(w.dtype), np.zeros(sizes.shape, jax.dtypes.float0)


dot.defvjp(_forward, _backward)


def _by_feature(
  f: Callable, rows: jax.Array, g: jax.Array, sizes: jax.Array, split: str
) -> jax.Array | None:
  """Runs f(rows [M,K], g [M,F], sizes) -> [E,K,F] on each device separately.
  Returns None if the partitioner splits over other axes than tensor, or the
  features do not divide over it.
  """
  if sharding.is_own_device():
    return f(rows, g, sizes)
  mesh = jax.sharding.get_abstract_mesh()
  axes = {a for a in sharding.AXES if mesh.shape[a] > 1} - {*mesh.manual_axes}
  features = {'in': rows.shape[1], 'out': g.shape[1]}.get(split, 0)
  if axes != {'tensor'} or features % sharding.n_tensor_shards():
    return None
  k, m = ('tensor' if split == x else None for x in ('in', 'out'))
  return jax.shard_map(
    f,
    in_specs=(P(None, k), P(None, m), P()),
    out_specs=P(None, k, m),
    axis_names=axes,
    check_vma=False,  # a Pallas call does not declare how its results vary
  )(rows, g, sizes)


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
