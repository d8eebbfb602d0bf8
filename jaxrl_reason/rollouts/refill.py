"""Dynamic sampling: groups without signal are replaced by those of other
problems (DAPO, https://arxiv.org/abs/2503.14476).

  round 0, 1, ...    generate and verify B problems each
                     -> groups with signal are put behind those there are
  until there are B of them, or no round is left

A round is the step again with other problems and another key; round 0 has the
step's own, so that a batch without dead groups is the batch without refill.
Groups without signal stand in the places that could not be filled, where the
filter of the update masks them. There are at most B - 1 groups too many; they
are dropped, as in the paper, or come first in the next step, one update old.

In the compiled step the rounds are a `while_loop`: a round that is not needed
costs nothing. The host path calls the same functions one after the other.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.base import (
  Account,
  Batch,
  Metrics,
  Outcomes,
  Prompts,
  Trajectories,
)
from jaxrl_reason.rollouts import groups as groups_lib


@struct.dataclass
class Places:
  """The groups of a step, those with signal first."""

  groups: Trajectories  # [2B,...], by group
  live: jax.Array  # i32 [], how many have signal
  round: jax.Array  # i32 [], rounds that ran
  seen: Outcomes  # [1+rounds,N]


def key_of_round(root: jax.Array, index: jax.Array | int) -> jax.Array:
  """Derives a round's key from the run's; round 0 has the run's own."""
  other = jax.random.fold_in(trees.named_key(root, 'round'), index)
  return jnp.where(jnp.asarray(index) > 0, other, root)


def candidates(prompts: Prompts, index: jax.Array | int) -> Prompts:
  """Takes the problems of a round out of those of a step [B,1+rounds,...]."""

  def one(x):
    x = jax.lax.dynamic_index_in_dim(x, index, axis=1, keepdims=False)
    return sharding.rows(x)

  return jax.tree.map(one, prompts)


def start(like: Trajectories) -> dict:
  """Gives what is remembered before the first step: no group.

  Args:
    like: a step's groups [B,...], or their shapes.
  """
  n = like.prompts.tokens.shape[0]
  return {'groups': groups_lib.empty(like, n), 'n': jnp.int32(0)}


@dataclasses.dataclass(frozen=True, eq=False)
class Refill:
  """Makes a step's trajectories of several rounds; static.

  Attributes:
    source: as `fused.FusedSource`; None on the host path, which has its own.
    keeps: filter that leaves tokens to groups with signal; None: all have.
    rounds: after the first, at most.
    keep: what is left over comes first in the next step.
  """

  source: Callable[..., Trajectories] | None
  keeps: Callable[[Batch], Batch] | None
  rounds: int
  keep: bool = False

  def __call__(
    self, params, control, prompts: Prompts, root, step, sampling, stop
  ) -> Trajectories:
    """Gives one step's trajectories, inside jit.

    Args:
      prompts: [B,1+rounds,...], a round's problems in a column.
    """

    def generate(index):
      asked = candidates(prompts, index)
      key = key_of_round(root, index)
      return self.source(params, control, asked, key, step, sampling, stop)

    places = self.begin(control, jax.eval_shape(generate, 0))
    places = jax.lax.while_loop(
      self.is_short, lambda p: self.add(p, generate(p.round)), places
    )
    return self.finish(places)

  def begin(self, control: dict | None, like: Trajectories) -> Places:
    """Lays out the places of a step, with what is left of the one before.

    Args:
      like: shapes of a round's trajectories.
    """
    shapes = jax.eval_shape(groups_lib.of, like)
    b = shapes.prompts.tokens.shape[0]
    groups, live = groups_lib.empty(shapes, 2 * b), jnp.int32(0)
    if self.keep:
      left = control['refill']
      groups = groups_lib.put(groups, left['groups'], jnp.arange(b))
      live = left['n']
    seen = jax.eval_shape(_outcomes, like)
    seen = jax.tree.map(
      lambda x: jnp.zeros((1 + self.rounds, *x.shape), x.dtype), seen
    )
    return Places(groups, live, jnp.int32(0), seen)

  def is_short(self, places: Places) -> jax.Array:
    """Tells whether groups are missing and a round is left, bool []."""
    b = places.groups.prompts.tokens.shape[0] // 2
    return (places.live < b) & (places.round <= self.rounds)

  def add(self, places: Places, found: Trajectories) -> Places:
    """Puts a round's groups behind those with signal, its own such first."""
    alive = groups_lib.alive(self.keeps, found)
    b, n = alive.shape[0], places.live + alive.sum(dtype=jnp.int32)
    dead = n + jnp.cumsum(~alive) - 1
    at = jnp.where(
      alive,
      places.live + jnp.cumsum(alive) - 1,
      jnp.where(dead < b, dead, 2 * b),  # only to be learnt from or nowhere
    )
    seen = jax.tree.map(
      lambda all_, x: all_.at[places.round].set(x),
      places.seen,
      _outcomes(found),
    )
    groups = groups_lib.put(places.groups, groups_lib.of(found), at)
    return Places(groups, n, places.round + 1, seen)

  def finish(self, places: Places) -> Trajectories:
    """Takes the B groups to learn from, and tells what became of the rest."""
    b = places.groups.prompts.tokens.shape[0] // 2
    found = groups_lib.taken(places.groups, slice(b))
    control = {}
    if self.keep:
      left = groups_lib.taken(places.groups, slice(b, None))
      n = jnp.maximum(places.live - b, 0)
      control['refill'] = {'groups': left, 'n': n}
    account = Account(
      places.seen, places.round, control, self._metrics(places, found)
    )
    return groups_lib.to_rows(found).replace(account=account)

  def _metrics(self, places: Places, found: Trajectories) -> Metrics:
    lengths = found.rollout.length  # [B,G]
    b = lengths.shape[0]
    filled = jnp.arange(b) < places.live
    used = jnp.sum(jnp.where(filled[:, None], lengths, 0))
    generated = jnp.maximum(places.seen.length.sum(), 1)
    return {
      'refill/rounds': places.round,
      'refill/filled': jnp.mean(filled),
      'refill/used': used / generated,
      'refill/left': jnp.maximum(places.live - b, 0),
    }


def _outcomes(found: Trajectories) -> Outcomes:
  return batch_lib.outcomes(batch_lib.make_batch(found))
