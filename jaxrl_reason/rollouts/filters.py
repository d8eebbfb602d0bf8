"""Which rows of a batch are learnt from, by what the verifier said of them."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason import losses
from jaxrl_reason.base import Batch, Metrics


def drop_dead_groups(batch: Batch) -> Batch:
  """Takes zero-variance groups out of every mean (the dynamic sampling of DAPO,
  https://arxiv.org/abs/2503.14476, with the batch shrunk, not refilled).
  """
  same = (batch.group[:, None] == batch.group) & batch.reward_valid
  high = jnp.max(jnp.where(same, batch.reward, -jnp.inf), axis=1)
  low = jnp.min(jnp.where(same, batch.reward, jnp.inf), axis=1)
  alive = high > low
  return batch.replace(mask=batch.mask & alive[:, None])


def drop_truncated(batch: Batch) -> Batch:
  """Takes rows that ran out of room out of the loss (overlong filtering)."""
  return batch.replace(mask=batch.mask & ~batch.truncated[:, None])


FILTERS = {
  'none': None,
  'dead_groups': drop_dead_groups,
  'truncated': drop_truncated,
}


def overlong_penalty(batch: Batch, cache: int, max_new: int) -> jax.Array:
  """Computes what DAPO takes off the reward of long completions, [N], 0 to -1.

  Args:
    cache: tokens at the end of the room over which the penalty falls.
    max_new: C, the room.
  """
  length = batch.mask.sum(axis=1)
  return losses.soft_overlong_penalty(length, max_length=max_new, cache=cache)


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
  """Chooses what is learnt from; static, so it selects a program.

  Filters go by what the verifier said; the length counts after them, so that a
  group that is all wrong is dead however long its samples are.

  Attributes:
    filter: a function of FILTERS, or None.
    overlong: tokens over which `overlong_penalty` falls; 0: none.
    max_new: C.
  """

  filter: Callable[[Batch], Batch] | None
  overlong: int
  max_new: int

  def __call__(self, batch: Batch) -> tuple[Batch, Metrics]:
    chosen = batch if self.filter is None else self.filter(batch)
    if not self.overlong:
      return chosen, {}
    penalty = overlong_penalty(batch, self.overlong, self.max_new)
    chosen = chosen.replace(reward=batch.reward + penalty)
    return chosen, {'overlong_penalty': jnp.mean(penalty)}
