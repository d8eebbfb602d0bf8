"""Replay: groups of earlier steps, learnt from again beside the new ones.

A ring of groups with signal: tokens, what of them the policy sampled, the
sampler's log-probs, rewards, versions, the problem's name. A step takes
`rl.replay.rows` / G of them. Their ratio is measured against the sampler
(`rl.old_logp='sampler'`), whatever policy that was.

  groups   each has its own baseline, so that what is replayed never moves the
           advantages of what is new (RePO, https://arxiv.org/abs/2506.09340)
  rows     only their right rows count, in the baseline of the same problem's
           new group (RLEP, https://arxiv.org/abs/2507.07451; ExGRPO,
           https://arxiv.org/abs/2510.02245): problems that are asked again
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_reason.base import Batch, Prompts, Trajectories
from jaxrl_reason.rollouts import fused
from jaxrl_reason.rollouts import groups as groups_lib


class Stored(NamedTuple):
  """What a choice among K stored groups may go by."""

  groups: Trajectories  # [K,...]
  key: jax.Array
  fresh: Trajectories  # [B,...], this step's groups


def _mean(x: jax.Array, where: jax.Array) -> jax.Array:
  """Mean over a group's rows [K,G] of those there are, [K]."""
  n = jnp.maximum(where.sum(axis=1), 1)
  return jnp.sum(jnp.where(where, x, 0), axis=1) / n


def _right(groups: Trajectories) -> jax.Array:
  """Whether rows got the first reward part, bool [K,G]."""
  return groups.reward.valid & (groups.reward.parts[..., 0] > 0.5)


def recent(stored: Stored) -> jax.Array:
  """Scores all alike, so that the newest come first (RePO's recency-based)."""
  return jnp.zeros(stored.groups.reward.total.shape[0])


def uniform(stored: Stored) -> jax.Array:
  """Draws at random among all (RePO's full-scope)."""
  return jax.random.uniform(stored.key, stored.groups.reward.total.shape[:1])


def reward(stored: Stored) -> jax.Array:
  """Prefers those of the highest mean reward (RePO's reward-oriented; RLEP)."""
  return _mean(stored.groups.reward.total, stored.groups.reward.valid)


def variance(stored: Stored) -> jax.Array:
  """Prefers those whose rewards vary most (RePO's variance-driven)."""
  r = stored.groups.reward
  return _mean((r.total - _mean(r.total, r.valid)[:, None]) ** 2, r.valid)


def difficulty(stored: Stored) -> jax.Array:
  """Draws at random, p ~ exp(-(s - 1/2)^2 / 2) of the solve rate s then (the
  buckets of ExGRPO), by Gumbel noise: without replacement.
  """
  rate = _mean(_right(stored.groups), stored.groups.reward.valid)
  noise = jax.random.gumbel(stored.key, rate.shape)
  return noise - 0.5 * (rate - 0.5) ** 2


def certain(stored: Stored) -> jax.Array:
  """Prefers those whose right rows the sampler was surest of, by mean log-prob
  of a token (ExGRPO's lowest entropy); groups without a right row come last.
  """
  out, right = stored.groups.rollout, _right(stored.groups)
  per_row = jnp.sum(out.logp, axis=2) / jnp.maximum(out.length, 1)
  logp = _mean(per_row, right)
  return jnp.where(jnp.any(right, axis=1), logp, jnp.finfo(logp.dtype).min)


def failing(stored: Stored) -> jax.Array:
  """Prefers those with a right row, of problems that nobody solves in this
  step; none of the others.
  """
  asked = ~jnp.any(_right(stored.fresh), axis=1)  # [B]
  asked &= jnp.any(stored.fresh.reward.valid, axis=1)
  ids = stored.fresh.prompts.prompt_id, stored.groups.prompts.prompt_id
  same = (ids[1][:, None] == ids[0]) & asked
  wanted = jnp.any(same, axis=1) & jnp.any(_right(stored.groups), axis=1)
  return jnp.where(wanted, 0.0, -jnp.inf)


# Stored -> f32 [K]: the largest come first, of equal ones the newest; -inf:
# never.
CHOICES = {
  'recent': recent,
  'uniform': uniform,
  'reward': reward,
  'variance': variance,
  'difficulty': difficulty,
  'certain': certain,
  'failing': failing,
}


