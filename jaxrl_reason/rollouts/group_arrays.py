"""Trajectories by group: the layout in which rounds store and select them.

Every array has the group as its first axis: prompts [B,...], and rows [B,G,...]
in place of [N,...]. Arrays that the update does not read are dropped.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Account, Batch, Trajectories
from jaxrl_reason.rollouts.views import with_answers_only


def of(found: Trajectories) -> Trajectories:
  """Returns trajectories by group, without arrays that only rewards read."""
  b = found.prompts.tokens.shape[0]

  def split(x):
    return x.reshape(b, x.shape[0] // b, *x.shape[1:])

  prompts = found.prompts.replace(
    answer={}, demo=None, demo_length=None, hint_limit=None
  )
  return Trajectories(
    prompts=prompts,
    rollout=jax.tree.map(split, with_answers_only(found.rollout)),
    reward=jax.tree.map(split, found.reward),
    greedy=found.greedy,
    row=None if found.row is None else split(found.row),
  )


def to_rows(groups: Trajectories) -> Trajectories:
  """Reverses `of`; the rows of a group are adjacent."""

  def joined(x):
    return sharding.rows(x.reshape(-1, *x.shape[2:]))

  return groups.replace(
    rollout=jax.tree.map(joined, groups.rollout),
    reward=jax.tree.map(joined, groups.reward),
    row=None if groups.row is None else joined(groups.row),
  )


def with_row(groups: Trajectories, like: Trajectories) -> Trajectories:
  """Sets the row numbers of groups of an earlier step to -1, if `like` has row
  numbers.
  """
  if like.row is None:
    return groups.replace(row=None)
  return groups.replace(row=jnp.full(groups.rollout.length.shape, -1))


def empty(like: Trajectories, n: int) -> Trajectories:
  """Returns n groups of zeros, of the shapes of `like`."""
  return jax.tree.map(
    lambda x: sharding.rows(jnp.zeros((n, *x.shape[1:]), x.dtype)), like
  )


def put(room: Trajectories, new: Trajectories, at: jax.Array) -> Trajectories:
  """Writes groups [B] at places `at` i32 [B]; groups with a place out of range
  are dropped.
  """

  def write(all_, x):
    return sharding.rows(all_.at[at].set(x.astype(all_.dtype), mode='drop'))

  return jax.tree.map(write, room, new)


def taken(groups: Trajectories, at: jax.Array | slice) -> Trajectories:
  """Takes the groups at places `at`."""
  return jax.tree.map(sharding.rows, trees.take(groups, at))


def joined(a: Trajectories, b: Trajectories) -> Trajectories:
  """Concatenates two sets of groups."""
  return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), a, b)


def account(found: Trajectories) -> Account:
  """Returns the account of trajectories: the source's, or one of a single
  round.
  """
  if found.account is not None:
    return found.account
  seen = batch_lib.outcomes(batch_lib.make_batch(found))
  seen = trees.take(seen, None)
  return Account(seen, jnp.ones(1, bool), {}, {})


def excluding(found: Account, rows: jax.Array) -> Account:
  """Marks rows of a single round, bool [N], that statistics leave out."""
  return found.replace(seen=found.seen.replace(is_excluded=rows[None]))


def alive(
  keeps: Callable[[Batch], Batch] | None, found: Trajectories
) -> jax.Array:
  """Marks the groups, bool [B], in which a filter leaves at least one token."""
  b = found.prompts.tokens.shape[0]
  if keeps is None:
    return jnp.ones(b, bool)
  batch = keeps(batch_lib.make_batch(found))
  return jnp.any(batch.mask.reshape(b, -1), axis=1)
