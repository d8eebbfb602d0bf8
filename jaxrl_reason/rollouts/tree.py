"""Samples completions that share their beginnings: the rows of a prompt are the
leaves of a tree.

  at columns   all rows of a prompt fork before tokens of given indices (TreePO,
               https://arxiv.org/abs/2508.17445)
  by entropy   rows are sampled to their ends, and each forks once, before the
               token whose distribution had the highest entropy (TreeRL,
               https://arxiv.org/abs/2506.11902); with `ends`, before the first
               token of a step

  at turns     episodes fork before turns (`rollouts.episode_tree`)

A fork gives a row `width` children. Their tokens before the fork are sampled
once, and their keys are kept once (`Model.fork`): they become a part of the
prompt that the children attend to.

The noise of a token depends only on (key, row id, index in the completion), as
in the sampler, and the first child continues with the noise of its parent. So
the first leaf of a fork is the completion that the sampler samples for its row.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import sharding
from jaxrl_reason.base import Model, Params, Rollout
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.rollouts.draw import BLANK, NONE, Draw


@dataclasses.dataclass(frozen=True)
class Tree:
  """The forks of a completion.

  Attributes:
    width: children of a fork, at least 2.
    columns: indices of the tokens before which all rows fork, increasing, at
      least 1; (): one fork, before the token with the highest entropy.
    ends: tokens that end a step; with them, the fork of a row is after one of
      these tokens. (): it is before any token.
    turns: numbers of the turns before which all episodes fork, from 1,
      increasing; (): one fork, before the turn whose first token has the
      highest entropy. Read for episodes.
  """

  width: int
  columns: tuple[int, ...] = ()
  ends: tuple[int, ...] = ()
  turns: tuple[int, ...] = ()

  @property
  def leaves(self) -> int:
    """Counts the leaves below a row that has not forked yet."""
    return self.width ** max(len(self.columns), len(self.turns), 1)

  def nodes(self, level: jax.Array | np.ndarray) -> jax.Array:
    """Numbers the nodes of a row's leaves, from 0: int [S,leaves,C].

    Args:
      level: int, broadcasts to that shape, the forks before each token.
    """
    depth = self.leaves.bit_length()  # at least the number of forks
    below = [self.leaves // self.width**i for i in range(depth)]
    below = np.maximum(below, 1)  # leaves of a node
    first = (self.width ** np.arange(depth) - 1) // (self.width - 1)
    leaf = jnp.arange(self.leaves)[:, None]
    return jnp.asarray(first)[level] + leaf // jnp.asarray(below)[level]

  def numbered(
    self, nodes: jax.Array, there: jax.Array, n_samples: int
  ) -> jax.Array:
    """Numbers the nodes of the rows of a prompt, from 1, and 0 where no token
    is: int [N,C].

    Args:
      nodes: int, broadcasts to [N/leaves,leaves,C], nodes of a tree.
      there: bool [N,C], tokens.
    """
    n, c = there.shape
    roots = n // self.leaves
    root = jnp.arange(roots) % (n_samples // self.leaves) * 2 * self.leaves
    nodes = root[:, None, None] + nodes
    nodes = jnp.broadcast_to(nodes, (roots, self.leaves, c))
    return sharding.rows(jnp.where(there, nodes.reshape(n, c) + 1, 0))

  def shared(self, rollout: Rollout) -> jax.Array:
    """Returns the share of the rows' tokens, f32 [], that an earlier leaf of
    the tree has too. They were not sampled again.
    """
    node = rollout.node.reshape(-1, self.leaves, rollout.node.shape[1])
    copied = (node[:, 1:] == node[:, :-1]) & (node[:, 1:] > 0)
    return jnp.sum(copied) / jnp.maximum(jnp.sum(node > 0), 1)


def children(x: jax.Array, n: int) -> jax.Array:
  """Repeats rows: x [S,...] -> [S*n,...], adjacent copies of each row."""
  return sharding.rows(jnp.repeat(x, n, axis=0))


def begun(out: dict, at: jax.Array, n: int, blank: dict | None = None) -> dict:
  """Returns the arrays [S*n,C] of n children of each row, with its tokens
  before index `at` [S].

  Args:
    out: arrays [S,C] by name; blank: fill values by name, 0 for the others.
  """
  there = jnp.arange(out['tokens'].shape[1]) < at[:, None]

  def kept(name, x):
    fill = jnp.asarray((blank or {}).get(name, 0), x.dtype)
    return children(jnp.where(there, x, fill), n)

  return {name: kept(name, x) for name, x in out.items()}


def joined(first: Any, others: Any, alone: jax.Array) -> Any:
  """Joins the first children and the others to adjacent siblings [S*w,...].

  Args:
    first: arrays [S,...]; others: arrays [S*(w-1),...].
    alone: bool [S], rows without a fork; all their children are copies.
  """

  def join(own, x):
    x = x.reshape(len(alone), -1, *own.shape[1:])
    where = alone.reshape(-1, *[1] * own.ndim)
    x = jnp.where(where, own[:, None], x)
    x = jnp.concatenate([own[:, None], x], axis=1)
    return sharding.rows(x.reshape(-1, *own.shape[1:]))

  return jax.tree.map(join, first, others)


def of_rows(draw: Draw, rows: np.ndarray) -> Draw:
  """Returns the draw of some rows; rows: int [S], their numbers."""
  temperature = sharding.rows(draw.sampling.temperature[rows])
  return dataclasses.replace(
    draw,
    sampling=draw.sampling.replace(temperature=temperature),
    keys=sharding.rows(draw.keys[rows]),
  )


def _fork(model: Model, slots: sampler.Slots, at, n: int, columns: int):
  """Replaces every row by n children that share its tokens before index `at`.

  Args:
    at: int [S], at least 1.
    columns: tokens that a child decodes at most.
  """
  shared = at - 1  # each child decodes the last token in common
  cache = model.fork(slots.cache, shared - 1 - slots.shared, n)
  token = jnp.take_along_axis(slots.out['tokens'], shared[:, None], axis=1)
  shared = children(shared, n)
  return slots.replace(
    step=jnp.int32(0),
    t=shared,
    shared=shared,
    token=children(jnp.maximum(token[:, 0], 0), n),
    over=children(slots.over, n),
    cache=model.grow(cache, columns),
    out=begun(slots.out, at, n, BLANK),
  )


def _at_columns(how: Tree, every: Draw, slots: sampler.Slots, room: int):
  """Samples to each fork in turn, and then to the end: (slots of all rows, the
  nodes of their tokens [1,leaves,C]).
  """
  n, before = len(every.keys), 1
  ends = (*how.columns[1:], room)
  for fork, end in zip(how.columns, ends):
    rows = len(slots.token)
    draw = of_rows(every, np.arange(0, n, n // rows))
    slots = sampler.loop(draw, None, fork - before, slots)
    at = sharding.rows(jnp.full(rows, fork))
    slots = _fork(every.model, slots, at, how.width, end - fork + 1)
    before = fork
  slots = sampler.loop(every, None, room - before, slots)
  level = np.searchsorted(how.columns, np.arange(room), side='right')
  return slots, how.nodes(level)


def _by_entropy(how: Tree, every: Draw, slots: sampler.Slots, room: int):
  """Samples rows to their ends, and then the other children of their forks:
  (slots of all rows, the nodes of their tokens [S,w,C]).
  """
  n, w = len(every.keys), how.width
  first, others = np.arange(0, n, w), np.arange(n).reshape(-1, w)[:, 1:].ravel()
  slots = sampler.loop(of_rows(every, first), None, room, slots)
  at = fork_of(slots.out['tokens'], slots.out['entropy'], how.ends)
  # The children of a row without a fork are copies.
  alone, whole = at == 0, slots.out
  slots = _fork(
    every.model, slots.replace(over=alone), jnp.maximum(at, 1), w - 1, room
  )
  slots = sampler.loop(of_rows(every, others), None, room, slots)
  slots = slots.replace(out=joined(whole, slots.out, alone))
  return slots, how.nodes(after(jnp.where(alone, room, at), room))


def after(at: jax.Array, room: int) -> jax.Array:
  """Returns 1 for the tokens from index at [S] on, else 0: int [S,1,room]."""
  return (jnp.arange(room) >= at[:, None, None]).astype(jnp.int32)


def fork_of(
  tokens: jax.Array, entropy: jax.Array, ends: tuple[int, ...] = ()
) -> jax.Array:
  """Returns the index of the token with the highest entropy, int [S], at least
  1; 0: the row has no such token.

  Args:
    tokens: int [S,C], NONE after the end; entropy: f32 [S,C], nats.
    ends: tokens that end a step; the fork is after one of them. (): anywhere.
  """
  may = (tokens != NONE) & (jnp.arange(tokens.shape[1]) > 0)
  if ends:
    before = jnp.roll(tokens, 1, axis=1)
    may &= jnp.isin(before, jnp.asarray(ends))
  return highest(entropy, may)


def highest(entropy: jax.Array, may: jax.Array) -> jax.Array:
  """Returns the index of the highest entropy [S,C] where `may` [S,C] is true,
  int [S]; 0: it is nowhere true, or there.
  """
  return jnp.argmax(jnp.where(may, entropy, -1.0), axis=1)


def require_fork(model: Model) -> None:
  """Refuses a model without `fork`."""
  if model.fork is None:
    raise ValueError(
      'rl.tree.width: the state of the layers of this model cannot be shared '
      'by several rows (`Model.fork`); set it to 0'
    )


def generate(
  how: Tree,
  model: Model,
  params: Params,
  prompts: jax.Array,
  valid: jax.Array,
  key: jax.Array,
  sampling: Sampling,
  stop: jax.Array,
  *,
  n_samples: int,
  max_new: int,
  row_ids: jax.Array | None = None,
  version: jax.Array | int = 0,
) -> Rollout:
  """Samples the n_samples leaves of every prompt's trees.

  Args:
    how: the forks; others: see `sampler.generate`.

  Returns:
    Rollout of B*G rows. `node` numbers the nodes of a prompt; rows that share a
    node are adjacent. A row that ends before a fork has copies.

  Raises:
    ValueError: the model has no `fork`.
  """
  require_fork(model)
  (b, _), g, c = prompts.shape, n_samples, max_new
  roots = g // how.leaves
  ids = jnp.arange(b * g) if row_ids is None else row_ids
  weights = model.decode_params(params)
  told = False, not how.columns  # entropies
  every = Draw.make(model, weights, key, ids, sampling, stop, *told)
  draw = of_rows(every, np.arange(0, b * g, how.leaves))
  hidden, cache = model.prefill(params, prompts, valid, roots, c, 1)
  cache = model.gapped(cache, how.columns[0] if how.columns else c)
  slots = sampler.begin(
    draw, hidden, cache, None, (prompts, valid), (b, roots, c)
  )
  zero = sharding.rows(jnp.zeros(b * roots, jnp.int32))
  slots = slots.replace(t=zero, shared=zero)
  sample = _at_columns if how.columns else _by_entropy
  slots, nodes = sample(how, every, slots, c)
  out = sampler.to_rollout(every, slots, g, version)
  node = how.numbered(nodes, out.sampled, g)
  return out.replace(node=node, entropy=None)
