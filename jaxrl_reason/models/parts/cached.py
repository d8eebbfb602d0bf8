"""Attention of new tokens to a key-value cache (`attend`; on a GPU
`cached_cudnn`).

On TPU a Pallas kernel goes over blocks of columns. Scores and their sums stay
in on-chip memory, only blocks that some row attends to are read, and an int8
cache is read as int8.

  look(q [N,K,M,H], kept [n,N,K,T,H], at, seen [N,1 or M,T])
    -> out f32 [N,K,M,H], its log-sum-exp f32 [N,K,M]

M queries share K heads of keys: the heads of a group for a row's own tokens,
and those of all its rows for a prompt. Softmaxes over parts of the keys are
merged by their log-sum-exps (`merged`). The kernel takes the stack of all
layers and a layer's index, so that no layer's keys are copied out of the stack.

The online softmax is that of https://arxiv.org/abs/2205.14135, split over keys
as in https://arxiv.org/abs/2311.01282.
"""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding, trees
from jaxrl_reason.models.parts import exact_attention, kernel_choice
from jaxrl_reason.models.parts.layers import MASKED, einsum32, soft_cap
from jaxrl_reason.models.parts.splash import LANES

COLUMNS = 512  # per block, at most; a short cache has 8 blocks or more
BYTES = 2**20  # of a block of keys: the chip holds two of keys, two of values
NAME = 'cached_attention'
# On-chip memory, in bytes, of large chips (KINDS) and of others. A layer's
# cache that takes less than 1 / SHARE of it stays there between operations,
# unlike a kernel's operands.
MUCH, OTHERS, SHARE = 128 * 2**20, 64 * 2**20, 8
KINDS = 'TPU v5 lite', 'TPU v5e', 'TPU v6 lite', 'TPU v6e'  # with MUCH


def of(entry: Any, at: jax.Array | None) -> Any:
  """Returns the values of an entry's at-th layer; None: the entry has one."""
  return entry if at is None else trees.take(entry, at)


def pays(c: Any, rows: int, columns: int) -> bool:
  """Returns whether the kernel should read a cache of that many rows and
  columns: on TPU a large one; elsewhere, interpreted, only if chosen by name.
  """
  if kernel_choice.resolve(c, columns) != 'splash':
    return False
  if sharding.platform() != 'tpu':
    return True
  device = jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
  numbers = max(
    sum(sharding.n_local_heads(n, n) * width for n, width in c.cached(stack))
    for stack in c.stacks
  )
  dtype = c.dtype if c.cache_dtype == 'model' else c.cache_dtype
  size = rows * columns * numbers * jnp.dtype(dtype).itemsize
  chip = MUCH if device.device_kind in KINDS else OTHERS
  return size / sharding.n_row_shards() > chip / SHARE


