"""Roles of rows, and running baselines of the rewards of each role.

The baselines are the role-conditioned advantages of SPIRAL
(https://arxiv.org/abs/2506.24119). A role is a link of a chain (solve, verify),
with a reward for each link, or a player of a game, with a row of its own, or
the proposer or the solver of proposals. A completion without turns has one
role, and its baseline is one running mean of all rewards, as in REINFORCE. The
baselines are stored in `TrainState.control['roles']`.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason import losses
from jaxrl_reason.base import Batch, Metrics
from jaxrl_reason.parts import Part, Step


@dataclasses.dataclass(frozen=True)
class RoleRewards(Part):
  """Marks the role of each row, and subtracts its running baseline; static.

  Attributes:
    roles: names of the roles.
    decay: decay of a baseline per reward; 0: there are no baselines.
    by_turn: a role is a link of a chain, and its reward is that of its turn;
      rows have no role.
    first: number of rows at the start that have role 0; all other rows have
      role 1. If it is 0, the rows i, i + roles, ... have role i.
    marks: set `Batch.role`, for losses of roles (`rl.roles`).
  """

  roles: tuple[str, ...] = ('0',)
  decay: float = 0.0
  by_turn: bool = False
  first: int = 0
  marks: bool = False
  name: str = 'roles'

  @property
  def players(self) -> bool:
    """Returns whether the roles are players of a game."""
    return len(self.roles) > 1 and not self.by_turn and not self.first

  def init(self, total: jax.Array) -> jax.Array | None:
    """Returns baselines of 0."""
    return jnp.zeros(len(self.roles), jnp.float32) if self.decay else None

  def before(
    self, memory: jax.Array | None, step: Step
  ) -> tuple[jax.Array | None, Step, Metrics]:
    """Marks the roles of rows, and subtracts their baselines from rewards."""
    batch, metrics = step.batch, {}
    row = jnp.arange(len(batch.reward))
    role = row >= self.first if self.first else row % len(self.roles)
    if self.players:
      metrics = self._of_players(batch, role)
    if self.marks:
      batch = batch.replace(role=role.astype(jnp.int8))
    if self.decay:
      metrics |= {f'role/{k}/baseline': x for k, x in zip(self.roles, memory)}
      memory, batch = self._above_baselines(memory, batch, role)
    return memory, step._replace(batch=batch), metrics

  def _counts(self, batch: Batch) -> jax.Array:
    """Marks the rows, bool [N], whose rewards count: a player without a move
    has none.
    """
    ok = batch.reward_valid
    return ok & jnp.any(batch.mask, axis=1) if self.players else ok

  def _above_baselines(self, memory: jax.Array, batch: Batch, role):
    """Subtracts baselines from the rewards, and updates the baselines."""
    reward = batch.episode.reward if self.by_turn else batch.reward[:, None]
    role = jnp.arange(len(self.roles)) if self.by_turn else role[:, None]
    known = jnp.where(self._counts(batch)[:, None], reward, jnp.nan)
    flat = (x.reshape(-1) for x in (known, jnp.broadcast_to(role, known.shape)))
    adv, after = losses.role_baseline(*flat, memory, decay=self.decay)
    adv = jnp.where(jnp.isfinite(known), adv.reshape(reward.shape), reward)
    taken = jnp.where(jnp.isfinite(reward), reward - adv, 0.0).sum(axis=1)
    batch = batch.replace(reward=batch.reward - taken)
    if self.by_turn:
      batch = batch.replace(episode=batch.episode.replace(reward=adv))
    return after, batch

  def _of_players(self, batch: Batch, role: jax.Array) -> Metrics:
    """Returns the mean reward, the share of wins and the mean number of sampled
    tokens of each player's rows.
    """
    ok, out = self._counts(batch) & jnp.isfinite(batch.reward), {}
    values = {'reward': batch.reward, 'win': batch.reward > 0}
    values['length'] = batch.mask.sum(axis=1)
    for i, name in enumerate(self.roles):
      there = (role == i) & ok
      n = jnp.maximum(there.sum(), 1)
      for k, x in values.items():
        out[f'role/{name}/{k}'] = jnp.where(there, x, 0).sum() / n
    return out
