"""Samples completions that share their beginnings: the rows of a prompt are the
leaves of a tree.

  at columns   all rows of a prompt fork before tokens of given indices (TreePO,
               https://arxiv.org/abs/2508.17445)
  by entropy   rows are sampled to their ends, and each forks once, before the
               token whose distribution had the highest entropy (TreeRL,
               https://arxiv.org/abs/2506.11902); with `ends`, before the first
               token of a step

A fork gives a row `width` children. Their tokens before the fork are sampled
once, and their keys are kept once (`Model.fork`): they become a part of the
prompt that the children attend to.

The noise of a token depends only on (key, row id, index in the completion), as
in the sampler, and the first child continues with the noise of its parent. So
the first leaf of a fork is the completion that the sampler samples for its row.
"""

import dataclasses

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
  """

  width: int
  columns: tuple[int, ...] = ()
  ends: tuple[int, ...] = ()

  @property
  def leaves(self) -> int:
    """Counts the leaves below a row that has not forked yet."""
    return self.width ** max(len(self.columns), 1)

  def shared(self, rollout: Rollout) -> jax.Array:
    """Returns the share of the rows' tokens, f32 [], that an earlier leaf of
    the tree has too. They were not sampled again.
    """
    node = rollout.node.reshape(-1, self.leaves, rollout.node.shape[1])
    copied = (node[:, 1:] == node[:, :-1]) & (node[:, 1:] > 0)
    return jnp.sum(copied) / jnp.maximum(jnp.sum(node > 0), 1)


def _children(x: jax.Array, n: int) -> jax.Array:
  """Repeats rows: x [S,...] -> [S*n,...], the copies of a row adjacent."""
  return sharding.rows(jnp.repeat(x, n, axis=0))


def _of_rows(draw: Draw, rows: np.ndarray) -> Draw:
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
  index = jnp.arange(slots.out['tokens'].shape[1])
  out = {}
  for name, x in slots.out.items():
    kept = jnp.where(index < at[:, None], x, BLANK.get(name, 0))
    out[name] = _children(kept, n)
  token = jnp.take_along_axis(slots.out['tokens'], shared[:, None], axis=1)
  shared = _children(shared, n)
  return slots.replace(
    step=jnp.int32(0),
    t=shared,
    shared=shared,
    token=_children(jnp.maximum(token[:, 0], 0), n),
    over=_children(slots.over, n),
    cache=model.grow(cache, columns),
    out=out,
  )


def _at_columns(how: Tree, every: Draw, slots: sampler.Slots, room: int):
  """Samples to each fork in turn, and then to the end: (slots of all rows, the
  nodes of their tokens [1,leaves,C]).
  """
  n, before = len(every.keys), 1
  ends = (*how.columns[1:], room)
  for fork, end in zip(how.columns, ends):
    rows = len(slots.token)
    draw = _of_rows(every, np.arange(0, n, n // rows))
    slots = sampler.loop(draw, None, fork - before, slots)
    at = sharding.rows(jnp.full(rows, fork))
    slots = _fork(every.model, slots, at, how.width, end - fork + 1)
    before = fork
  slots = sampler.loop(every, None, room - before, slots)
  return slots, _nodes_at_columns(how, room)


def _nodes_at_columns(how: Tree, room: int) -> jax.Array:
  """Numbers the nodes of a row's leaves, from 0: int [1,leaves,C]."""
  level = np.searchsorted(how.columns, np.arange(room), side='right')
  depth = len(how.columns)
  below = how.width ** (depth - level)  # leaves of a node
  first = np.array([how.width**i - 1 for i in range(depth + 1)])
  first = first // (how.width - 1)  # nodes on the levels above
  leaf = np.arange(how.leaves)[:, None]
  return jnp.asarray(first[level] + leaf // below)[None]


def _by_entropy(how: Tree, every: Draw, slots: sampler.Slots, room: int):
  """Samples rows to their ends, and then the other children of their forks:
  (slots of all rows, the nodes of their tokens [S,w,C]).
  """
  n, w = len(every.keys), how.width
  first, others = np.arange(0, n, w), np.arange(n).reshape(-1, w)[:, 1:].ravel()
  slots = sampler.loop(_of_rows(every, first), None, room, slots)
  at = fork_of(slots.out['tokens'], slots.out['entropy'], how.ends)
  # The children of a row without a fork are copies.
  alone, whole = at == 0, slots.out
  begun = _fork(
    every.model, slots.replace(over=alone), jnp.maximum(at, 1), w - 1, room
  )
  begun = sampler.loop(_of_rows(every, others), None, room, begun)
  out = {}
  for name, x in begun.out.items():
    x = x.reshape(len(at), w - 1, room)
    mine = whole[name][:, None]
    x = jnp.where(alone[:, None, None], mine, x)
    x = jnp.concatenate([mine, x], axis=1)
    out[name] = sharding.rows(x.reshape(n, room))
  at = jnp.where(alone, room, at)[:, None, None]
  child = jnp.arange(w)[:, None]
  nodes = jnp.where(jnp.arange(room) < at, 0, child + 1)
  return begun.replace(out=out), nodes


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
  return jnp.argmax(jnp.where(may, entropy, -1.0), axis=1)


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
  if model.fork is None:
    raise ValueError(
      'rl.tree.width: the state of the layers of this model cannot be shared '
      'by several rows (`Model.fork`); set it to 0'
    )
  (b, _), g, c = prompts.shape, n_samples, max_new
  roots = g // how.leaves
  ids = jnp.arange(b * g) if row_ids is None else row_ids
  weights = model.decode_params(params)
  told = False, not how.columns  # entropies
  every = Draw.make(model, weights, key, ids, sampling, stop, *told)
  draw = _of_rows(every, np.arange(0, b * g, how.leaves))
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
  root = jnp.arange(b * roots)[:, None, None] % roots * 2 * how.leaves
  nodes = jnp.broadcast_to(root + nodes, (b * roots, how.leaves, c))
  node = jnp.where(out.sampled, nodes.reshape(b * g, c) + 1, 0)
  return out.replace(node=sharding.rows(node), entropy=None)
