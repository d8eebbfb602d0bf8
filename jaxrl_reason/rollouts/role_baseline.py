"""Running baselines of rewards, one for each role of a game: SPIRAL's RAE.

https://arxiv.org/abs/2506.24119. A role is a link of a chain (solve, verify),
whose rewards are apart; a completion without turns has one role, and its
baseline is the running mean of REINFORCE. The baselines are stored in
`TrainState.control['roles']`.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason import losses
from jaxrl_reason.base import Metrics
from jaxrl_reason.parts import Part, Step


@dataclasses.dataclass(frozen=True)
class RoleBaseline(Part):
  """Subtracts the baseline of each role from its rewards; static.

  Attributes:
    decay: of the baselines, by reward.
    roles: links of a chain whose rewards are apart; 1: the rows' own rewards.
  """

  decay: float
  roles: int = 1
  name: str = 'roles'

  def init(self, total: jax.Array) -> jax.Array:
    """Returns baselines of 0."""
    return jnp.zeros(self.roles, jnp.float32)

  def before(
    self, memory: jax.Array, step: Step
  ) -> tuple[jax.Array, Step, Metrics]:
    """Replaces the rewards of a batch by what exceeds their baselines."""
    batch, apart = step.batch, self.roles > 1
    reward = batch.episode.reward if apart else batch.reward[:, None]
    known = jnp.where(batch.reward_valid[:, None], reward, jnp.nan)
    role = jnp.broadcast_to(jnp.arange(self.roles), reward.shape)
    flat = known.reshape(-1), role.reshape(-1)
    adv, after = losses.role_baseline(*flat, memory, decay=self.decay)
    adv = jnp.where(jnp.isfinite(known), adv.reshape(reward.shape), reward)
    taken = jnp.where(jnp.isfinite(reward), reward - adv, 0.0).sum(axis=1)
    batch = batch.replace(reward=batch.reward - taken)
    if apart:
      batch = batch.replace(episode=batch.episode.replace(reward=adv))
    metrics = {f'role/{i}/baseline': x for i, x in enumerate(memory)}
    return after, step._replace(batch=batch), metrics
