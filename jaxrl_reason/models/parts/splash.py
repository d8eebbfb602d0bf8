"""Attention by the Pallas kernel "splash" of TPUs, for whole rows.

Scores exist in blocks only (the idea of https://arxiv.org/abs/2205.14135).
Elsewhere than on a TPU the kernel is interpreted, which is slow and computes
the same numbers.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding
from jaxrl_reason.models.parts import layers

LANES = 128  # of a TPU: rows are padded to a multiple of it


def attention(
  segments: jax.Array, start: int, *, scale: float, cap: float
) -> Callable:
  """Builds attend(window, q, k, v, sinks) for the tokens of rows from column
  `start` on.

  Args:
    segments: i32 [N,T], of every token; 0: padding.
  """
  shards, t = sharding.n_context_shards(), segments.shape[1]
  tile = LANES * shards
  # Queries that are padding attend to keys that are padding, so the keys extend
  # as far as the queries do.
  n_q = -(-(t - start) // tile) * tile
  n_kv = -(-(start + n_q) // tile) * tile
  ids = jnp.pad(segments, ((0, 0), (0, n_kv - t)))
  q_ids = ids[:, start : start + n_q]

  def padded(x, n):
    padding = (0, 0), (0, 0), (0, n - x.shape[1]), (0, 0)
    return jnp.pad(x.swapaxes(1, 2), padding)

  def of(window, q, k, v, sinks):
    heads = sharding.n_local_heads(q.shape[2], k.shape[2])
    kernel = _kernel(
      heads, (n_q, n_kv), start, window=window, cap=cap, shards=shards
    )
    f = sharding.on_shards(
      _rows,
      kernel.manual_sharding_spec,
      n_rows=q.shape[0],
      n_heads=k.shape[2],
      n_beside=int(sinks is not None),
    )
    keys = padded(k, n_kv), padded(v, n_kv)
    args = kernel, padded(q * scale, n_q), q_ids, *keys, ids
    if sinks is not None:
      # One copy per row, because the kernel is split over devices by rows.
      args = *args, jnp.broadcast_to(sinks, (q.shape[0], *sinks.shape))
    return f(*args)[:, :, : t - start].swapaxes(1, 2)

  return of


def _kernel(
  heads: int,
  shape: tuple[int, int],
  start: int,
  *,
  window: int,
  cap: float,
  shards: int,
) -> Any:
  """Builds the splash kernel.

  Args:
    shape: numbers of queries and keys, multiples of LANES * shards.
    start: column of the first query.
    shards: number of devices that the queries are split over.
  """
  # This import takes half a second, and only this kernel needs it.
  from jax.experimental.pallas.ops.tpu import splash_attention as splash

  mask = splash.CausalMask(shape, start, shard_count=shards)
  if window:
    mask = splash.LocalMask(shape, (window - 1, 0), start, shard_count=shards)
  of_q, of_kv = (
    next(n for n in (512, 256, LANES) if t // shards % n == 0) for t in shape
  )
  return splash.make_splash_mha(
    splash.MultiHeadMask([mask] * heads),
    block_sizes=splash.BlockSizes(
      block_q=of_q,
      block_kv=of_kv,
      block_kv_compute=of_kv,
      block_q_dkv=of_q,
      block_kv_dkv=of_kv,
      block_kv_dkv_compute=of_kv,
      block_q_dq=of_q,
      block_kv_dq=of_kv,
    ),
    head_shards=1,
    q_seq_shards=shards,
    attn_logits_soft_cap=cap or None,
    residual_checkpoint_name=layers.KEPT,
    interpret=sharding.platform() != 'tpu',
  )


def _rows(kernel, q, q_ids, k, v, ids, sinks=None):
  """Runs the kernel on one device's rows: q [N,Q,t,H], q_ids [N,t]; k and v
  [N,K,T,H], ids [N,T], sinks [N,Q].
  """
  from jax.experimental.pallas.ops.tpu import splash_attention as splash

  def of_row(q, k, v, q_ids, ids, sinks):
    return kernel(q, k, v, splash.SegmentIds(q_ids, ids), sinks=sinks)

  return jax.vmap(of_row)(q, k, v, q_ids, ids, sinks)
