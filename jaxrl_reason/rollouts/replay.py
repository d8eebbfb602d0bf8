"""Replay: trains on groups of earlier steps together with the new groups.

A ring buffer of groups with signal: tokens, sampled mask, sampler log-probs,
rewards, versions, problem ids. A step replays `rl.replay.rows` / G of them.
Their ratio is to the policy that sampled them (`rl.old_logp='sampler'`).

  groups   each has its own baseline, so that replayed rows never change the
           advantages of new rows (RePO, https://arxiv.org/abs/2506.09340)
  rows     only their correct rows are used, in the baseline of the same
           problem's new group (RLEP, https://arxiv.org/abs/2507.07451; ExGRPO,
           https://arxiv.org/abs/2510.02245), for problems sampled again
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_reason import trees
from jaxrl_reason.base import Batch, Trajectories
from jaxrl_reason.rollouts import fused, group_arrays
from jaxrl_reason.rollouts.rounds import Finished, Rounds


class Stored(NamedTuple):
  """The inputs of a choice among K stored groups."""

  groups: Trajectories  # [K,...]
  key: jax.Array
  fresh: Trajectories  # [B,...], the groups of this step


def _mean(x: jax.Array, where: jax.Array) -> jax.Array:
  """Computes the mean over the valid rows of groups [K,G], [K]."""
  n = jnp.maximum(where.sum(axis=1), 1)
  return jnp.sum(jnp.where(where, x, 0), axis=1) / n


def _sampled(groups: Trajectories) -> jax.Array:
  """Marks the verified rows that are no demonstrations, bool [K,G]."""
  valid, is_demo = groups.reward.valid, groups.rollout.is_demo
  return valid if is_demo is None else valid & ~is_demo


def _right(groups: Trajectories) -> jax.Array:
  """Marks the sampled rows whose first reward part is 1, bool [K,G]."""
  return _sampled(groups) & (groups.reward.parts[..., 0] > 0.5)


def recent(stored: Stored) -> jax.Array:
  """Scores all groups equally, so that the newest are chosen (RePO's
  recency-based).
  """
  return jnp.zeros(stored.groups.reward.total.shape[0])


def uniform(stored: Stored) -> jax.Array:
  """Scores groups at random (RePO's full-scope)."""
  return jax.random.uniform(stored.key, stored.groups.reward.total.shape[:1])


def reward(stored: Stored) -> jax.Array:
  """Scores groups by their mean reward (RePO's reward-oriented; RLEP)."""
  return _mean(stored.groups.reward.total, stored.groups.reward.valid)


def variance(stored: Stored) -> jax.Array:
  """Scores groups by the variance of their rewards (RePO's variance-driven)."""
  r = stored.groups.reward
  return _mean((r.total - _mean(r.total, r.valid)[:, None]) ** 2, r.valid)


def difficulty(stored: Stored) -> jax.Array:
  """Scores groups at random, p ~ exp(-(s - 1/2)^2 / 2) for the solve rate s
  when sampled (the buckets of ExGRPO). Gumbel noise samples without
  replacement.
  """
  rate = _mean(_right(stored.groups), _sampled(stored.groups))
  noise = jax.random.gumbel(stored.key, rate.shape)
  return noise - 0.5 * (rate - 0.5) ** 2


def certain(stored: Stored) -> jax.Array:
  """Scores groups by the mean token log-prob of their correct rows under the
  sampler (ExGRPO's lowest entropy). Groups without a correct row come last.
  """
  out, right = stored.groups.rollout, _right(stored.groups)
  per_row = jnp.sum(out.logp, axis=2) / jnp.maximum(out.length, 1)
  logp = _mean(per_row, right)
  return jnp.where(jnp.any(right, axis=1), logp, jnp.finfo(logp.dtype).min)


def failing(stored: Stored) -> jax.Array:
  """Scores 0 the groups with a correct row whose problem no sample of this step
  solves, and -inf all others.
  """
  asked = ~jnp.any(_right(stored.fresh), axis=1)  # [B]
  asked &= jnp.any(_sampled(stored.fresh), axis=1)
  ids = stored.fresh.prompts.prompt_id, stored.groups.prompts.prompt_id
  same = (ids[1][:, None] == ids[0]) & asked
  wanted = jnp.any(same, axis=1) & jnp.any(_right(stored.groups), axis=1)
  return jnp.where(wanted, 0.0, -jnp.inf)


# Stored -> f32 [K] scores. The largest are chosen, the newest among equal ones;
# a score of -inf is never chosen.
CHOICES = {
  'recent': recent,
  'uniform': uniform,
  'reward': reward,
  'variance': variance,
  'difficulty': difficulty,
  'certain': certain,
  'failing': failing,
}


# Baselines of replayed groups: their own, or that of the problem's new group.
MIX = ('groups', 'rows')


@dataclasses.dataclass(frozen=True, eq=False)
class Replay(Rounds):
  """Adds groups of a ring buffer to those of a step; static.

  Attributes:
    keeps: filter; groups in which it leaves tokens are stored; None stores all.
    groups: M, groups replayed per step.
    capacity: K, groups in the ring.
    by: a name in CHOICES.
    mixes: a name in MIX.
  """

  keeps: Callable[[Batch], Batch] | None
  groups: int
  capacity: int
  by: str
  mixes: str = 'groups'
  name = 'replay'

  def memory(self, like: Trajectories) -> dict:
    """Returns an empty ring."""
    zero = jnp.int32(0)
    groups = group_arrays.empty(like, self.capacity).replace(row=None)
    return {'groups': groups, 'next': zero, 'n': zero}

  def finish(self, control: dict, carry: tuple, root, step) -> Finished:
    """Adds stored groups to those of the step, and stores the new groups."""
    (found,), ring = carry, control[self.name]
    fresh, group = group_arrays.of(found), found.group
    key = fused.key_of(root, step, 'replay')
    again, there = self._choose(ring, fresh, key)
    both = group_arrays.joined(fresh, group_arrays.with_row(again, fresh))
    if self.mixes == 'rows':
      group = jnp.concatenate([_own(fresh), _asked(fresh, again)[0]])
    elif group is not None:
      further = group.max() + 1 + jnp.arange(self.groups, dtype=jnp.int32)
      group = jnp.concatenate([group, further])
    alive = group_arrays.alive(self.keeps, found)
    metrics = {
      'replay/stored': ring['n'] / self.capacity,
      'replay/used': jnp.mean(there),
    }
    rows = group_arrays.to_rows(both).replace(group=group)
    ring = stored(ring, fresh.replace(row=None), alive)
    return Finished(rows, ring, metrics)

  def _choose(self, ring: dict, fresh: Trajectories, key):
    """Returns M groups, and whether each is from the ring. The others are
    copies of new groups without a token to train on.
    """
    capacity, fresh = self.capacity, fresh.replace(row=None)
    # Ages count from 1, the newest; places never written are the oldest.
    age = (ring['next'] - 1 - jnp.arange(capacity)) % capacity + 1
    value = CHOICES[self.by](Stored(ring['groups'], key, fresh))
    value = jnp.where(age <= ring['n'], value, -jnp.inf)
    if self.mixes == 'rows':
      asked = _asked(fresh, ring['groups'])[1]
      asked &= jnp.any(_right(ring['groups']), axis=1)
      value = jnp.where(asked, value, -jnp.inf)
    at = jnp.lexsort((age, -value))[: self.groups]
    there = value[at] > -jnp.inf
    b = fresh.prompts.tokens.shape[0]
    spare = group_arrays.taken(fresh, jnp.arange(self.groups) % b)
    old = group_arrays.taken(ring['groups'], at)
    out = trees.where_rows(there, old, spare)
    rollout, verdict = out.rollout, out.reward
    rows = jnp.broadcast_to(there[:, None], verdict.valid.shape)
    if self.mixes == 'rows':
      rows &= _right(out)
    sampled, valid = rollout.sampled & rows[..., None], verdict.valid & rows
    out = out.replace(
      rollout=rollout.replace(sampled=sampled),
      reward=verdict.replace(valid=valid),
    )
    return out, there


def _own(fresh: Trajectories) -> jax.Array:
  """Returns the number of each group's problem, i32 [B]: groups of the same
  problem have the same number.
  """
  ids = fresh.prompts.prompt_id
  return jnp.argmax(ids[:, None] == ids, axis=1).astype(jnp.int32)


def _asked(
  fresh: Trajectories, groups: Trajectories
) -> tuple[jax.Array, jax.Array]:
  """Returns, for stored groups [K], the number of the step's group with the
  same problem, and whether there is one.
  """
  ids = fresh.prompts.prompt_id, groups.prompts.prompt_id
  same = ids[1][:, None] == ids[0]
  return jnp.argmax(same, axis=1).astype(jnp.int32), jnp.any(same, axis=1)


def stored(ring: dict, fresh: Trajectories, alive: jax.Array) -> dict:
  """Writes the groups [B] marked alive over the oldest groups of a ring."""
  capacity = ring['groups'].reward.total.shape[0]
  n = alive.sum(dtype=jnp.int32)
  at = (ring['next'] + jnp.cumsum(alive) - 1) % capacity
  at = jnp.where(alive, at, capacity)
  return {
    'groups': group_arrays.put(ring['groups'], fresh, at),
    'next': (ring['next'] + n) % capacity,
    'n': jnp.minimum(ring['n'] + n, capacity),
  }
