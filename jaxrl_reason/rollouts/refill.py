"""Dynamic sampling: replaces groups without signal by groups of other problems
(DAPO, https://arxiv.org/abs/2503.14476).

  round 0, 1, ...    generate and verify B problems each
                     -> append the groups with signal to the buffer
  until it has B of them, or no round is left

A round repeats the step with other problems and another key. Round 0 uses the
step's own key, so that a batch without dead groups equals the batch without
refill. Groups without signal fill the remaining places, where the filter of the
update masks them. At most B - 1 groups with signal remain; they are dropped, as
in the paper, or come first in the next step, one update old.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding
from jaxrl_reason.base import Batch, Metrics, Prompts, Trajectories
from jaxrl_reason.rollouts import group_arrays
from jaxrl_reason.rollouts.rounds import Finished, Rounds


@struct.dataclass
class GroupBuffer:
  """The groups of a step, those with signal first."""

  groups: Trajectories  # [2B,...], by group
  live: jax.Array  # i32 [], groups with signal
  rounds: jax.Array  # rounds run
  tokens: jax.Array  # tokens sampled in them


def candidates(prompts: Prompts, index: jax.Array | int) -> Prompts:
  """Selects the problems of a round from those of a step [B,1+rounds,...]."""

  def one(x):
    x = jax.lax.dynamic_index_in_dim(x, index, axis=1, keepdims=False)
    return sharding.rows(x)

  return jax.tree.map(one, prompts)


@dataclasses.dataclass(frozen=True, eq=False)
class Refill(Rounds):
  """Replaces groups without signal by those of further rounds; static.

  Attributes:
    keeps: filter that leaves tokens in groups with signal; None: all have
      signal.
    rounds: the largest number of rounds after the first.
    keep: remaining groups come first in the next step.
  """

  keeps: Callable[[Batch], Batch] | None
  rounds: int
  keep: bool = False
  fixed = False
  name = 'refill'

  @property
  def n(self) -> int:
    """Rounds at most."""
    return 1 + self.rounds

  def memory(self, like: Trajectories) -> dict | None:
    """Returns the groups left over before the first step: none."""
    if not self.keep:
      return None
    n = like.prompts.tokens.shape[0]
    groups = group_arrays.empty(like, n).replace(row=None)
    return {'groups': groups, 'n': jnp.int32(0)}

  def init(self, control: dict | None, like: Trajectories) -> GroupBuffer:
    """Returns the buffer of a step, with the groups left over by the last."""
    shapes = jax.eval_shape(group_arrays.of, like)
    b, zero = shapes.prompts.tokens.shape[0], jnp.int32(0)
    groups, live = group_arrays.empty(shapes, 2 * b), zero
    if self.keep:
      left = control['refill']
      old = group_arrays.with_row(left['groups'], shapes)
      groups = group_arrays.put(groups, old, jnp.arange(b))
      live = left['n']
    return GroupBuffer(groups, live, zero, zero)

  def ask(self, control, carry, prompts: Prompts, i) -> Prompts:
    """Returns the problems of round i, of prompts [B,1+rounds,...]."""
    return candidates(prompts, i)

  def more(self, buffer: GroupBuffer) -> jax.Array:
    """Returns whether groups are missing, bool []."""
    return buffer.live < buffer.groups.prompts.tokens.shape[0] // 2

  def add(self, buffer: GroupBuffer, found: Trajectories, i) -> GroupBuffer:
    """Appends a round's groups with signal to the buffer, and its dead groups
    behind them.
    """
    alive = ~self.dead(found)
    b, n = alive.shape[0], buffer.live + alive.sum(dtype=jnp.int32)
    dead = n + jnp.cumsum(~alive) - 1
    at = jnp.where(
      alive,
      buffer.live + jnp.cumsum(alive) - 1,
      jnp.where(dead < b, dead, 2 * b),  # 2B: dropped
    )
    own = group_arrays.of(found)
    groups = group_arrays.put(buffer.groups, own, at)
    seen = group_arrays.account(found).seen
    tokens = buffer.tokens + seen.length.sum()
    return GroupBuffer(groups, n, buffer.rounds + 1, tokens)

  def finish(self, control, buffer: GroupBuffer, root, step) -> Finished:
    """Returns the first B groups; the remaining groups with signal become the
    memory.
    """
    b = buffer.groups.prompts.tokens.shape[0] // 2
    found, memory = group_arrays.taken(buffer.groups, slice(b)), None
    if self.keep:
      left = group_arrays.taken(buffer.groups, slice(b, None))
      n = jnp.maximum(buffer.live - b, 0)
      memory = {'groups': left.replace(row=None), 'n': n}
    metrics = self._metrics(buffer, found)
    return Finished(group_arrays.to_rows(found), memory, metrics)

  def dead(self, found: Trajectories) -> jax.Array:
    """Marks the groups without signal, bool [B]."""
    return ~group_arrays.alive(self.keeps, found)

  def spare(self, control, buffer: GroupBuffer | None) -> jax.Array:
    """Counts the groups with signal that there are already, i32 []."""
    if buffer is not None:
      return buffer.live
    return control['refill']['n'] if self.keep else jnp.int32(0)

  def _metrics(self, buffer: GroupBuffer, found: Trajectories) -> Metrics:
    lengths = found.rollout.length  # [B,G]
    b = lengths.shape[0]
    filled = jnp.arange(b) < buffer.live
    used = jnp.sum(jnp.where(filled[:, None], lengths, 0))
    return {
      'refill/rounds': buffer.rounds,
      'refill/filled': jnp.mean(filled),
      'refill/used': used / jnp.maximum(buffer.tokens, 1),
      'refill/left': jnp.maximum(buffer.live - b, 0),
    }
