"""Samples completions that share their beginnings: the rows of a prompt are the
leaves of a tree.

  at columns   all rows of a prompt fork before tokens of given indices (TreePO,
               https://arxiv.org/abs/2508.17445)
  by entropy   rows are sampled to their ends, and each forks before the k
               tokens whose distributions had the highest entropies (TreeRL,
               https://arxiv.org/abs/2506.11902, and FR3E,
               https://arxiv.org/abs/2507.07017); with `ends`, before first
               tokens of steps

  at turns     episodes fork before turns (`rollouts.episode_tree`)

A fork gives a row `width` children. Their tokens before the fork are sampled
once, and their keys are kept once (`Model.fork`): they become a part of the
prompt that the children attend to. By entropy, the first child is the row
itself, so the other children of all its forks are sampled together.

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
from jaxrl_reason.rollouts.slots import Slots


@dataclasses.dataclass(frozen=True)
class Tree:
  """The forks of a completion.

  Attributes:
    width: children of a fork, at least 2.
    columns: indices of the tokens before which all rows fork, increasing, at
      least 1; (): each row forks before tokens with high entropies.
    ends: tokens that end a step; with them, the forks of a row are after some
      of these tokens. (): they are before any token.
    turns: numbers of the turns before which all episodes fork, from 1,
      increasing; (): each forks before turns whose first tokens have high
      entropies. Read for episodes.
    forks: of each row, without columns and turns.
  """

  width: int
  columns: tuple[int, ...] = ()
  ends: tuple[int, ...] = ()
  turns: tuple[int, ...] = ()
  forks: int = 1

  @property
  def leaves(self) -> int:
    """Counts the leaves below a row that has not forked yet."""
    levels = max(len(self.columns), len(self.turns))
    return self.width**levels if levels else 1 + self.others * self.forks

  @property
  def others(self) -> int:
    """Counts the children of a fork besides the first."""
    return self.width - 1

  def rows(self, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the first leaves of n rows, and of the others."""
    leaf = np.arange(n).reshape(-1, self.leaves)
    return leaf[:, 0], leaf[:, 1:].ravel()

  def of_others(self, at: jax.Array) -> jax.Array:
    """Returns the fork of each other leaf, int [S,leaves-1], at least 1, of the
    forks at [S,forks] of rows.
    """
    return jnp.repeat(jnp.maximum(at, 1), self.others, axis=1)

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

  def nodes_of_forks(self, at: jax.Array, room: int) -> jax.Array:
    """Numbers the nodes of the leaves of rows that chose their forks, from 0:
    int [S,leaves,C]. The first leaf is the row; the others follow their forks.

    Args:
      at: int [S,forks], falling, the tokens before which a row forks; 0: none.
      room: C.
    """
    at = at[..., None]
    after = (at > 0) & (jnp.arange(room) >= at)  # [S,forks,C]
    level = jnp.sum(after, axis=1)[:, None]  # the row's forks before a token
    own = (level == 0) | (level == self.forks)
    row = jnp.where(own, jnp.minimum(level, 1), self.leaves + level)
    leaf = 1 + jnp.arange(1, self.leaves)[:, None]
    others = jnp.where(jnp.repeat(after, self.others, axis=1), leaf, row)
    return jnp.concatenate([row, others], axis=1)

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
  """Returns the values [S*n,...] of n adjacent children of each row, from those
  of the row, x [S,1,...], or of each child, [S,n,...].
  """
  s, _, *shape = x.shape
  x = jnp.broadcast_to(x, (s, n, *shape))
  return sharding.rows(x.reshape(s * n, *shape))


def begun(out: dict, at: jax.Array, n: int, blank: dict | None = None) -> dict:
  """Returns the arrays [S*n,C] of n children of each row, with its tokens
  before index `at` [S,1 or n].

  Args:
    out: arrays [S,C] by name; blank: fill values by name, 0 for the others.
  """
  there = jnp.arange(out['tokens'].shape[1]) < at[..., None]

  def kept(name, x):
    fill = jnp.asarray((blank or {}).get(name, 0), x.dtype)
    return children(jnp.where(there, x[:, None], fill), n)

  return {name: kept(name, x) for name, x in out.items()}


