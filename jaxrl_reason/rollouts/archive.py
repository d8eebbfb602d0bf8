"""An archive of solutions: of every problem the shortest distinct right
completions of the stage so far, `TrainState.control['archive']`.

At the end of the stage they are written to archive/<stage>.jsonl, from where
later stages have them in place of the data's own solutions: to learn them
(rejection sampling fine-tuning, https://arxiv.org/abs/2308.01825; RLoop,
https://arxiv.org/abs/2511.04285, begins each time from the same weights), as
demonstrations, or for hints (`run/archives.py`).
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding
from jaxrl_reason.base import Batch, Metrics

CONTROL = 'archive'


@dataclasses.dataclass(frozen=True)
class Archive:
  """Keeps solutions; static.

  Attributes:
    places: K, solutions of a problem, at most.
    samples: G.
    start_column: of completions in a batch's rows.
    room: C.
  """

  places: int
  samples: int
  start_column: int
  room: int

  def start(self, n_problems: int) -> dict[str, jax.Array]:
    """Gives an empty archive: tokens i32 [M,K,C], length i32 [M,K], 0: none."""
    shape = n_problems, self.places
    tokens = jnp.zeros((*shape, self.room), jnp.int32)
    return {'tokens': tokens, 'length': jnp.zeros(shape, jnp.int32)}

  def __call__(self, known: dict, batch: Batch) -> tuple[dict, Metrics]:
    """Puts a batch's right completions into the archive, group by group, as a
    problem may come in several.
    """
    # One order on every mesh.
    rows = [sharding.everywhere(x) for x in self._solutions(batch)]

    def of_group(x):
      return x.reshape(-1, self.samples, *x.shape[1:])

    ids = of_group(sharding.everywhere(batch.prompt_id))[:, 0]
    groups = ids, *(of_group(x) for x in rows)
    known, _ = jax.lax.scan(self._add, known, groups)
    there = known['length'] > 0
    told = {
      'archive/problems': jnp.mean(jnp.any(there, axis=1)),
      'archive/solutions': jnp.mean(there.sum(axis=1)),
    }
    return known, told

  def _solutions(self, b: Batch) -> tuple[jax.Array, jax.Array]:
    """Completions [N,C] and their lengths [N], 0 of those that do not count."""
    own = b.mask[:, self.start_column :]
    right = b.reward_valid & (b.reward_parts[:, 0] > 0.5) & ~b.truncated
    if b.is_offpolicy is not None:
      right &= ~jnp.any(b.is_offpolicy, axis=1)
    tokens = jnp.where(own, b.tokens[:, self.start_column :], 0)
    return tokens, jnp.where(right, own.sum(axis=1), 0)

  def _add(self, known: dict, group: tuple) -> tuple[dict, None]:
    """Merges the completions of a group [G,C] with those of its problem."""
    at, tokens, length = group
    tokens = jnp.concatenate([known['tokens'][at], tokens])
    length = jnp.concatenate([known['length'][at], length])
    same = jnp.all(tokens[:, None] == tokens, axis=2) & (length > 0)
    again = jnp.any(jnp.tril(same, -1), axis=1)
    order = jnp.where((length > 0) & ~again, length, self.room + 1)
    first = jnp.argsort(order, stable=True)[: self.places]
    kept = order[first] <= self.room
    new = {
      'tokens': jnp.where(kept[:, None], tokens[first], 0),
      'length': jnp.where(kept, length[first], 0),
    }
    return {k: known[k].at[at].set(x) for k, x in new.items()}, None
