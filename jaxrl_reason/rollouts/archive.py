"""Stores solutions: for every problem, the shortest distinct correct
completions of the stage so far (`TrainState.control['archive']`).

At the end of the stage they are written to archive/<stage>.jsonl. Later stages
read that file in place of the solutions in the data, to train on them
(rejection sampling fine-tuning, https://arxiv.org/abs/2308.01825; RLoop,
https://arxiv.org/abs/2511.04285, restarts from the same weights each time), as
demonstrations, or for hints (`run/solution_archives.py`).
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding
from jaxrl_reason.base import Batch, Metrics
from jaxrl_reason.parts import Part, Step

CONTROL = 'archive'


@dataclasses.dataclass(frozen=True)
class Archive(Part):
  """Stores the shortest distinct correct completions of every problem; static.

  Attributes:
    places: K, the largest number of solutions of a problem.
    samples: G.
    start_column: first column of completions in a batch's rows.
    max_new: C.
    n_problems: M, problems in the pool.
  """

  places: int
  samples: int
  start_column: int
  max_new: int
  n_problems: int
  name: str = CONTROL

  def init(self, total: jax.Array) -> dict[str, jax.Array]:
    """Returns an empty archive: tokens i32 [M,K,C], and length i32 [M,K], which
    is 0 for an empty place.
    """
    shape = self.n_problems, self.places
    tokens = jnp.zeros((*shape, self.max_new), jnp.int32)
    return {'tokens': tokens, 'length': jnp.zeros(shape, jnp.int32)}

  def before(self, memory: dict, step: Step) -> tuple[dict, Step, Metrics]:
    """Adds the correct completions of a step to the archive."""
    memory, metrics = self.add(memory, step.sampled)
    return memory, step, metrics

  def add(self, known: dict, batch: Batch) -> tuple[dict, Metrics]:
    """Adds the correct completions of a batch, group by group, because a
    problem may have several groups.
    """
    # Gathered first, so that every mesh merges completions in the same order.
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
    """Returns completions [N,C] and their lengths [N]. The length is 0 for
    completions that do not enter the archive.
    """
    own = b.mask[:, self.start_column :]
    right = b.reward_valid & (b.reward_parts[:, 0] > 0.5) & ~b.truncated
    if b.is_offpolicy is not None:
      right &= ~jnp.any(b.is_offpolicy, axis=1)
    tokens = jnp.where(own, b.tokens[:, self.start_column :], 0)
    return tokens, jnp.where(right, own.sum(axis=1), 0)

  def _add(self, known: dict, group: tuple) -> tuple[dict, None]:
    """Merges the completions of a group [G,C] with those stored for its
    problem.
    """
    at, tokens, length = group
    tokens = jnp.concatenate([known['tokens'][at], tokens])
    length = jnp.concatenate([known['length'][at], length])
    same = jnp.all(tokens[:, None] == tokens, axis=2) & (length > 0)
    again = jnp.any(jnp.tril(same, -1), axis=1)
    order = jnp.where((length > 0) & ~again, length, self.max_new + 1)
    first = jnp.argsort(order, stable=True)[: self.places]
    kept = order[first] <= self.max_new
    new = {
      'tokens': jnp.where(kept[:, None], tokens[first], 0),
      'length': jnp.where(kept, length[first], 0),
    }
    return {k: known[k].at[at].set(x) for k, x in new.items()}, None
