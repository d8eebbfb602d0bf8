"""A queue of batches: each is trained on some steps after it was sampled.

The queue stands for a sampler that runs ahead of the trainer (AReaL,
https://arxiv.org/abs/2505.24298; prime-rl). Here the same program does both, so
that the lag is the same in every run and a resumed run continues exactly: the
queue is a part of the train state.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason.base import Trajectories
from jaxrl_reason.rollouts import group_arrays
from jaxrl_reason.rollouts.rounds import Finished, Rounds


@dataclasses.dataclass(frozen=True, eq=False)
class Delay(Rounds):
  """Replaces the groups of a step by those of `steps` steps before; static.

  The first `steps` steps have no group to train on. Statistics are of the
  groups that a step samples.
  """

  steps: int
  name = 'delay'

  def memory(self, like: Trajectories) -> dict:
    """Returns an empty queue."""
    n = like.prompts.tokens.shape[0] * self.steps
    groups = group_arrays.empty(like, n).replace(row=None)
    return {'groups': groups, 'n': jnp.int32(0)}

  def finish(self, control: dict, carry: tuple, root, step) -> Finished:
    """Puts the step's groups into the queue, in place of the oldest."""
    (found,), queue = carry, control[self.name]
    fresh = group_arrays.of(found)
    out = group_arrays.with_row(self.oldest(queue), fresh)
    return Finished(group_arrays.to_rows(out), self.put(queue, fresh))

  def oldest(self, queue: dict) -> Trajectories:
    """Returns the groups [B,...] that the next step trains on, without row
    numbers. While the queue is not full, no token of them is trained on.
    """
    out = group_arrays.taken(queue['groups'], self._place(queue))
    is_full = queue['n'] >= self.steps
    rollout, reward = out.rollout, out.reward
    return out.replace(
      rollout=rollout.replace(sampled=rollout.sampled & is_full),
      reward=reward.replace(valid=reward.valid & is_full),
    )

  def put(self, queue: dict, fresh: Trajectories) -> dict:
    """Returns the queue with a step's groups [B,...] in place of the oldest."""
    new, at = fresh.replace(row=None), self._place(queue)
    groups = group_arrays.put(queue['groups'], new, at)
    return {'groups': groups, 'n': queue['n'] + 1}

  def _place(self, queue: dict) -> jax.Array:
    """Returns the indices of the oldest groups, i32 [B]."""
    b = queue['groups'].prompts.tokens.shape[0] // self.steps
    return queue['n'] % self.steps * b + jnp.arange(b)
