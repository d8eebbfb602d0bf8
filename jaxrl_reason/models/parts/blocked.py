"""Attention by blocks of queries, for processors without a kernel of their own.

  o_i = softmax(q_i k^T) v            over the keys up to the block's last query
  p_i = exp(q_i k^T - lse_i),  D_i = sum(o_i * do_i)
  ds_i = p_i * (do_i v^T - D_i);  dq_i = ds_i k,  dk += ds_i^T q_i,
  dv += p_i^T do_i

Scores exist one block at a time and only up to its last query: a little more
than half of [T,T]. The backward pass recomputes scores from the log-sum-exps
(https://arxiv.org/abs/2205.14135), so no scores are kept: on a CPU their memory
traffic costs more than their products.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxrl_reason.models.parts.layers import KEPT, MASKED, einsum32, soft_cap

QUERIES = 128  # per block: the products of smaller blocks are slow
MOST = 8  # blocks per row; each is compiled
LOOPS = 2  # per row, at most; one block of each loop is compiled


def spans(n: int) -> list[tuple[int, int]]:
  """Returns (first, end) of the blocks of n queries, of about equal size."""
  count = min(MOST, -(-n // QUERIES))
  size = -(-n // (count * 32)) * 32
  return [(i, min(n, i + size)) for i in range(0, n, size)]


def loops(n: int) -> list[list[tuple[int, int]]]:
  """Divides the blocks of n queries into at most LOOPS loops. All blocks of a
  loop read the keys up to the end of its last block.
  """
  found = spans(n)
  most = -(-len(found) // LOOPS)
  return [found[i : i + most] for i in range(0, len(found), most)]


def over(loops: list, f: Callable) -> jax.Array:
  """Concatenates f(first, size, end) [N,size,...] of blocks of queries.

  Args:
    loops: see `loops`. One block of a loop is compiled, for a traced `first`;
      `end` is that of the last block.
  """
  out = []
  for blocks in loops:
    size, end = blocks[0][1] - blocks[0][0], blocks[-1][1]
    of = functools.partial(f, size=size, end=end)
    if len(blocks) == 1:
      out.append(of(blocks[0][0]))
      continue
    # A shorter last block is computed with full size: it begins earlier, and
    # its first rows are dropped.
    first = [min(a, end - size) for a, _ in blocks]
    found = jax.lax.map(of, jnp.asarray(first))
    out += [y[:, a - b :] for y, (a, _), b in zip(found, blocks, first)]
  return jnp.concatenate(out, axis=1)


class How(NamedTuple):
  """Static settings of blocked attention."""

  # ((rows, index), which, first, end) -> bool [N,end - first,end], the keys
  # before column `end` that each query from column `first` to `end` attends to.
  seen: Callable
  start: int  # column of the first query
  cap: float  # soft cap of the scores; 0: none


def attention(rows: Any, how: How, *, scale: float) -> Callable:
  """Builds attend(q [N,T-start,Q,H], k, v [N,T,K,H], which, sinks [Q] or None,
  index) -> [N,T-start,Q,H].

  Args:
    rows: argument of `how.seen`, with the index.
  """

  def attend(q, k, v, which, sinks=None, index=None):
    (n, t, heads, width), kv = q.shape, k.shape[2]
    # Head-major, for the reason given in `attention._dense`.
    q = (q * scale).reshape(n, t, kv, -1, width).transpose(0, 2, 3, 1, 4)
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)  # [N,K,S,H]
    if sinks is not None:
      sinks = sinks.astype(jnp.float32).reshape(kv, -1, 1, 1)
    out = _attend(how, q, k, v, sinks, (rows, index), which)
    return out.reshape(n, heads, t, -1).swapaxes(1, 2)

  return attend


def _scores(cap: float, q, k, seen) -> jax.Array:
  """Computes masked scores f32 [N,K,g,b,S] of q [N,K,g,b,H] and k [N,K,S,H]."""
  scores = _times('nkth,nksh->nkts', q, k)
  return jnp.where(seen[:, None, None], soft_cap(scores, cap), MASKED)


def _times(how: str, x, y) -> jax.Array:
  """Multiplies x [N,K,g,b,.] by y [N,K,.,.] in float32. The heads of a group
  and the queries are rows of one matrix.
  """
  flat = x.reshape(*x.shape[:2], -1, x.shape[-1])
  out = einsum32(how, flat, y)
  return out.reshape(*x.shape[:-1], out.shape[-1])


def _onto(x, y) -> jax.Array:
  """Sums x [N,K,g,b,S] times y [N,K,g,b,H] over g and b: [N,K,S,H]."""
  flat = [z.reshape(*z.shape[:2], -1, z.shape[-1]) for z in (x, y)]
  return einsum32('nkts,nkth->nksh', *flat)


def _blocks(how: How, n: int, rows, which):
  """Yields (slice of queries, slice of their keys, mask) for each block."""
  for first, end in spans(n):
    upto = how.start + end
    mask = how.seen(rows, which, how.start + first, upto)
    yield slice(first, end), slice(0, upto), mask


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how, q, k, v, sinks, rows, which):
  return _forward(how, q, k, v, sinks, rows, which)[0]


def _forward(how, q, k, v, sinks, rows, which):
  outs, sums = [], []
  for own, upto, mask in _blocks(how, q.shape[3], rows, which):
    scores = _scores(how.cap, q[..., own, :], k[:, :, upto], mask)
    top = jnp.max(scores, axis=-1, keepdims=True)
    if sinks is not None:
      top = jnp.maximum(top, sinks)
    p = jnp.exp(scores - top)
    total = jnp.sum(p, axis=-1, keepdims=True)
    if sinks is not None:
      total = total + jnp.exp(sinks - top)
    out = _times('nkts,nksh->nkth', p.astype(v.dtype), v[:, :, upto])
    outs.append((out / total).astype(v.dtype))
    sums.append(top + jnp.log(total))
  out, lse = (
    checkpoint_name(jnp.concatenate(x, axis=3), KEPT) for x in (outs, sums)
  )
  return out, (q, k, v, sinks, rows, which, out, lse)


def _backward(how, kept, g):
  q, k, v, sinks, rows, which, out, lse = kept
  of_row = jnp.sum(out.astype(jnp.float32) * g, axis=-1, keepdims=True)
  dq, dk, dv = [], jnp.zeros(k.shape), jnp.zeros(v.shape)
  for own, upto, mask in _blocks(how, q.shape[3], rows, which):
    q_own, g_own = q[..., own, :], g[..., own, :]
    scores = _scores(how.cap, q_own, k[:, :, upto], mask)
    p = jnp.exp(scores - lse[..., own, :])
    dp = _times('nkth,nksh->nkts', g_own, v[:, :, upto])
    ds = p * (dp - of_row[..., own, :])
    if how.cap:
      # The square of a masked score is infinite.
      slope = jnp.where(mask[:, None, None], 1 - (scores / how.cap) ** 2, 0)
      ds = ds * slope
    ds, p = ds.astype(q.dtype), p.astype(q.dtype)
    dq.append(_times('nkts,nksh->nkth', ds, k[:, :, upto]))
    dk = dk.at[:, :, upto].add(_onto(ds, q_own))
    dv = dv.at[:, :, upto].add(_onto(p, g_own))
  dq = jnp.concatenate(dq, axis=3)
  # The gradient of a sink: its share of the softmax reduces every output.
  ds = sinks
  if sinks is not None:
    ds = -jnp.sum(jnp.exp(sinks - lse) * of_row, axis=(0, 3), keepdims=True)[0]
  no_gradients = None, None  # of rows and `which`
  grads = (d.astype(x.dtype) for d, x in zip((dq, dk, dv), kept))
  return *grads, ds, *no_gradients


_attend.defvjp(_forward, _backward)
