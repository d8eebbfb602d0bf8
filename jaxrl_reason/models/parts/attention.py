"""Attention over whole rows, by any of several kernels.

  einsum  the reference: scores [N,Q,T,T], any platform
  blocked a block of queries at a time and the keys up to it, for CPUs; rows of
          one block as einsum
  xla     `jax.nn.dot_product_attention`, scores left to XLA
  splash  Pallas on TPU: blocks of scores, never all of them; elsewhere it is
          interpreted, slowly and with the same numbers
          (https://arxiv.org/abs/2205.14135 is the idea)
  cudnn   fused on NVIDIA GPUs, in bfloat16

All of them take one description of who looks at whom (`Rows`), so that none
is handed a mask it does not need: a token sees the tokens of its own segment
up to itself, and of those the last `window`. Padding is a segment too, which
gives every query something to look at. Queries are all tokens of the rows, or
those from a column on (`start`): the others' keys come from elsewhere.

`make` binds a description and gives attend(q, k, v, which, sinks), `which` the
index of the layer's window: an int, or traced where layers of several windows
share one compiled body. Sinks, where a model has them (f32 [Q], a score per
head that is nobody's), take their share of each softmax
(https://arxiv.org/abs/2309.17453, as learned in gpt-oss).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding
from jaxrl_reason.models.parts import blocked, layers
from jaxrl_reason.models.parts.layers import einsum32, soft_cap, softmax

MOST = 2**30  # tokens: a window of all of them
LANES = 128  # of a TPU: splash takes rows of a multiple of it


@struct.dataclass
class Rows:
  """What attention is told of rows [N,T]."""

  segments: jax.Array  # i32 [N,T], 0: padding
  positions: jax.Array  # i32 [N,T], of a token among those of its segment
  packed: bool = struct.field(pytree_node=False)  # several segments a row


def describe(valid: jax.Array) -> Rows:
  """Describes rows of one sequence each, or of several.

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
  """which -> bool [N,Q,S], true where a query [N,Q] may look at a key [N,S].

  Args:
    ordered: bool [Q,S], the keys that do not come after a query.
  """
  seen = ordered & (queries.segments[:, :, None] == keys.segments[:, None, :])
  if not any(windows):
    return lambda which: seen
  distance = queries.positions[:, :, None] - keys.positions[:, None, :]
  sizes = jnp.asarray([w or MOST for w in windows])
  return lambda which: seen & (distance < sizes[which])


def _masks(rows: Rows, windows: tuple[int, ...], start: int) -> Callable:
  """`_seen` of the tokens of whole rows from column `start` on."""
  t = rows.segments.shape[1]
  ordered = jnp.tril(jnp.ones((t, t), bool))[start:]
  queries = columns(rows, start, t) if start else rows
  return _seen(queries, rows, ordered, windows)


def _block(windows, rows: Rows, which, first: int, end: int) -> jax.Array:
  """bool [N,end - first,end], who of the queries from column `first` to `end`
  looks at which keys up to there.
  """
  own, keys = columns(rows, first, end), columns(rows, 0, end)
  ordered = jnp.tril(jnp.ones((end, end), bool))[first:]
  return _seen(own, keys, ordered, windows)(which)


def columns(rows: Rows, first: int, end: int) -> Rows:
  """Describes the tokens of rows from column `first` to `end`."""
  return rows.replace(
    segments=rows.segments[:, first:end], positions=rows.positions[:, first:end]
  )


def _einsum(
  rows: Rows, windows, start: int, *, scale: float, cap: float
) -> Callable:
  return _dense(_masks(rows, windows, start), scale=scale, cap=cap)


def _dense(masks: Callable, *, scale: float, cap: float) -> Callable:
  """By scores [N,Q,T,S] of queries [N,T] and keys [N,S], and their masks."""

  def attend(q, k, v, which, sinks=None):
    (n, t, heads, width), (s, kv) = q.shape, k.shape[1:3]
    # Head-major, so that every product is a plain batched one: with the heads
    # in the middle XLA's CPU backend is 2.3 times slower, mostly backward.
    # Rows and heads stay two dimensions: merged, they could not be split over
    # two mesh axes, and every device would hold all heads.
    q = (q * scale).reshape(n, t, kv, -1, width).transpose(0, 2, 3, 1, 4)
    q = q.reshape(n, kv, -1, width)
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)  # [N,K,S,H]
    scores = einsum32('nkth,nksh->nkts', q, k).reshape(n, kv, -1, t, s)
    seen = masks(which)[:, None, None]
    if sinks is not None:
      sinks = sinks.reshape(kv, -1, 1, 1)
    p = softmax(soft_cap(scores, cap), seen, sinks).astype(v.dtype)
    out = jnp.einsum('nkts,nksh->nkth', p.reshape(n, kv, -1, s), v)
    return out.reshape(n, heads, t, -1).swapaxes(1, 2)

  return attend