def _columns(t: int) -> int:
  """Returns the columns per block: all T, or a multiple of LANES."""
  return t if t <= LANES else min(max(t // 8 // LANES, 1) * LANES, COLUMNS)


def _fetched(seen: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
  """Returns (live i32 [T/size], 1 for blocks that some row attends to; block to
  hold at each step i32 [T/size]: a held block is not read again).
  """
  live = jnp.any(seen, axis=(0, 1)).reshape(-1, size).any(axis=1)
  place = jnp.arange(len(live))
  held = jax.lax.cummax(jnp.where(live, place, 0))
  return live.astype(jnp.int32), held.astype(jnp.int32)


def _kernel(
  at, live, held, q, seen, *refs, n_kept: int, cap: float, columns: int
):  # fmt: skip
  """Processes one block of columns of some rows; refs are keys, values, their
  scales, the results, and running maxima, sums and outputs.
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
  def update():
    def flat(ref):
      return ref[0].reshape(n * k, *ref.shape[3:]).astype(q.dtype)

    def product(a, b, axes):
      dims = (axes, ((0,), (0,)))
      return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)

    keys, values = flat(kept[0]), flat(kept[-1])
    if columns % keys.shape[1]:  # values past the last column are undefined
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
  """Computes attention from queries to cached keys on one device.

  Args:
    q: [N,K,M,H], scaled.
    kept: keys and values, or one array for both: `Stored` of [n,N,K,T,H].
    at: i32 [], index of the layer among n.
    seen: bool [1 or N,1 or M,T].
    cap: soft cap of the scores, 0: none.
    live: share of live columns, averaged over a run, for the kernel's cost
      estimate.
    interpret: run without a TPU.

  Returns:
    (f32 [N,K,M,H], log-sum-exp f32 [N,K,M]; MASKED or less for queries that
    attend to nothing).
  """
  from jax.experimental import pallas as pl

  (n, k, m, h), t = q.shape, kept[0].values.shape[3]
  size = _columns(t)
  seen = jnp.pad(seen, ((0, 0), (0, 0), (0, -t % size)))
  alive, held = _fetched(seen, size)
  seen = seen.astype(jnp.float32)
  values = [x.values for x in kept]
  scales = [x.scale for x in kept if x.scale is not None]
  shapes = (n, k, m, h), (n, k, m, LANES)
  out, lse = pl.pallas_call(
    functools.partial(_kernel, n_kept=len(kept), cap=cap, columns=t),
    grid_spec=_grid(q, seen, values, len(scales), size),
    out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
    cost_estimate=_cost(q, values, scales, min(t, t * live + size / 2)),
    name=NAME,
    interpret=interpret,
  )(at.reshape(1), alive, held, q, seen, *values, *scales)
  return out, lse[..., 0]


def _grid(q, seen, values: list, n_scales: int, size: int) -> Any:
  """Returns the grid of blocks: of rows, and of `size` columns. A block that is
  held is not read again (`_fetched`).
  """
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import tpu as pltpu

  n, k, m, h = q.shape
  of_key = values[0].dtype.itemsize * h
  fits = (r for r in range(n, 0, -1) if n % r == 0)
  rows = next(r for r in fits if r == 1 or r * k * size * of_key <= BYTES)

  def of_row(i, j, *_):
    return i, 0, 0, 0

  def of_seen(i, j, at, live, held):
    return (i if len(seen) > 1 else 0), 0, held[j]

  def of_kept(i, j, at, live, held):
    return at[0], i, 0, held[j], 0

  def of_scale(i, j, at, live, held):
    return at[0], i, 0, held[j]

  of_q = pl.BlockSpec((rows, k, m, h), of_row)
  kept = pl.BlockSpec((1, rows, k, size, h), of_kept)
  scale = pl.BlockSpec((1, rows, k, size), of_scale)
  some = min(len(seen), rows), seen.shape[1], size
  widths = 1, 1, h  # of running maxima, sums and outputs
  return pltpu.PrefetchScalarGridSpec(
    num_scalar_prefetch=3,
    grid=(n // rows, seen.shape[2] // size),
    in_specs=[
      *(of_q, pl.BlockSpec(some, of_seen)),
      *(*[kept] * len(values), *[scale] * n_scales),
    ],
    out_specs=[of_q, pl.BlockSpec((rows, k, m, LANES), of_row)],
    scratch_shapes=[pltpu.VMEM((rows, k, m, w), jnp.float32) for w in widths],
  )


def _cost(q, values: list, scales: list, columns: float) -> Any:
  """Estimates the cost of `look` from the columns of a row that are read."""
  from jax.experimental import pallas as pl

  n, k, m, h = q.shape
  of_key = values[0].dtype.itemsize * h + 4 * bool(scales)
  results = 4 * n * k * m * (h + LANES)
  return pl.CostEstimate(
    flops=int(4 * q.size * columns),
    transcendentals=int(n * k * m * columns),
    bytes_accessed=int(
      len(values) * n * k * of_key * columns + q.nbytes + results
    ),
  )


def merged(parts: list, sinks: jax.Array | None = None) -> jax.Array:
  """Merges attention outputs of the same queries over several sets of keys.

  Args:
    parts: (out f32 [...,H], log-sum-exp f32 [...]) of each set.
    sinks: f32 [...], scores without a value.
  """
  tops = [lse for _, lse in parts] + ([] if sinks is None else [sinks])
  total = functools.reduce(jnp.logaddexp, tops)
  return sum(out * jnp.exp(lse - total)[..., None] for out, lse in parts)


def by_kernel(
  q, prompt, own, at, prompt_mask, own_mask, *, scale, cap, sinks=None
):  # fmt: skip
  """Computes `attend` for one token per row, with each device's own rows and
  heads. Averaged over a completion, a row's own columns are half full.
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
  """Computes masked float32 scores [B,I,K,g,S] of q [B,I,K,g,H] and cached keys
  [B,K,S,H]; mask bool [1 or B,1 or I,S].
  """
  scores = einsum32('bikgh,bksh->bikgs', q, keys.values)
  if keys.scale is not None:
    scores = scores * keys.scale[:, None, :, None]
  return jnp.where(mask[:, :, None, None], soft_cap(scores, cap), MASKED)


def _values(p, values: Any, dtype) -> jax.Array:
  """Sums values [B,K,S,H] weighted by p [B,I,K,g,S], in float32."""
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
  scale: float,
  cap: float = 0.0,
  sinks: jax.Array | None = None,
) -> jax.Array:
  """Computes attention from new tokens to their group's prompt and their own
  completion.

  The rows of a prompt read one copy of its keys. So that part is one product of
  matrices, not a product of matrix and vector per row, and keys are not
  repeated. One softmax over the scores of both parts equals two softmaxes
  merged by their log-sum-exps, and needs no second pass.

  Args:
    q: [S,Q,H], or [S,O,Q,H] for O tokens per row; S = B*I, the I rows of a
      prompt adjacent.
    prompt: keys, values of the prompts: Stored of [B,K,P,H]; or one array for
      both.
    own: keys, values of the completions so far: Stored of [S,K,R,H].
    at: index of the layer if entries have several; None: they have one.
    prompt_mask: bool [B,1 or I*O,P], the prompt tokens that each attends to.
    own_mask: bool [1 or S,O,R], the columns that each attends to.
    scale: of the scores; cap: their soft cap, 0 for none.
    sinks: [Q], a score per head without a value.

  Returns:
    The output, shaped like q.
  """
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
    sinks = sinks.astype(jnp.float32).reshape(kv, -1, 1)
    scores.append(jnp.broadcast_to(sinks, (*single.shape[:-1], 1)))
  p = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1)
  p_shared = p[..., :n_prompt].reshape(*grouped.shape[:-1], n_prompt)
  p_single = p[..., n_prompt : n_prompt + single.shape[-1]]
  # In a latent layer, keys are values too.
  out = _values(p_single, own[-1], q.dtype)
  out_shared = _values(p_shared, prompt[-1], q.dtype)
  return (out.reshape(shape) + out_shared.reshape(shape)).astype(q.dtype)


def exactly(q, prompt, own, at, prompt_mask, own_mask, **how) -> jax.Array:
  """Computes `attend` with one result in every program."""
  kept = [(x[0], x[-1]) for x in (of(prompt, at), of(own, at))]
  return exact_attention.cached(q, *kept, prompt_mask, own_mask, **how)


NUMERICS = {'fast': attend, 'exact': exactly}
