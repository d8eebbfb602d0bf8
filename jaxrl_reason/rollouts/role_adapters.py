"""Measures the adapters of each role (`rl.role_adapters`)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import trees
from jaxrl_reason.base import Metrics, TrainState
from jaxrl_reason.models.adapters import lora
from jaxrl_reason.parts import Part


@dataclasses.dataclass(frozen=True)
class RoleAdapters(Part):
  """Computes the norm of each role's adapters after the update; static.

  Attributes:
    roles: names of the roles, in the order of their adapters.
  """

  roles: tuple[str, ...]
  name: str = 'role_adapters'

  def after(
    self, memory: None, state: TrainState, metrics: Metrics
  ) -> tuple[None, TrainState, Metrics]:
    """Returns the norms as metrics, and the state as it is."""
    found = {}
    for i, name in enumerate(self.roles):
      own = lora.of_role(state.params, i, len(self.roles))
      found[f'role/{name}/adapter_norm'] = product_norm(own[lora.KEY])
    return memory, state, found


def product_norm(adapters: Any) -> jax.Array:
  """Computes the Frobenius norm of the products a b of adapters, f32 []."""
  flat, total = trees.flatten(adapters), jnp.float32(0)
  for path in dict.fromkeys(p.rpartition('/')[0] for p in flat):
    a, b = flat[f'{path}/a'], flat[f'{path}/b']
    # |a b|^2 is the sum over ranks of (a^T a) (b b^T): no product [in,out].
    of_a = jnp.einsum('...ir,...is->...rs', a, a)
    of_b = jnp.einsum('...ro,...so->...rs', b, b)
    total += jnp.sum(of_a * of_b)
  return jnp.sqrt(jnp.maximum(total, 0))