def _blocked(
  rows: Rows, windows, start: int, *, scale: float, cap: float
) -> Callable:
  if rows.segments.shape[1] - start <= blocked.QUERIES:  # one block
    return _einsum(rows, windows, start, scale=scale, cap=cap)
  how = blocked.How(functools.partial(_block, windows), start, cap)
  return blocked.attention(rows, how, scale=scale)


def _xla(rows: Rows, windows, start, *, scale, cap, implementation='xla'):
  del cap  # refused by `check`
  masks = _masks(rows, windows, start)

  def attend(q, k, v, which, sinks=None):  # refused by `check`
    options = dict(scale=scale, implementation=implementation)
    mask = masks(which)[:, None]
    return jax.nn.dot_product_attention(q, k, v, mask=mask, **options)

  return attend


def _by_window(windows: tuple[int, ...], of: Callable) -> Callable:
  """attend(q, k, v, which) of kernels that need to know the window when they
  are compiled: one per window, and a switch where `which` is traced.
  """
  branches = [functools.partial(of, window) for window in windows]

  def attend(q, k, v, which, sinks=None):
    if isinstance(which, int):
      return branches[which](q, k, v, sinks)
    return jax.lax.switch(which, branches, q, k, v, sinks)

  return attend


def _splash_kernel(
  heads: int,
  shape: tuple[int, int],
  start: int,
  *,
  window: int,
  cap: float,
  shards: int,
) -> Any:
  """The kernel of rows of `shape` queries and keys, multiples of LANES *
  shards, the queries from column `start` on; they are split over so many
  devices.
  """
  # Half a second of imports that only this kernel needs.
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


def _splash_rows(kernel, q, q_ids, k, v, ids, sinks=None):
  """q [N,Q,t,H], q_ids [N,t]; k and v [N,K,T,H], ids [N,T], sinks [N,Q]: of one
  device.
  """
  from jax.experimental.pallas.ops.tpu import splash_attention as splash

  def of_row(q, k, v, q_ids, ids, sinks):
    return kernel(q, k, v, splash.SegmentIds(q_ids, ids), sinks=sinks)

  return jax.vmap(of_row)(q, k, v, q_ids, ids, sinks)


