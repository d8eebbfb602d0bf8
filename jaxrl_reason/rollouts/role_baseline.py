"""Running baselines of rewards, one for each role.

These are the role-conditioned advantages of SPIRAL
(https://arxiv.org/abs/2506.24119). A role is a link of a chain (solve, verify),
with a reward for each link, or a player of a game, with a row of its own. A
completion without turns has one role, and its baseline is one running mean of
all rewards, as in REINFORCE. The baselines are stored in
`TrainState.control['roles']`.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason import losses
from jaxrl_reason.base import Batch, Metrics
from jaxrl_reason.parts import Part, Step


@dataclasses.dataclass(frozen=True)
class RoleBaseline(Part):
  """Subtracts the baseline of each role from its rewards; static.

  Attributes:
    decay: decay of a baseline per reward.
    roles: number of roles.
    by_turn: True: a role is a link of a chain, and its reward is that of its
      turn. False: the rows i, i + roles, ... have the i-th role.
  """

  decay: float
  roles: int = 1
  by_turn: bool = False
  name: str = 'roles'

  @property
  def players(self) -> bool:
    """Returns whether the roles are players with rows of their own."""
    return self.roles > 1 and not self.by_turn

  def init(self, total: jax.Array) -> jax.Array:
    """Returns baselines of 0."""
    return jnp.zeros(self.roles, jnp.float32)

  def before(
    self, memory: jax.Array, step: Step
  ) -> tuple[jax.Array, Step, Metrics]:
    """Subtracts the baselines of the roles from the rewards of a batch."""
    batch, apart = step.batch, self.by_turn
    reward = batch.episode.reward if apart else batch.reward[:, None]
    ok = batch.reward_valid
    if self.players:  # the reward of a player without a move does not count
      ok &= jnp.any(batch.mask, axis=1)
    known = jnp.where(ok[:, None], reward, jnp.nan)
    role = jnp.arange(self.roles if apart else len(reward)) % self.roles
    role = jnp.broadcast_to(role if apart else role[:, None], reward.shape)
    flat = known.reshape(-1), role.reshape(-1)
    adv, after = losses.role_baseline(*flat, memory, decay=self.decay)
    adv = jnp.where(jnp.isfinite(known), adv.reshape(reward.shape), reward)
    taken = jnp.where(jnp.isfinite(reward), reward - adv, 0.0).sum(axis=1)
    batch = batch.replace(reward=batch.reward - taken)
    if apart:
      batch = batch.replace(episode=batch.episode.replace(reward=adv))
    metrics = {f'role/{i}/baseline': x for i, x in enumerate(memory)}
    if self.players:
      metrics |= self._of_players(known[:, 0], role[:, 0], step.batch)
    return after, step._replace(batch=batch), metrics

  def _of_players(self, reward, role, batch: Batch) -> Metrics:
    """Returns the mean reward, the share of wins and the mean number of sampled
    tokens of each player's rows.
    """
    length, out = batch.mask.sum(axis=1), {}
    for i in range(self.roles):
      there = (role == i) & jnp.isfinite(reward)
      n = jnp.maximum(there.sum(), 1)
      values = {'reward': reward, 'win': reward > 0, 'length': length}
      for name, x in values.items():
        out[f'role/{i}/{name}'] = jnp.where(there, x, 0).sum() / n
    return out
