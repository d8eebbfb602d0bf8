"""Trajectories by group: the form in which sources keep, move and choose them.

Every array has the group first: of prompts [B,...], of rows [B,G,...] in place
of [N,...]. What the update does not read is left out.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Account, Batch, Trajectories


def of(found: Trajectories) -> Trajectories:
  """Gives trajectories by group, without what only rewards read of them."""
  b = found.prompts.tokens.shape[0]

  def split(x):
    return x.reshape(b, x.shape[0] // b, *x.shape[1:])

  prompts = found.prompts.replace(answer={}, demo=None, demo_length=None)
  return Trajectories(
    prompts=prompts,
    rollout=jax.tree.map(split, found.rollout.replace(views=None)),
    reward=jax.tree.map(split, found.reward),
    greedy=found.greedy,
  )


def to_rows(groups: Trajectories) -> Trajectories:
  """Undoes `of`: rows of a group adjacent."""

  def joined(x):
    return sharding.rows(x.reshape(-1, *x.shape[2:]))

  return groups.replace(
    rollout=jax.tree.map(joined, groups.rollout),
    reward=jax.tree.map(joined, groups.reward),
  )


def empty(like: Trajectories, n: int) -> Trajectories:
  """Makes room for n groups, of shapes as `like` has for its own number."""
  return jax.tree.map(
    lambda x: sharding.rows(jnp.zeros((n, *x.shape[1:]), x.dtype)), like
  )


def put(room: Trajectories, new: Trajectories, at: jax.Array) -> Trajectories:
  """Writes groups [B] at places `at` i32 [B]; those past the room are lost."""

  def write(all_, x):
    return sharding.rows(all_.at[at].set(x.astype(all_.dtype), mode='drop'))

  return jax.tree.map(write, room, new)


def taken(groups: Trajectories, at: jax.Array | slice) -> Trajectories:
  """Takes the groups at places `at`."""
  return jax.tree.map(sharding.rows, trees.take(groups, at))


def joined(a: Trajectories, b: Trajectories) -> Trajectories:
  """Puts groups behind others."""
  return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), a, b)


def account(found: Trajectories) -> Account:
  """Gives what a source told, or that all it found is all there was."""
  if found.account is not None:
    return found.account
  seen = batch_lib.outcomes(batch_lib.make_batch(found))
  seen = trees.take(seen, None)
  return Account(seen, jnp.int32(1), {}, {})


def alive(
  keeps: Callable[[Batch], Batch] | None, found: Trajectories
) -> jax.Array:
  """Tells of each group, bool [B], whether a filter leaves any token of it."""
  b = found.prompts.tokens.shape[0]
  if keeps is None:
    return jnp.ones(b, bool)
  batch = keeps(batch_lib.make_batch(found))
  return jnp.any(batch.mask.reshape(b, -1), axis=1)
