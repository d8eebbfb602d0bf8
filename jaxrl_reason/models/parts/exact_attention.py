"""Attention with one result in every program (`exact_layers`).

Keys may come from whole rows or from the two caches of decoding, in any order
and with any padding between them, because all terms of a query's sums are on
one grid.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason.models.parts import fixed_point, layers, stored
from jaxrl_reason.models.parts.exact_layers import soft_cap
from jaxrl_reason.models.parts.fixed_point import (
  digits,
  exp,
  products,
  rounded,
  to,
  value,
)
from jaxrl_reason.models.parts.stored import Stored


def _by(b: int, x: jax.Array) -> jax.Array:
  """Groups rows [R,K,M,...] that share keys: [b,K,R/b*M,...]."""
  x = x.reshape(b, -1, *x.shape[1:]).swapaxes(1, 2)
  return x.reshape(*x.shape[:2], -1, *x.shape[4:])


def _apart(r: int, x: jax.Array) -> jax.Array:
  """Undoes `_by`: [b,K,R/b*M,...] -> [R,K,M,...]."""
  b, k = x.shape[:2]
  x = x.reshape(b, k, r // b, -1, *x.shape[3:]).swapaxes(1, 2)
  return x.reshape(r, *x.shape[2:])


def split(x: Stored) -> tuple:
  """Returns the digits of keys or values [B,K,S,H] and their grids [B,K,S,1].

  A number of an int8 cache is one digit, and its scale is the grid.
  """
  if x.scale is None:
    return digits(x.values, -1)
  return fixed_point.one_digit(x.values), x.scale[..., None]


def attend(
  q: jax.Array,
  parts: list,
  *,
  scale: float,
  cap: float = 0.0,
  sinks: jax.Array | None = None,
) -> jax.Array:
  """Computes attention from queries to the keys of several arrays at once.

  Args:
    q: [R,K,M,H], M queries of a row share K heads of keys.
    parts: for each array, (k of [B,K,S,H], v of [B,K,S,U], both as `split`
      returns them; seen, a bool that broadcasts to [R,K,M,S]). R/B adjacent
      rows share the keys of an array.
    sinks: f32 broadcasting to [R,K,M,1], scores without a value.

  Returns:
    [R,K,M,U], in the dtype of q.
  """
  r, (of_q, q_grid) = len(q), digits(q, -1)
  all_scores, values = [], []
  for (of_k, k_grid), of_v, seen in parts:
    b = len(k_grid)
    shared = [_by(b, x) for x in of_q]
    s = value(products('bkmh,bksh->bkms', shared, of_k))
    s = _apart(r, s * k_grid.swapaxes(2, 3)) * q_grid
    s = soft_cap(rounded(s * scale), cap)
    all_scores.append(jnp.where(seen, s, layers.MASKED))
    values.append((b, *of_v))
  top = functools.reduce(
    jnp.maximum, [s.max(axis=-1, keepdims=True) for s in all_scores]
  )
  if sinks is not None:
    top = jnp.maximum(top, sinks)
  p = [
    jnp.where(seen, exp(s - top), 0) for s, (*_, seen) in zip(all_scores, parts)
  ]
  total = fixed_point.total(*p)[..., None]
  if sinks is not None:
    total = total + exp(sinks - top)
  out = _averaged(p, values)
  return to(rounded(out / jnp.maximum(total, 1e-30)), q.dtype)


def _averaged(p: list, values: list) -> jax.Array:
  """Sums values with weights p [R,K,M,S]. A weight is multiplied by the grid of
  its value, so that all terms are on one grid. Weights have three digits,
  because the sum of many small weights may exceed the largest one.
  """
  r = len(p[0])
  weights = [
    rounded(x * jnp.repeat(grid.swapaxes(2, 3), r // b, axis=0))
    for x, (b, _, grid) in zip(p, values)
  ]
  of_all, grid = digits(jnp.concatenate(weights, axis=-1), -1, 3)
  first, sums = 0, []
  for x, (b, of_v, _) in zip(p, values):
    own = [_by(b, d[..., first : first + x.shape[-1]]) for d in of_all]
    levels = products('bkms,bksu->bkmu', own, of_v)
    # As integers, because a sum over all parts may exceed 2^24.
    sums.append([_apart(r, y).astype(jnp.int32) for y in levels])
    first += x.shape[-1]
  return value([functools.reduce(jnp.add, y) for y in zip(*sums)]) * grid


def heads_first(q: jax.Array, kv: int) -> jax.Array:
  """Reshapes queries [N,t,Q,H] to [N,K,Q/K*t,H], rows that share K keys."""
  n, t, _, width = q.shape
  q = q.reshape(n, t, kv, -1, width).transpose(0, 2, 3, 1, 4)
  return q.reshape(n, kv, -1, width)


def whole(
  seen: Callable, *, scale: float, cap: float, cache_dtype: str
) -> Callable:
  """Builds attention of whole rows: (q [N,t,Q,H], k, v [N,S,K,H], which,
  sinks [Q] or None) -> [N,t,Q,H].

  Args:
    seen: which -> bool [N,t,S], the keys that each query attends to.
    cache_dtype: dtype of the cache in decoding. Keys and values of whole rows
      are rounded in the same way.
  """

  def attend(q, k, v, which, sinks=None):
    kept = of_rows(k, v, cache_dtype)
    return rows(q, *kept, seen(which), sinks, scale=scale, cap=cap)

  return attend


def of_rows(k: jax.Array, v: jax.Array, cache_dtype: str) -> list[tuple]:
  """Splits keys and values [N,S,K,H] of whole rows into digits [N,K,S,H]."""
  return [split(stored.store(x.swapaxes(1, 2), cache_dtype)) for x in (k, v)]


def rows(q, k: tuple, v: tuple, seen, sinks=None, **how) -> jax.Array:
  """Computes attention of q [N,t,Q,H] to keys and values from `of_rows`.

  Args:
    seen: bool [N,t,S]; sinks: [Q] or None; how: scale and cap, see `attend`.

  Returns:
    [N,t,Q,U].
  """
  (n, t, heads, _), kv = q.shape, k[1].shape[1]
  mask = jnp.tile(seen[:, None], (1, 1, heads // kv, 1))  # [N,1,g*t,S]
  if sinks is not None:
    sinks = jnp.repeat(sinks.astype(jnp.float32).reshape(kv, -1), t, axis=1)
    sinks = sinks[..., None]
  out = attend(heads_first(q, kv), [(k, v, mask)], sinks=sinks, **how)
  return out.reshape(n, heads, t, -1).swapaxes(1, 2)


def cached(
  q: jax.Array,
  prompt: tuple,
  own: tuple,
  prompt_mask: jax.Array,
  own_mask: jax.Array,
  *,
  scale: float,
  cap: float,
  sinks: jax.Array | None = None,
) -> jax.Array:
  """Computes attention of new tokens to their prompt and their completion.

  Args:
    q: [S,Q,H] or [S,O,Q,H].
    prompt: keys, values, Stored of [B,K,P,H]; own: of completions, Stored of
      [S,K,R,H].
    prompt_mask, own_mask: see `cached.attend`.
  """
  shape, (b, kv) = q.shape, prompt[0].values.shape[:2]
  s, group = shape[0], shape[-2] // kv
  q = heads_first(q.reshape(s, -1, *shape[-2:]), kv)
  n = q.shape[2] // group  # tokens per row

  def of_rows(mask):
    """Returns a mask [R or 1,O or 1,T] as [R or 1,1,O*g,T]."""
    mask = mask[:, None]
    return mask if mask.shape[2] == 1 else jnp.tile(mask, (1, 1, group, 1))

  if prompt_mask.shape[1] > 1:
    prompt_mask = prompt_mask.reshape(s, n, -1)
  else:
    prompt_mask = jnp.repeat(prompt_mask, s // b, axis=0)
  masks = of_rows(prompt_mask), of_rows(own_mask)
  parts = [
    (*map(split, kept), seen) for kept, seen in zip((prompt, own), masks)
  ]
  if sinks is not None:
    sinks = jnp.repeat(sinks.astype(jnp.float32).reshape(kv, -1), n, axis=1)
    sinks = sinks[..., None]
  out = attend(q, parts, scale=scale, cap=cap, sinks=sinks)
  out = out.reshape(s, -1, n, out.shape[-1]).swapaxes(1, 2)
  return out.reshape(*shape[:-1], -1)