def _splash(
  rows: Rows, windows, start: int, *, scale: float, cap: float
) -> Callable:
  shards, t = sharding.n_context_shards(), rows.segments.shape[1]
  tile = LANES * shards
  # Queries of padding find keys of padding: the keys reach as far as they do.
  n_q = -(-(t - start) // tile) * tile
  n_kv = -(-(start + n_q) // tile) * tile
  ids = jnp.pad(rows.segments, ((0, 0), (0, n_kv - t)))
  q_ids = ids[:, start : start + n_q]

  def padded(x, n):
    padding = (0, 0), (0, 0), (0, n - x.shape[1]), (0, 0)
    return jnp.pad(x.swapaxes(1, 2), padding)

  def of(window, q, k, v, sinks):
    heads = sharding.n_local_heads(q.shape[2], k.shape[2])
    kernel = _splash_kernel(
      heads, (n_q, n_kv), start, window=window, cap=cap, shards=shards
    )
    f = sharding.on_shards(
      _splash_rows,
      kernel.manual_sharding_spec,
      n_rows=q.shape[0],
      n_heads=k.shape[2],
      n_beside=int(sinks is not None),
    )
    keys = padded(k, n_kv), padded(v, n_kv)
    args = kernel, padded(q * scale, n_q), q_ids, *keys, ids
    if sinks is not None:
      # A copy for each row: what is split over devices by rows and heads.
      args = *args, jnp.broadcast_to(sinks, (q.shape[0], *sinks.shape))
    return f(*args)[:, :, : t - start].swapaxes(1, 2)

  return _by_window(windows, of)


def _cudnn(
  rows: Rows, windows, start: int, *, scale: float, cap: float
) -> Callable:
  """Rows of one segment go by their lengths, moved to the left, since the
  kernel knows padding on the right only; packed rows, and queries that are
  some of their rows, by a mask.
  """
  if rows.packed or start:
    how = dict(scale=scale, cap=cap, implementation='cudnn')
    return _xla(rows, windows, start, **how)
  t = rows.segments.shape[1]
  real = rows.segments > 0
  first, lengths = jnp.argmax(real, axis=1), real.sum(axis=1)
  there = (jnp.arange(t) + first[:, None]) % t
  back = (jnp.arange(t) - first[:, None]) % t

  def of(window, q, k, v, sinks):  # refused by `check`
    out = jax.nn.dot_product_attention(
      *(layers.reordered(x, there, back) for x in (q, k, v)),
      scale=scale,
      is_causal=True,
      query_seq_lengths=lengths,
      key_value_seq_lengths=lengths,
      local_window_size=(window - 1, 0) if window else None,
      implementation='cudnn',
    )
    # What it writes past a row's end is not specified.
    out = layers.reordered(out, back, there)
    return jnp.where(real[..., None, None], out, 0)

  return _by_window(windows, of)


# Fields of Config that only einsum and splash know.
SPECIAL = {
  'attention_cap': 'soft cap of scores',
  'sinks': 'attention sinks',
  'kv_rank': 'values of another width than keys',
}
KERNELS = {
  'einsum': _einsum,
  'blocked': _blocked,
  'xla': _xla,
  'splash': _splash,
  'cudnn': _cudnn,
}
FAST = {'cpu': 'blocked', 'gpu': 'cudnn', 'tpu': 'splash'}  # by platform
OF_WHOLE_ROWS = 'blocked', 'cudnn'  # which no mesh may split


def check(kind: str, c: Any) -> None:
  """Refuses a kernel (or 'auto') that cannot compute the attention of Config
  c.

  Raises:
    ValueError: names the keys and what to choose instead.
  """
  for name, what in SPECIAL.items():
    if kind in ('xla', 'cudnn') and getattr(c, name):
      raise ValueError(
        f'model.attention={kind!r} has no {what}, which this model has '
        f'({name}={getattr(c, name)}): choose auto, einsum or splash'
      )
  if kind == 'cudnn' and not _fits_cudnn(c):
    raise ValueError(
      "model.attention='cudnn' takes model.dtype='bfloat16' and heads of a "
      f'multiple of 8 up to 128 wide, not {c.dtype} and {c.head_dim}: choose '
      'auto, einsum or xla'
    )


def _fits_cudnn(c: Any) -> bool:
  narrow = c.head_dim % 8 == 0 and c.head_dim <= 128
  plain = not any(getattr(c, name) for name in SPECIAL)
  return c.dtype == 'bfloat16' and narrow and plain


def resolve(c: Any, columns: int) -> str:
  """Names the kernel of rows of so many columns; of 'auto', the fast one of the
  platform compiled for. Splash on TPU would fill rows up to a tile (37 tokens
  of heads 32 wide: 14 times their bytes), so those are einsum's.

  Raises:
    ValueError: of cudnn and blocked, where a mesh splits rows.
  """
  split = sharding.n_context_shards() > 1
  if c.attention in OF_WHOLE_ROWS and split:
    raise ValueError(
      f'model.attention={c.attention!r} computes whole rows, and config.mesh '
      'splits them over a context axis: choose auto, einsum or xla'
    )
  if c.attention != 'auto':
    return c.attention
  fast = FAST.get(sharding.platform(), 'einsum')
  short = fast == 'splash' and columns <= LANES and not split
  unfit = fast == 'cudnn' and not _fits_cudnn(c)
  if short or unfit or fast in OF_WHOLE_ROWS and split:
    return 'einsum'
  return fast


def between(
  queries: Rows,
  keys: Rows,
  ordered: jax.Array,
  c: Any,
  windows: tuple[int, ...],
) -> Callable:
  """Makes what `make` gives, by einsum, for queries [N,T] that are some of the
  rows whose keys [N,S] are given.

  Args:
    ordered: bool [T,S], the keys that do not come after a query.
  """
  seen = _seen(queries, keys, ordered, windows)
  return _dense(seen, scale=c.score_scale, cap=c.attention_cap)


def make(
  rows: Rows, c: Any, windows: tuple[int, ...], start: int = 0
) -> Callable:
  """Makes attend(q [N,T-start,Q,H], k, v [N,T,K,H], which, sinks [Q] or None)
  -> [N,T-start,Q,H] of Config c.

  Args:
    windows: the distinct ones, in tokens, a query's own included; 0: all. By
      array index in splash and cudnn, by position in the others: the same
      where a segment has no holes.
    start: column of the first query.
  """
  kernel = KERNELS[resolve(c, rows.segments.shape[1])]
  how = dict(scale=c.score_scale)
  attend = kernel(rows, windows, start, cap=c.attention_cap, **how)
  if sharding.n_context_shards() == 1:
    return attend
  gathered = sharding.gathered
  return lambda q, k, v, which, sinks=None: attend(
    q, gathered(k), gathered(v), which, sinks
  )
