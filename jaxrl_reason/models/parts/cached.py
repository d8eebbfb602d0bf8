"""A new token's attention to a cache: `attend`.

On TPU it is a Pallas kernel over blocks of columns: scores and their sums stay
in on-chip memory, of the cache only blocks are read that some row looks at, and
an int8 cache is read as int8.

  look(q [N,K,M,H], kept [n,N,K,T,H], at, seen [N,1 or M,T])
    -> out f32 [N,K,M,H], its log-sum-exp f32 [N,K,M]

M queries share K heads of keys: the heads of a group for a row's own tokens,
those of all its rows for a prompt. Softmaxes over parts of the keys are merged
by their log-sum-exps (`merged`). The kernel takes the stack of all layers with
the number of one, so that no layer's keys are cut out of it.

The online softmax is that of https://arxiv.org/abs/2205.14135, split over keys
as in https://arxiv.org/abs/2311.01282.
"""

import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding, trees
from jaxrl_reason.models.parts import attention
from jaxrl_reason.models.parts.layers import MASKED, einsum32, soft_cap

LANES = attention.LANES
COLUMNS = 512  # of a block, at most; 8 blocks or more of a short cache
BYTES = 2**20  # of a block of keys: two of keys, two of values are on the chip
NAME = 'cached_attention'
# On-chip memory of chips that have much, and of others. A layer's cache that
# takes a small share of it stays there between operations, which a kernel's
# operands do not.
MUCH, OTHERS, SHARE = 128 * 2**20, 64 * 2**20, 8
KINDS = 'TPU v5 lite', 'TPU v5e', 'TPU v6 lite', 'TPU v6e'  # of MUCH


def of(entry: Any, at: jax.Array | None) -> Any:
  """Returns what an entry holds of its at-th layer; None: of its only one."""
  return entry if at is None else trees.take(entry, at)


def pays(c: Any, rows: int, columns: int) -> bool:
  """Tells whether the kernel is to read a cache of so many rows and columns:
  on TPU a large one; elsewhere, interpreted, if asked for by name.
  """
  if attention.resolve(c, columns) != 'splash':
    return False
  if sharding.platform() != 'tpu':
    return True
  device = jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
  numbers = sum(
    sharding.n_local_heads(heads, heads) * width for heads, width in c.cached
  )
  dtype = c.dtype if c.cache_dtype == 'model' else c.cache_dtype
  size = rows * columns * numbers * jnp.dtype(dtype).itemsize
  chip = MUCH if device.device_kind in KINDS else OTHERS
  return size / sharding.n_row_shards() > chip / SHARE


