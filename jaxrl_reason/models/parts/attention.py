"""Attention over whole rows, with a choice of kernels.

  einsum  the reference: scores [N,Q,T,T], any platform
  blocked a block of queries at a time and the keys up to it, for CPUs; einsum
          if a row has only one block
  xla     `jax.nn.dot_product_attention`, with XLA's own lowering
  splash  Pallas on TPU: scores exist in blocks only; elsewhere interpreted,
          which is slow and computes the same numbers
          (the idea of https://arxiv.org/abs/2205.14135)
  cudnn   fused on NVIDIA GPUs, in bfloat16

All kernels take one description of the rows (`Rows`) instead of a mask. A token
attends to the tokens of its segment up to itself, and only to those in its
window (`windows`). Padding is a segment too, so that every query attends to
something. Queries are all tokens of the rows, or those from column `start` on;
then the caller supplies keys for the columns before it too.

`make` binds a description and returns attend(q, k, v, which, sinks). `which` is
the index of the layer's window: an int, or traced if layers with several
windows share one compiled body. Sinks (f32 [Q], a score per head without a
value) take their share of each softmax (https://arxiv.org/abs/2309.17453, as
learned in gpt-oss).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding, trees
from jaxrl_reason.models.parts import (
  blocked,
  exact_attention,
  indexer,
  kernel_choice,
  layers,
  splash,
  stored,
)
from jaxrl_reason.models.parts import windows as windows_lib
from jaxrl_reason.models.parts.fixed_point import with_gradient_of
from jaxrl_reason.models.parts.layers import einsum32, soft_cap, softmax


@struct.dataclass
class Rows:
  """Segments and positions of rows [N,T]."""

  segments: jax.Array  # i32 [N,T], 0: padding
  positions: jax.Array  # i32 [N,T], of a token within its segment
  packed: bool = struct.field(pytree_node=False)  # rows of several segments


def describe(valid: jax.Array) -> Rows:
  """Builds the description of rows of one sequence each, or of several.

  Args:
    valid: bool [N,T], the real tokens; or i32 [N,T], the segment of every
      token, numbered upward along the row from 1, 0 for padding.
  """
  ids = valid.astype(jnp.int32)
  at = jnp.cumsum(ids > 0, axis=1) - 1
  packed = valid.dtype != bool
  if packed:
    last = jax.lax.cummax(ids, axis=1)
    first = last > jnp.pad(last[:, :-1], ((0, 0), (1, 0)))
    at -= jax.lax.cummax(jnp.where(first, at, 0), axis=1)
  return Rows(ids, jnp.maximum(at, 0), packed)


def _seen(
  queries: Rows, keys: Rows, ordered: jax.Array, windows: tuple[int, ...]
) -> Callable:
  """Returns a function which -> bool [N,Q,S], the keys [N,S] that each query
  [N,Q] attends to.

  Args:
    ordered: bool [Q,S], true for keys that do not come after a query.
  """
  seen = ordered & (queries.segments[:, :, None] == keys.segments[:, None, :])
  if not any(windows):
    return lambda which: seen
  distance = queries.positions[:, :, None] - keys.positions[:, None, :]

  def of(which):
    most = windows_lib.reaches(windows, which, queries.positions)
    return seen & (distance < most[:, :, None])

  return of


def _masks(rows: Rows, windows: tuple[int, ...], start: int) -> Callable:
  """Returns `_seen` for the tokens of whole rows from column `start` on."""
  t = rows.segments.shape[1]
  ordered = jnp.tril(jnp.ones((t, t), bool))[start:]
  queries = columns(rows, start, t) if start else rows
  return _seen(queries, rows, ordered, windows)


def _block(
  windows, rows: Rows, which, first: Any, end: int, size: int | None = None
) -> jax.Array:
  """Returns bool [N,size,end], the keys before column `end` that each of `size`
  queries from column `first` on attends to; None: the queries before `end`.
  """
  size = end - first if size is None else size
  queries = jax.tree.map(lambda x: _columns_of(x, first, size), rows)
  ordered = first + jnp.arange(size)[:, None] >= jnp.arange(end)
  return _seen(queries, columns(rows, 0, end), ordered, windows)(which)


def columns(rows: Rows, first: int, end: int) -> Rows:
  """Returns the description of columns `first` to `end` of the rows."""
  return rows.replace(
    segments=rows.segments[:, first:end], positions=rows.positions[:, first:end]
  )


def _einsum(
  rows: Rows, windows, start: int, *, scale: float, cap: float
) -> Callable:
  return _dense(_masks(rows, windows, start), scale=scale, cap=cap)


def _dense(masks: Callable, *, scale: float, cap: float) -> Callable:
  """Builds attention that computes all scores [N,Q,T,S] of queries [N,T] and
  keys [N,S].
  """

  def attend(q, k, v, which, sinks=None, index=None):
    (n, t, heads, _), (s, kv) = q.shape, k.shape[1:3]
    # Head-major, so that every product is a plain batched one: with the heads
    # in the middle XLA's CPU backend is 2.3 times slower, mostly backward. Rows
    # and heads stay two dimensions: if they were merged, they could not be
    # split over two mesh axes, and every device would compute all heads.
    q = exact_attention.heads_first(q * scale, kv)
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)  # [N,K,S,H]
    scores = einsum32('nkth,nksh->nkts', q, k).reshape(n, kv, -1, t, s)
    seen = masks(which)
    if index is not None:
      seen = indexer.of_rows(index, seen)
    if sinks is not None:
      sinks = sinks.reshape(kv, -1, 1, 1)
    p = softmax(soft_cap(scores, cap), seen[:, None, None], sinks)
    p = p.astype(v.dtype).reshape(n, kv, -1, s)
    out = jnp.einsum('nkts,nksh->nkth', p, v)
    return out.reshape(n, heads, t, -1).swapaxes(1, 2)

  return attend


def _blocked(
  rows: Rows, windows, start: int, *, scale: float, cap: float
) -> Callable:
  if rows.segments.shape[1] - start <= blocked.QUERIES:  # one block
    return _einsum(rows, windows, start, scale=scale, cap=cap)

  def seen(of, which, first, end):
    rows, index = of
    found = _block(windows, rows, which, first, end)
    if index is None:
      return found
    return indexer.of_rows(index, found, first - start)

  return blocked.attention(rows, blocked.How(seen, start, cap), scale=scale)


def _columns_of(x: jax.Array, first: Any, size: int) -> jax.Array:
  """Returns `size` columns of x [N,T,...]; first may be traced."""
  if isinstance(first, int):
    return x[:, first : first + size]
  return jax.lax.dynamic_slice_in_dim(x, first, size, axis=1)


def _exact(
  rows: Rows, windows, start: int, fast: Callable, cache_dtype: str, **how
) -> Callable:
  """Builds exact attention over blocks of queries. The gradient is that of
  `fast`, with keys and values rounded as in the cache.

  Args:
    fast: one of KERNELS; how: scale and cap.
  """
  n = rows.segments.shape[1] - start
  whole = sharding.n_context_shards() > 1
  loops = [[(0, n)]] if whole else blocked.loops(n)

  def forward(q, k, v, sinks, rows, which):
    kept = exact_attention.of_rows(k, v, cache_dtype)

    def block(first, size, end):
      upto = start + end
      own = jax.tree.map(lambda x: x[:, :, :upto], kept)
      seen = _block(windows, rows, which, start + first, upto, size)
      queries = _columns_of(q, first, size)
      return exact_attention.rows(queries, *own, seen, sinks, **how)

    return blocked.over(loops, block)

  def other(q, k, v, sinks, rows, which):
    k, v = (stored.straight_through(x, cache_dtype) for x in (k, v))
    return fast(rows, windows, start, **how)(q, k, v, which, sinks)

  f = with_gradient_of(other, forward)
  return lambda q, k, v, which, sinks=None: f((q, k, v, sinks), (rows, which))


def _xla(rows: Rows, windows, start, *, scale, cap, implementation='xla'):
  del cap  # refused by `kernel_choice`
  masks = _masks(rows, windows, start)

  def attend(q, k, v, which, sinks=None):  # refused by `kernel_choice`
    options = dict(scale=scale, implementation=implementation)
    mask = masks(which)[:, None]
    return jax.nn.dot_product_attention(q, k, v, mask=mask, **options)

  return attend


def _by_window(windows: tuple[int, ...], of: Callable) -> Callable:
  """Builds attend(q, k, v, which) from kernels whose window is static: one
  kernel per window, and a switch if `which` is traced.
  """
  branches = [functools.partial(of, window) for window in windows]

  def attend(q, k, v, which, sinks=None):
    if isinstance(which, int):
      return branches[which](q, k, v, sinks)
    return jax.lax.switch(which, branches, q, k, v, sinks)

  return attend


def _splash(
  rows: Rows, windows, start: int, *, scale: float, cap: float
) -> Callable:
  def of(window, *heads):
    ids, size = rows.segments, abs(window)
    if window < 0:
      ids = windows_lib.chunk_ids(ids, rows.positions, window)
    kernel = splash.attention(ids, start, scale=scale, cap=cap)
    return kernel(size, *heads)

  return _by_window(windows, of)


def _cudnn(
  rows: Rows, windows, start: int, *, scale: float, cap: float
) -> Callable:
  """Builds attention by cuDNN.

  The kernel supports padding on the right only, so rows of one segment are
  moved to the left and described by their lengths. Packed rows, queries that
  are only some of their rows, and chunks are described by a mask.
  """
  if rows.packed or start or min(windows) < 0:
    how = dict(scale=scale, cap=cap, implementation='cudnn')
    return _xla(rows, windows, start, **how)
  t = rows.segments.shape[1]
  real = rows.segments > 0
  first, lengths = jnp.argmax(real, axis=1), real.sum(axis=1)
  there = (jnp.arange(t) + first[:, None]) % t
  back = (jnp.arange(t) - first[:, None]) % t

  def of(window, q, k, v, sinks):  # refused by `kernel_choice`
    out = jax.nn.dot_product_attention(
      *(layers.reordered(x, there, back) for x in (q, k, v)),
      scale=scale,
      is_causal=True,
      query_seq_lengths=lengths,
      key_value_seq_lengths=lengths,
      local_window_size=(window - 1, 0) if window else None,
      implementation='cudnn',
    )
    # The kernel's output past a row's end is unspecified.
    out = layers.reordered(out, back, there)
    return jnp.where(real[..., None, None], out, 0)

  return _by_window(windows, of)


KERNELS = {
  'einsum': _einsum,
  'blocked': _blocked,
  'xla': _xla,
  'splash': _splash,
  'cudnn': _cudnn,
}


def _of_gradients(c: Any, rows: Rows) -> Callable:
  """Returns the kernel that computes the gradients of exact attention."""
  long = rows.segments.shape[1] > splash.LANES
  if sharding.platform() == 'tpu' and long and not c.kv_rank:
    return _splash
  return _einsum if sharding.n_context_shards() > 1 else _blocked


def between(
  queries: Rows,
  keys: Rows,
  ordered: jax.Array,
  c: Any,
  windows: tuple[int, ...],
) -> Callable:
  """Builds attention like `make`, with einsum, for queries [N,T] that are some
  of the tokens of rows with keys [N,S].

  Args:
    ordered: bool [T,S], true for keys that do not come after a query.
  """
  seen = _seen(queries, keys, ordered, windows)
  how = dict(scale=c.score_scale, cap=c.attention_cap)
  if c.numerics == 'exact':
    return exact_attention.whole(seen, **how, cache_dtype=c.cache_dtype)
  return _dense(seen, **how)


def make(
  rows: Rows, c: Any, windows: tuple[int, ...], start: int = 0
) -> Callable:
  """Builds attend(q [N,T-start,Q,H], k, v [N,T,K,H], which, sinks [Q] or None,
  `indexer.Index` or None) -> [N,T-start,Q,H] for Config c.

  Args:
    windows: the distinct ones, see `windows`. splash and cudnn measure those
      above 0 by array index, the others by position, which is the same if a
      segment has no holes.
    start: column of the first query.
  """
  name = kernel_choice.resolve(c, rows.segments.shape[1])
  how = dict(scale=c.score_scale, cap=c.attention_cap)
  if name == 'exact':
    how |= dict(cache_dtype=c.cache_dtype, fast=_of_gradients(c, rows))
    attend = _exact(rows, windows, start, **how)
  else:
    attend = KERNELS[name](rows, windows, start, **how)
  counts = tuple(map(c.layer_windows.count, windows))
  more = rows.segments.shape[1] > c.index_topk  # keys than an indexer chooses

  def on_shards(q, k, v, which, sinks=None, index=None):
    k, v = (_whole(x) for x in (k, v))
    if index is None or not more:
      with trees.branches(counts):
        return attend(q, k, v, which, sinks)
    index = index.replace(keys=_whole(index.keys))
    return attend(q, k, v, which, sinks, index)

  return on_shards


def _whole(x: jax.Array) -> jax.Array:
  return sharding.gathered(x) if sharding.n_context_shards() > 1 else x