# What a replayed group is to those of the step.
MIX = ('groups', 'rows')


def start(like: Trajectories, capacity: int) -> dict:
  """Gives an empty ring.

  Args:
    like: a step's groups [B,...], or their shapes.
  """
  zero = jnp.int32(0)
  groups = groups_lib.empty(like, capacity)
  return {'groups': groups, 'next': zero, 'n': zero}


@dataclasses.dataclass(frozen=True, eq=False)
class Replay:
  """Adds groups of a ring to a step's; static.

  Attributes:
    source: as `fused.FusedSource`; None on the host path, which has its own.
    keeps: filter that leaves tokens to the groups worth storing; None: all.
    groups: M, replayed per step.
    by: a name in CHOICES.
    mixes: a name in MIX.
  """

  source: Callable[..., Trajectories] | None
  keeps: Callable[[Batch], Batch] | None
  groups: int
  by: str
  mixes: str = 'groups'

  def __call__(
    self, params, control, prompts: Prompts, root, step, sampling, stop
  ) -> Trajectories:
    """Gives one step's trajectories, of B + M groups, inside jit."""
    given = params, control, prompts, root, step, sampling, stop
    return self.mix(self.source(*given), control, root, step)

  def mix(
    self, found: Trajectories, control: dict, root: jax.Array, step: jax.Array
  ) -> Trajectories:
    """Adds stored groups to those found, and stores these."""
    ring, fresh = control['replay'], groups_lib.of(found)
    key = fused.key_of(root, step, 'replay')
    again, there = self._choose(ring, fresh, key)
    both, group = groups_lib.joined(fresh, again), None
    if self.mixes == 'rows':
      group = jnp.concatenate([_own(fresh), _asked(fresh, again)[0]])
    alive = groups_lib.alive(self.keeps, found)
    account = groups_lib.account(found)
    capacity = ring['groups'].reward.total.shape[0]
    told = {
      'replay/stored': ring['n'] / capacity,
      'replay/used': jnp.mean(there),
    }
    account = account.replace(
      control=account.control | {'replay': stored(ring, fresh, alive)},
      metrics=account.metrics | told,
    )
    return groups_lib.to_rows(both).replace(account=account, group=group)

  def _choose(self, ring: dict, fresh: Trajectories, key):
    """(M groups, whether each is one of the ring); the others are copies of
    new ones, without a token to learn from.
    """
    capacity = ring['groups'].reward.total.shape[0]
    # Ages from 1, the newest; places never written are the oldest.
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
    spare = groups_lib.taken(fresh, jnp.arange(self.groups) % b)

    def pick(old, new):
      return jnp.where(there.reshape(-1, *[1] * (old.ndim - 1)), old, new)

    out = jax.tree.map(pick, groups_lib.taken(ring['groups'], at), spare)
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
  """The numbers of a step's groups, i32 [B]: one for each problem."""
  ids = fresh.prompts.prompt_id
  return jnp.argmax(ids[:, None] == ids, axis=1).astype(jnp.int32)


def _asked(
  fresh: Trajectories, groups: Trajectories
) -> tuple[jax.Array, jax.Array]:
  """Of stored groups [K], the number of the step's group that is of the same
  problem, and whether there is one.
  """
  ids = fresh.prompts.prompt_id, groups.prompts.prompt_id
  same = ids[1][:, None] == ids[0]
  return jnp.argmax(same, axis=1).astype(jnp.int32), jnp.any(same, axis=1)


def stored(ring: dict, fresh: Trajectories, alive: jax.Array) -> dict:
  """Writes groups [B], those alive, over the oldest of a ring."""
  capacity = ring['groups'].reward.total.shape[0]
  n = alive.sum(dtype=jnp.int32)
  at = (ring['next'] + jnp.cumsum(alive) - 1) % capacity
  at = jnp.where(alive, at, capacity)
  return {
    'groups': groups_lib.put(ring['groups'], fresh, at),
    'next': (ring['next'] + n) % capacity,
    'n': jnp.minimum(ring['n'] + n, capacity),
  }