def joined(first: Any, others: Any, alone: jax.Array) -> Any:
  """Joins rows that chose their forks and the other leaves: [S*leaves,...].

  Args:
    first: arrays [S,...]; others: arrays [S*(leaves-1),...].
    alone: bool [S], rows without a fork; all their leaves are copies.
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


def _fork(model: Model, slots: Slots, at, n: int, columns: int):
  """Replaces every row by n children that share its tokens before index `at`.

  Args:
    at: int [S,1], or [S,n] for each child, at least 1.
    columns: tokens that a child decodes at most.
  """
  shared = at - 1  # each child decodes the last token in common
  cache = model.fork(slots.cache, shared - 1 - slots.shared[:, None], n)
  token = jnp.take_along_axis(slots.out['tokens'], shared, axis=1)
  shared = children(shared, n)
  return slots.replace(
    step=jnp.int32(0),
    t=shared,
    shared=shared,
    token=children(jnp.maximum(token, 0), n),
    over=children(slots.over[:, None], n),
    cache=model.grow(cache, columns),
    out=begun(slots.out, at, n, BLANK),
  )


def _at_columns(how: Tree, every: Draw, slots: Slots, room: int):
  """Samples to each fork in turn, and then to the end: (slots of all rows, the
  nodes of their tokens [1,leaves,C]).
  """
  n, before = len(every.keys), 1
  ends = (*how.columns[1:], room)
  for fork, end in zip(how.columns, ends):
    rows = len(slots.token)
    draw = of_rows(every, np.arange(0, n, n // rows))
    slots = sampler.loop(draw, None, fork - before, slots)
    at = sharding.rows(jnp.full((rows, 1), fork))
    slots = _fork(every.model, slots, at, how.width, end - fork + 1)
    before = fork
  slots = sampler.loop(every, None, room - before, slots)
  level = np.searchsorted(how.columns, np.arange(room), side='right')
  return slots, how.nodes(level)


def _by_entropy(how: Tree, every: Draw, slots: Slots, room: int):
  """Samples rows to their ends, and then the other children of their forks:
  (slots of all rows, the nodes of their tokens [S,leaves,C]).
  """
  first, others = how.rows(len(every.keys))
  slots = sampler.loop(of_rows(every, first), None, room, slots)
  given = slots.out['tokens'], slots.out['entropy']
  at = forks_of(*given, how.ends, how.forks)
  alone, whole = at[:, 0] == 0, slots.out
  slots = slots.replace(over=alone)
  slots = _fork(every.model, slots, how.of_others(at), how.leaves - 1, room)
  slots = sampler.loop(of_rows(every, others), None, room, slots)
  slots = slots.replace(out=joined(whole, slots.out, alone))
  return slots, how.nodes_of_forks(at, room)


def forks_of(
  tokens: jax.Array,
  entropy: jax.Array,
  ends: tuple[int, ...] = (),
  forks: int = 1,
) -> jax.Array:
  """Returns the indices of the tokens with the highest entropies, int [S,forks]
  (see `highest`).

  Args:
    tokens: int [S,C], NONE after the end; entropy: f32 [S,C], nats.
    ends: tokens that end a step; the forks are after them. (): anywhere.
  """
  may = (tokens != NONE) & (jnp.arange(tokens.shape[1]) > 0)
  if ends:
    before = jnp.roll(tokens, 1, axis=1)
    may &= jnp.isin(before, jnp.asarray(ends))
  return highest(entropy, may, forks)


def highest(entropy: jax.Array, may: jax.Array, forks: int) -> jax.Array:
  """Returns the indices of the highest entropies [S,C] where `may` [S,C] is
  true, int [S,forks], falling. A row with fewer such indices has them more than
  once; 0: it has none.
  """
  at = jax.lax.top_k(jnp.where(may, entropy, -1.0), forks)[1]
  n = jnp.sum(may, axis=1, keepdims=True)
  at = jnp.take_along_axis(at, jnp.arange(forks) % jnp.clip(n, 1, forks), 1)
  return -jnp.sort(-jnp.where(n > 0, at, 0), axis=1)


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
