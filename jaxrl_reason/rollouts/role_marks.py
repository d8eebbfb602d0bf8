"""Marks the role of each row, for losses of roles (`rl.roles`)."""

import dataclasses

import jax.numpy as jnp

from jaxrl_reason.base import Metrics
from jaxrl_reason.parts import Part, Step


@dataclasses.dataclass(frozen=True)
class RoleMarks(Part):
  """Adds the role of each row to a batch; static.

  Attributes:
    roles: names of the roles.
    first: number of rows at the start that have role 0, and the others have
      role 1. 0: the rows i, i + roles, ... have the i-th role.
    measures: also compute the mean reward of each role.
  """

  roles: tuple[str, ...]
  first: int = 0
  measures: bool = True
  name: str = 'role_marks'

  def before(self, memory: None, step: Step) -> tuple[None, Step, Metrics]:
    """Returns the step with `Batch.role`, and the mean rewards of roles."""
    batch, row = step.batch, jnp.arange(len(step.batch.reward))
    role = row >= self.first if self.first else row % len(self.roles)
    batch, found = batch.replace(role=role.astype(jnp.int8)), {}
    for i, name in enumerate(self.roles if self.measures else ()):
      own = batch.reward_valid & (role == i)
      total = jnp.where(own, batch.reward, 0.0).sum()
      found[f'role/{name}/reward'] = total / jnp.maximum(own.sum(), 1)
    return memory, step._replace(batch=batch), found