def _columns(t: int) -> int:
  """Columns of a block: all T, or a multiple of LANES."""
  return t if t <= LANES else min(max(t // 8 // LANES, 1) * LANES, COLUMNS)


def _fetched(seen: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
  """(live i32 [T/size], which blocks some row looks at; the block to be held
  meanwhile i32 [T/size]: what is held already is not read again).
  """
  live = jnp.any(seen, axis=(0, 1)).reshape(-1, size).any(axis=1)
  place = jnp.arange(len(live))
  held = jax.lax.cummax(jnp.where(live, place, 0))
  return live.astype(jnp.int32), held.astype(jnp.int32)


def _kernel(
  at, live, held, q, seen, *refs, n_kept: int, cap: float, columns: int
):  # fmt: skip
  """One block of columns of some rows; refs are keys, values, their scales,
  the results, and running maxima, sums and outputs.
  """
  from jax.experimental import pallas as pl

  del at, held
  kept, refs = refs[:n_kept], refs[n_kept:]
  *scales, out, lse, top, total, acc = refs
  block, last = pl.program_id(1), pl.num_programs(1) - 1
  n, k, m, h = q.shape

  @pl.when(block == 0)
  def begin():
    top[...] = jnp.full_like(top, MASKED)
    total[...] = jnp.zeros_like(total)
    acc[...] = jnp.zeros_like(acc)

  @pl.when(live[block] > 0)
  def go_on():
    def flat(ref):
      return ref[0].reshape(n * k, *ref.shape[3:]).astype(q.dtype)

    def product(a, b, axes):
      dims = (axes, ((0,), (0,)))
      return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)

    keys, values = flat(kept[0]), flat(kept[-1])
    if columns % keys.shape[1]:  # past the last column there is anything
      place = jax.lax.broadcasted_iota(jnp.int32, values.shape, 1)
      left = columns - block * keys.shape[1]
      values = jnp.where(place < left, values, 0)
    s = product(q[...].reshape(n * k, m, h), keys, ((2,), (2,)))
    s = s.reshape(n, k, m, -1)
    if scales:
      s = s * scales[0][0][:, :, None]
    s = soft_cap(s, cap)
    there = seen[...][:, None] > 0
    s = jnp.where(there, s, MASKED)
    new = jnp.maximum(top[...], s.max(axis=-1, keepdims=True))
    p = jnp.where(there, jnp.exp(s - new), 0)
    old = jnp.exp(top[...] - new)
    total[...] = total[...] * old + p.sum(axis=-1, keepdims=True)
    top[...] = new
    if scales:
      p = jnp.where(there, p * scales[-1][0][:, :, None], 0)
    p = p.astype(q.dtype).reshape(n * k, m, -1)
    acc[...] = acc[...] * old + product(p, values, ((2,), (1,))).reshape(
      n, k, m, -1
    )

  @pl.when(block == last)
  def end():
    least = jnp.maximum(total[...], 1e-30)
    out[...] = acc[...] / least
    lse[...] = jnp.broadcast_to(top[...] + jnp.log(least), lse.shape)


def look(
  q: jax.Array,
  kept: tuple,
  at: jax.Array,
  seen: jax.Array,
  *,
  cap: float,
  live: float = 1.0,
  interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
  """Attends from queries to cached keys, on one device.

  Args:
    q: [N,K,M,H], scaled.
    kept: of keys and values, or of one row for both: `cache.Kept` of
      [n,N,K,T,H].
    at: i32 [], which of the n.
    seen: bool [1 or N,1 or M,T].
    cap: of the scores, 0: none.
    live: share of the columns that are live in the mean over a run, for the
      kernel's account of its bytes.
    interpret: without a TPU.

  Returns:
    (f32 [N,K,M,H], log-sum-exp f32 [N,K,M]; MASKED or less of queries that
    look at nothing).
  """
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import tpu as pltpu

  (n, k, m, h), t = q.shape, kept[0].values.shape[3]
  size, of_key = _columns(t), kept[0].values.dtype.itemsize * h
  blocks = -(-t // size)
  seen = jnp.pad(seen, ((0, 0), (0, 0), (0, blocks * size - t)))
  fits = (r for r in range(n, 0, -1) if n % r == 0)
  rows = next(r for r in fits if r == 1 or r * k * size * of_key <= BYTES)
  alive, held = _fetched(seen, size)
  seen = seen.astype(jnp.float32)

  def of_row(i, j, *_):
    return i, 0, 0, 0

  def of_seen(i, j, at, live, held):
    return (i if len(seen) > 1 else 0), 0, held[j]

  def of_kept(i, j, at, live, held):
    return at[0], i, 0, held[j], 0

  def of_scale(i, j, at, live, held):
    return at[0], i, 0, held[j]

  values = [x.values for x in kept]
  scales = [x.scale for x in kept if x.scale is not None]
  some = min(len(seen), rows)
  of_q = pl.BlockSpec((rows, k, m, h), of_row)
  run = functools.partial(_kernel, n_kept=len(kept), cap=cap, columns=t)
  read = len(kept) * n * k * (of_key + 4 * bool(scales))
  columns = min(t, t * live + size / 2)
  shapes = (n, k, m, h), (n, k, m, LANES)
  out, lse = pl.pallas_call(
    run,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=3,
      grid=(n // rows, blocks),
      in_specs=[
        of_q,
        pl.BlockSpec((some, seen.shape[1], size), of_seen),
        *[pl.BlockSpec((1, rows, k, size, h), of_kept) for _ in values],
        *[pl.BlockSpec((1, rows, k, size), of_scale) for _ in scales],
      ],
      out_specs=[of_q, pl.BlockSpec((rows, k, m, LANES), of_row)],
      scratch_shapes=[
        pltpu.VMEM((rows, k, m, 1), jnp.float32),
        pltpu.VMEM((rows, k, m, 1), jnp.float32),
        pltpu.VMEM((rows, k, m, h), jnp.float32),
      ],
    ),
    out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
    cost_estimate=pl.CostEstimate(
      flops=int(4 * q.size * columns),
      transcendentals=int(n * k * m * columns),
      bytes_accessed=int(
        read * columns + q.nbytes + sum(4 * math.prod(s) for s in shapes)
      ),
    ),
    name=NAME,
    interpret=interpret,
  )(at.reshape(1), alive, held, q, seen, *values, *scales)
  return out, lse[..., 0]


def merged(parts: list, sinks: jax.Array | None = None) -> jax.Array:
  """Merges what the same queries got of several sets of keys.

  Args:
    parts: (out f32 [...,H], log-sum-exp f32 [...]) of each.
    sinks: f32 [...], scores that are nobody's.
  """
  tops = [lse for _, lse in parts] + ([] if sinks is None else [sinks])
  whole = functools.reduce(jnp.logaddexp, tops)
  return sum(out * jnp.exp(lse - whole)[..., None] for out, lse in parts)


def _by_kernel(
  q, prompt, own, at, prompt_mask, own_mask, *, scale, cap, sinks
):  # fmt: skip
  """`attend` of one token a row, on every device its own rows and heads. In the
  mean over a completion, or turns, its own columns are half full.
  """
  if at is None:  # entries of one layer
    prompt, own = jax.tree.map(operator.itemgetter(None), (prompt, own))
    at = jnp.int32(0)
  (s, heads, width), (_, b, kv, *_) = q.shape, prompt[0].values.shape
  interpret = sharding.platform() != 'tpu'
  group = heads // kv
  alone = (q * scale).reshape(s, kv, group, width)
  # [B,K,I*g,H]: the rows of a prompt read its keys together.
  shared = alone.reshape(b, s // b, kv, group, width).swapaxes(1, 2)
  shared = shared.reshape(b, kv, -1, width)
  if prompt_mask.shape[1] > 1:
    prompt_mask = jnp.repeat(prompt_mask, group, axis=1)

  def on_device(q, kept, seen, live):
    f = functools.partial(look, cap=cap, live=live, interpret=interpret)
    return sharding.by_rows_and_heads(f, q, kept, at, seen)

  out, lse = on_device(shared, prompt, prompt_mask, 1.0)
  parts = [
    x.reshape(b, kv, s // b, group, *x.shape[3:])
    .swapaxes(1, 2)
    .reshape(s, kv, group, *x.shape[3:])
    for x in (out, lse)
  ]
  if sinks is not None:
    sinks = sinks.astype(jnp.float32).reshape(kv, group)
  both = [tuple(parts), on_device(alone, own, own_mask, 0.5)]
  return merged(both, sinks).reshape(s, heads, -1).astype(q.dtype)


def _scores(q, keys: Any, mask, cap: float) -> jax.Array:
  """Scores [B,I,K,g,S] of q [B,I,K,g,H] over cached keys [B,K,S,H], float32;
  mask bool [1 or B,1 or I,S].
  """
  scores = einsum32('bikgh,bksh->bikgs', q, keys.values)
  if keys.scale is not None:
    scores = scores * keys.scale[:, None, :, None]
  return jnp.where(mask[:, :, None, None], soft_cap(scores, cap), MASKED)


def _values(p, values: Any, dtype) -> jax.Array:
  """Values [B,K,S,H] weighted by p [B,I,K,g,S], float32."""
  if values.scale is not None:
    p = p * values.scale[:, None, :, None]
  return jnp.einsum('bikgs,bksh->bikgh', p.astype(dtype), values.values)


def attend(
  q: jax.Array,
  prompt: tuple,
  own: tuple,
  at: jax.Array | None,
  prompt_mask: jax.Array,
  own_mask: jax.Array,
  *,
  by_kernel: bool = False,
  scale: float,
  cap: float = 0.0,
  sinks: jax.Array | None = None,
) -> jax.Array:
  """Attends from new tokens of rows to their group's prompt and their own
  completion.

  The rows of a prompt read one copy of its keys: that part is a real matrix
  product instead of one of matrix and vector for each, and nothing is repeated.
  One softmax over the scores of both parts is what merging two of them by their
  log-sum-exps gives, and needs no second pass.

  Args:
    q: [S,Q,H] or, O tokens of each row, [S,O,Q,H]; S = B*I, the I rows of a
      prompt adjacent.
    prompt: keys, values of the prompts: Kept of [B,K,P,H]; or one that is both.
    own: keys, values of the completions so far: Kept of [S,K,R,H].
    at: of entries of several layers, which of them; None: they are of one.
    prompt_mask: bool [B,1 or I*O,P], the prompt tokens each may look at.
    own_mask: bool [1 or S,O,R], the columns each may look at.
    by_kernel: as it is on TPU; of one token of each row.
    scale: of the scores; cap: their soft cap, 0 for none.
    sinks: [Q], a score per head that is nobody's.

  Returns:
    As q.
  """
  if by_kernel:
    seen, how = (prompt_mask, own_mask), dict(scale=scale, cap=cap, sinks=sinks)
    return _by_kernel(q, prompt, own, at, *seen, **how)
  prompt, own = of((prompt, own), at)
  shape, (b, kv, n_prompt, _) = q.shape, prompt[0].values.shape
  s, width = shape[0], shape[-1]
  alone = q.reshape(s, -1, kv, shape[-2] // kv, width) * scale  # [S,O,K,g,H]
  grouped = alone.reshape(b, -1, *alone.shape[2:])  # [B,I*O,K,g,H]
  shared = _scores(grouped, prompt[0], prompt_mask, cap)
  single = _scores(alone, own[0], own_mask, cap)
  shared = shared.reshape(*single.shape[:-1], n_prompt)
  scores = [shared, single]
  if sinks is not None:
    nobody = sinks.astype(jnp.float32).reshape(kv, -1, 1)
    scores.append(jnp.broadcast_to(nobody, (*single.shape[:-1], 1)))
  p = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1)
  p_shared = p[..., :n_prompt].reshape(*grouped.shape[:-1], n_prompt)
  p_single = p[..., n_prompt : n_prompt + single.shape[-1]]
  # Of a latent layer keys are values as well.
  out = _values(p_single, own[-1], q.dtype)
  out_shared = _values(p_shared, prompt[-1], q.dtype)
  return (out.reshape(shape) + out_shared.reshape(shape)).astype(q.dtype)
