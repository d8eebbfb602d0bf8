"""Latent attention: keys and values as projections of one short row per token.

  c = norm(x W_down),  r = rotated(x W_rope)     cached: [c, r], for all heads
  k_h = [c K_h, r],  v_h = c V_h

(https://arxiv.org/abs/2405.04434). Whole rows are computed with keys and values
per head (`expanded`), which is less work for many queries. The cache stores
only [c, r]. New tokens are multiplied with c instead of with the heads' keys: q
. (c K_h) = (q K_h^T) . c, and sum p (c V_h) = (sum p c) V_h (`absorbed`,
`opened`), so that no head's keys are computed. Attention then has one head of
keys, whose first features are the values.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason.models.parts import indexer, layers

EPS = 1e-6  # of the norms in here, independent of the model's


def heads_of(x: jax.Array, p: dict, c: Any, angles) -> tuple[tuple, dict]:
  """Computes q [...,Q,H], and the cached row of a token, [...,1,R + W] of rank
  R and W rotated features, from x [...,D].

  Returns:
    ((q, row), {}); with an indexer ((q, row, its key [...,1,I]), {'index': the
    other inputs of its choice}).
  """

  def turned(y, n):
    plain, part = jnp.split(y, [n], axis=-1)
    part = c.ops.rotate(part, *angles[:2], interleaved=c.rope_interleaved)
    return jnp.concatenate([plain, part], axis=-1)

  low = x
  if 'q_down' in p:
    low = c.ops.dense(x, p['q_down'], p.get('q_down_bias'))
    low = c.ops.rms_norm(low, p['q_down_norm'], EPS)
  q = c.ops.dense(low, p['q_up' if 'q_down' in p else 'q'])
  kept = c.ops.dense(x, p['kv_down'], p.get('kv_down_bias'))
  row, part = jnp.split(kept, [c.kv_rank], axis=-1)
  row = c.ops.rms_norm(row, p['kv_down_norm'], EPS)
  kept = jnp.concatenate([row, part], axis=-1)[..., None, :]
  heads = turned(q, c.head_dim - c.rope_dim), turned(kept, c.kv_rank)
  if 'index' not in p:
    return heads, {}
  index, key = indexer.of_tokens(x, low, p['index'], c, angles)
  return (*heads, key), {'index': index}


def expanded(kept: jax.Array, up, c: Any) -> tuple[jax.Array, jax.Array]:
  """Computes k [...,Q,H] and v [...,Q,U] from cached rows [...,1,R + W]."""
  row, part = jnp.split(kept[..., 0, :], [c.kv_rank], axis=-1)
  both = layers.dense(row, up)
  k, v = jnp.split(both, [c.head_dim - c.rope_dim], axis=-1)
  part = jnp.broadcast_to(part[..., None, :], (*k.shape[:-1], c.rope_dim))
  return jnp.concatenate([k, part], axis=-1), v


def absorbed(q: jax.Array, up, c: Any) -> jax.Array:
  """Projects queries [...,Q,H] onto the cached rows, [...,Q,R + W]."""
  n = c.head_dim - c.rope_dim
  keys = c.ops.plain(up, q.dtype)[..., :n]
  row = c.ops.contracted('...qh,rqh->...qr', q[..., :n], keys)
  return jnp.concatenate([row, q[..., n:]], axis=-1)


def opened(out: jax.Array, up, c: Any) -> jax.Array:
  """Projects sums of cached rows [...,Q,R + W] to values [...,Q,U]."""
  values = c.ops.plain(up, out.dtype)[..., c.head_dim - c.rope_dim :]
  sums = out[..., : c.kv_rank]
  return c.ops.contracted('...qr,rqu->...qu', sums, values)


def over(kernel: Callable, up, c: Any, few: bool = False) -> Callable:
  """Builds attention to cached rows, (q, rows, which) -> values [...,Q,U]; with
  an indexer, (q, rows, its keys, which, index=).

  Args:
    kernel: attention of whole rows to keys and values (`attention.make`).
    few: multiply queries with the rows, as decoding does.
  """

  def attend(q, row, *rest, index=None):
    *keys, which = rest
    own = {} if index is None else {'index': index.replace(keys=keys[0])}
    if few or c.numerics == 'exact':  # the second as `decoding` does
      return opened(kernel(absorbed(q, up, c), row, row, which, **own), up, c)
    return kernel(q, *expanded(row, up, c), which, **own)

  return attend
