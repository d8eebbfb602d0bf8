"""Training's forward pass, with each prompt computed once for its group.

With `beginnings`, equal beginnings of a prompt's completions are computed once
too (trees of samples): a slab then has the U distinct tokens of its
completions. Attention alone runs on whole completions, so a row's scores are
those that it would have alone, and every kernel and window works.

  rows [N,T] of G completions per prompt
    -> prompts [K,P] and completions [N,C], concatenated in slabs
    -> L x (attention of prompts to themselves, of completions to the keys of
       their prompt and their own; everything else is per token)
    -> hidden states [N,C,D] from which completions were drawn

Each row's numbers are those that it would have alone. A completion attends to
the keys of its prompt, and prompt tokens never attend to a completion. The one
copy of a prompt is differentiated, so the gradients of its completions add up
there. A slab is one device's share, K/S prompts and N/S completions for S
devices, so that a row never needs a prompt of another device.
"""

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding
from jaxrl_reason.models import blocks
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.parts import attention, delta, latent, residuals


@struct.dataclass
class Layout:
  """Assignment of the prompts of rows [N,T] to slabs of N/S rows."""

  first: jax.Array  # i32 [S,k], for each prompt, one row of the slab with it
  uses: jax.Array  # i32 [S,k], number of rows with the prompt; 0: unused place
  owner: jax.Array  # i32 [S,N/S], index of each row's prompt
  start: int = struct.field(pytree_node=False)  # P, columns of prompts
  own: 'Distinct | None' = None  # of completions; None: all their tokens

  def prompts(self, x: jax.Array) -> jax.Array:
    """Gathers the prompts' columns [S*k,P,...] of rows [N,T,...]."""
    return _of_slabs(x[:, : self.start], self.first)

  def for_rows(self, x: jax.Array) -> jax.Array:
    """Copies values of prompts [S*k,...] to their rows [N,...]."""
    return _of_slabs(x, self.owner)

  def join(self, prompts: jax.Array, completions: jax.Array) -> jax.Array:
    """Concatenates [S*k,P,...] and [N,C,...] to slabs [S,k*P + N/S*C,...], or
    [S,k*P + U,...] with distinct tokens.
    """
    both = [
      sharding.rows(x).reshape(len(self.first), -1, *x.shape[2:])
      for x in (prompts, completions)
    ]
    if self.own is not None:
      both[1] = self.own.gather(completions)
    return sharding.tokens(jnp.concatenate(both, axis=1))

  def cut(self, slabs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Splits slabs into prompts and completions; the inverse of `join`."""
    rest, end = slabs.shape[2:], self.first.shape[1] * self.start
    prompts = slabs[:, :end].reshape(-1, self.start, *rest)
    if self.own is None:
      own = slabs[:, end:].reshape(self.owner.size, -1, *rest)
    else:
      own = self.own.spread(slabs[:, end:])
    return sharding.tokens(prompts), sharding.tokens(own)

  def divided(self, tree: Any) -> tuple[Any, Any]:
    """Returns `cut` of every array of a tree."""
    return tuple(
      jax.tree.map(lambda x, i=i: self.cut(x)[i], tree) for i in (0, 1)
    )

  def extended(self, prompts: jax.Array, completions: jax.Array) -> jax.Array:
    """Concatenates the prompts [S*k,P,...] of rows and [N,C,...]."""
    return jnp.concatenate([self.for_rows(prompts), completions], axis=1)


@struct.dataclass
class Distinct:
  """The distinct tokens of completions [N,C], U of each slab: rows of a prompt
  share the tokens before the first column in which they differ.
  """

  source: jax.Array  # i32 [S,U], index of one of the N/S*C tokens; or N/S*C
  place: jax.Array  # i32 [S,N/S,C], index of each token; past the end: padding
  rows: jax.Array  # i32 [N,C], number of rows that share each token

  def gather(self, x: jax.Array) -> jax.Array:
    """Gathers [S,U,...] of completions [N,C,...], 0 at unused places."""
    return _filled(x.reshape(len(self.source), -1, *x.shape[2:]), self.source)

  def spread(self, x: jax.Array) -> jax.Array:
    """Copies [S,U,...] to the completions [N,C,...], 0 at padding."""
    n, c = self.rows.shape
    out = _filled(x, self.place.reshape(len(x), -1))
    return sharding.rows(out.reshape(n, c, *x.shape[2:]))


def _filled(x: jax.Array, index: jax.Array) -> jax.Array:
  """Gathers x [S,a,...] by index [S,b] within each slab, 0 past the end."""

  def of_slab(x, index):
    return jnp.take(x, index, axis=0, mode='fill', fill_value=0)

  return jax.vmap(of_slab)(x, index)


def beginnings(
  tokens: jax.Array,
  valid: jax.Array,
  same: Sequence[jax.Array],
  n_slabs: int,
  sizes: Sequence[int],
) -> tuple[jax.Array, list[Distinct]]:
  """Finds the distinct tokens of completions for each of several sizes.

  Args:
    tokens: [N,C]; valid: bool [N,C].
    same: arrays [N] that rows with a common beginning have in common.
    sizes: rising numbers U of tokens per slab.

  Returns:
    (index of the first size that fits all slabs, Distincts).
  """
  c = tokens.shape[1]

  def of_slab(tokens, valid, *same):
    differ = tokens[:, None] != tokens
    differ |= valid[:, None] != valid
    common = jnp.min(jnp.where(differ, jnp.arange(c), c), axis=2)
    for x in same:
      common = jnp.where(x[:, None] == x, common, 0)
    shared = common[:, :, None] > jnp.arange(c)  # [n,n,C], fused
    first = jnp.argmax(shared, axis=1)
    new = valid & (first == jnp.arange(len(tokens))[:, None])
    number = jnp.cumsum(new).reshape(new.shape) - 1
    place = jnp.take_along_axis(number, first, axis=0)
    return new, number, place, jnp.sum(shared, axis=1)

  arrays = tokens, valid, *same
  arrays = [x.reshape(n_slabs, -1, *x.shape[1:]) for x in arrays]
  new, number, place, rows = jax.vmap(of_slab)(*arrays)
  at = jnp.arange(new[0].size)

  def of(size: int) -> Distinct:
    def source(new, number):
      to = jnp.where(new, number, size).reshape(-1)
      return jnp.full(size, len(at)).at[to].set(at, mode='drop')

    there = arrays[1]
    return Distinct(
      jax.vmap(source)(new, number),
      jnp.where(there, place, size),
      rows.reshape(tokens.shape),
    )

  most = jnp.max(jnp.sum(new, axis=(1, 2)))
  which = jnp.searchsorted(jnp.asarray(sizes), most)
  return which, [of(size) for size in sizes]


def _of_slabs(x: jax.Array, index: jax.Array) -> jax.Array:
  """Gathers x [S*a,...] by index [S,b] within each slab: [S*b,...]."""
  slabs = x.reshape(len(index), -1, *x.shape[1:])
  taken = jax.vmap(operator.getitem)(slabs, index)
  return sharding.rows(taken.reshape(-1, *x.shape[1:]))


def layout(
  prompt_index: jax.Array, start: int, n_slabs: int, sizes: Sequence[int]
) -> tuple[jax.Array, list[Layout]]:
  """Computes the layout of rows for each of several slab sizes.

  Args:
    prompt_index: i32 [N], equal for rows of one prompt.
    start: P, columns of prompts.
    sizes: rising numbers k of prompts per slab.

  Returns:
    (index of the first size that fits all slabs, Layouts).
  """
  index = prompt_index.reshape(n_slabs, -1)
  order = jnp.argsort(index, axis=1)
  by_prompt = jnp.take_along_axis(index, order, axis=1)
  new = by_prompt != jnp.roll(by_prompt, 1, axis=1).at[:, 0].set(-1)
  rank = jnp.cumsum(new, axis=1) - 1
  slab = jnp.arange(n_slabs)[:, None]
  owner = jnp.zeros_like(rank).at[slab, order].set(rank)

  def of(k: int) -> Layout:
    # Unused places are copies of some prompt, treated as padding.
    some = jnp.full((n_slabs, k), index.shape[1] - 1)
    first = some.at[slab, rank].min(order, mode='drop')
    uses = jnp.zeros_like(some).at[slab, rank].add(1, mode='drop')
    return Layout(first, uses, owner, start)

  which = jnp.searchsorted(jnp.asarray(sizes), rank.max() + 1)
  return which, [of(k) for k in sizes]


def _described(valid: jax.Array, how: Layout):
  """Returns attention's description of whole rows, of prompts and of slabs."""
  rows = attention.describe(valid)
  used = how.uses.reshape(-1, 1) > 0
  prompts = attention.Rows(
    jnp.where(used, how.prompts(rows.segments), 0),
    how.prompts(rows.positions),
    rows.packed,
  )
  own = attention.columns(rows, how.start, valid.shape[1])
  return rows, prompts, jax.tree.map(how.join, prompts, own)


def hidden(c: Config, params: Any, tokens, valid, how: Layout, routes=None):
  """Computes the hidden states from which completions were drawn.

  Args:
    tokens: [N,T]; valid: bool [N,T].
    how: rows of each prompt. The tokens and routes of any of a prompt's rows
      stand for all of them.
    routes: int [N,T,L,k] to replay, or None.

  Returns:
    (hidden [N,C,D] of columns P - 1 to T - 2; load balance of the experts, in
    which a prompt counts once per row, or None).
  """
  rows, prompts, slabs = _described(valid, how)

  def join(x):
    return how.join(how.prompts(x), x[:, how.start :])

  columns = attention.columns(rows, how.start, tokens.shape[1])

  def recalled(heads, taps):
    first, own = how.divided(heads)
    state = delta.empty(len(prompts.segments), c)
    out, state = delta.over_rows(first, taps, prompts, c, state)
    state = jax.tree.map(how.for_rows, state)
    return how.join(out, delta.over_rows(own, taps, columns, c, state)[0])

  def attention_of(windows):
    kernel = attention.make(prompts, c, windows)
    of_rows = attention.make(rows, c, windows, how.start)

    def attend(q, *kv, which, memory, kv_up=None, taps=None, **sinks):
      if taps is not None:
        return recalled(q, taps), None

      def both(q, k, v, which, index=None, **sinks):
        (q, own_q), *kv = map(how.cut, (q, k, v))
        keys = [how.extended(*pair) for pair in kv]
        first, own = sinks, sinks
        if index is not None:
          of_first, of_own = how.divided(index)
          every = how.extended(of_first.keys, of_own.keys)
          first = first | {'index': of_first}
          own = own | {'index': of_own.replace(keys=every)}
        out = kernel(q, *(x for x, _ in kv), which, **first)
        return how.join(out, of_rows(own_q, *keys, which, **own))

      over = both if kv_up is None else latent.over(both, kv_up, c)
      return over(q, *kv, which, **sinks), None

    return attend

  if routes is not None:
    routes = jnp.moveaxis(join(routes), 2, 0)
  x = blocks.embed(params, c, join(tokens))
  inputs = residuals.layer_inputs(params, c, join(tokens), x)
  n = jnp.broadcast_to(how.uses.reshape(-1, 1), prompts.segments.shape)
  once = jnp.ones_like(tokens[:, how.start :])
  weights = how.join(n, once if how.own is None else how.own.rows)
  h, (_, used) = blocks.through(
    params,
    c,
    x,
    slabs,
    tokens.shape[1],
    attention_of,
    routes=routes,
    weights=weights,
    inputs=inputs,
  )
  prompts, own = how.cut(h)
  drawn = jnp.concatenate([how.for_rows(prompts[:, -1:]), own[:, :-1]], axis=1)
  return drawn, used and used['load_balance'].mean()
