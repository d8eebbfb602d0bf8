"""Demonstrations that replace the last `rl.demos` samples of a group after the
verdicts: the reference solution, if no sample is correct (`Rescue`), or correct
completions that the policy samples under another prompt (`Explained`).

In groups without a signal, the policy imitates the solution; in other groups,
it is trained on its own samples. ReLIFT (https://arxiv.org/abs/2506.07527)
alternates RL with supervised steps on the hardest problems instead.
`rl.loss.offpolicy` is the loss of the demonstrations.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import trees
from jaxrl_reason.base import Prompts, Trajectories
from jaxrl_reason.rollouts import fused, group_arrays, sampler
from jaxrl_reason.rollouts.hints import failed
from jaxrl_reason.rollouts.rounds import Finished, Rounds

WHEN = ('always', 'failed')


@dataclasses.dataclass(frozen=True, eq=False)
class Rescue(Rounds):
  """Replaces samples of failed groups by demonstrations; static. The source
  verifies the reference solutions (`Trajectories.demo`).

  Attributes:
    demos: samples of a failed group that are replaced.
  """

  demos: int
  reads_demos = True

  def finish(self, control, carry: tuple, root, step) -> Finished:
    """Replaces samples of failed groups, and their rewards."""
    (found,) = carry
    own, n = found.rollout, found.rollout.length.shape[0]
    missed = failed(found)
    shown = fused.with_demos(own, found.prompts, self.demos)
    rows = batch_lib.per_row(missed, n) & shown.is_demo
    rollout = trees.where_rows(rows, shown.replace(is_demo=None), own)
    rollout = rollout.replace(is_demo=rows)
    demo = jax.tree.map(lambda x: batch_lib.per_row(x, n), found.demo)
    reward = trees.where_rows(rows, demo, found.reward)
    found = found.replace(rollout=rollout, reward=reward, demo=None)
    return Finished(_unnumbered(found, rows), None, _metrics(missed))


def _unnumbered(found: Trajectories, rows: jax.Array) -> Trajectories:
  """Sets the row number of replaced rows to -1: they have no verdict of a
  sample.
  """
  if found.row is None:
    return found
  return found.replace(row=jnp.where(rows, -1, found.row))


def _metrics(missed: jax.Array) -> dict[str, jax.Array]:
  return {'demos/groups': jnp.mean(missed)}


@struct.dataclass
class Groups:
  """The groups of a step.

  Attributes:
    groups: [B,...], by group, with `is_demo` [B,G].
    asked: bool [B], groups for which round 1 samples demonstrations.
    chosen: bool [B], the same after round 0; after round 1, the groups that
      have a demonstration.
  """

  groups: Trajectories
  chosen: jax.Array
  asked: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Explained(Rounds):
  """Replaces samples by correct completions that the policy samples under
  another prompt, such as the problem with its answer; static.

  Round 0 samples under the problem, `Prompts.train_tokens`, and round 1 under
  `Prompts.tokens`. Both are trained on under the problem. This is ExPO
  (https://arxiv.org/abs/2507.02834): the policy explains the answer, and such
  an explanation is likelier under the policy than a solution of another author.

  Attributes:
    demos: samples of a group that are replaced at most.
    when: a name in WHEN: groups that are changed.
  """

  demos: int
  when: str
  name = 'demos'
  n = 2
  fixed = False

  def init(self, control: dict, like: Trajectories) -> Groups:
    """Returns groups of zeros, all of them chosen, so that round 0 runs."""
    shapes = jax.eval_shape(_by_group, like)
    b = shapes.prompts.tokens.shape[0]
    every = jnp.ones(b, bool)
    return Groups(group_arrays.empty(shapes, b), every, every)

  def ask(self, control: dict, carry, prompts: Prompts, i) -> Prompts:
    """Returns the problems in round 0, and the other prompts in round 1."""
    again = jnp.asarray(i) > 0
    tokens = jnp.where(again, prompts.tokens, prompts.train_tokens)
    valid = jnp.where(again, prompts.valid, prompts.train_valid)
    hinted = jnp.broadcast_to(again, tokens.shape[:1])
    return prompts.replace(tokens=tokens, valid=valid, is_hinted=hinted)

  def add(self, carry: Groups, found: Trajectories, i) -> Groups:
    """Stores the groups of round 0, and puts explanations into them."""
    first = jnp.broadcast_to(jnp.asarray(i) == 0, carry.chosen.shape)
    new = _by_group(found)
    mixed, used = self._mixed(carry.groups, new, carry.chosen)
    groups = trees.where_rows(first, new, mixed)
    asked = jnp.where(first, self.dead(found), carry.asked)
    return Groups(groups, jnp.where(first, asked, used), asked)

  def more(self, carry: Groups) -> jax.Array:
    """Returns whether any group is to have demonstrations, bool []."""
    return jnp.any(carry.chosen)

  def dead(self, found: Trajectories) -> jax.Array:
    """Marks the groups that are to have demonstrations, bool [B]."""
    missed = failed(found)
    return missed if self.when == 'failed' else jnp.ones_like(missed)

  def finish(self, control, carry: Groups, root, step) -> Finished:
    """Returns the groups, with metrics of the explanations."""
    found = group_arrays.to_rows(carry.groups)
    rollout, samples = found.rollout, carry.groups.rollout.length.shape[1]
    node = sampler.nodes(rollout.sampled, samples)
    found = found.replace(rollout=rollout.replace(node=node))
    share = carry.chosen.sum() / jnp.maximum(carry.asked.sum(), 1)
    metrics = _metrics(carry.chosen) | {'demos/found': share}
    return Finished(found, None, metrics)

  def _mixed(self, own: Trajectories, shown: Trajectories, asked: jax.Array):
    """Puts correct rows of `shown` in place of the last rows of `own`.

    Args:
      asked: bool [B], the groups that are changed.

    Returns:
      (groups, whether each group has an explanation, bool [B]).
    """
    reward = shown.reward
    right = reward.valid & (reward.parts[..., 0] > 0.5)  # [B,G]
    order = jnp.argsort(~right, axis=1, stable=True)[:, ::-1]
    place = jnp.arange(right.shape[1])[::-1]  # 0: the last row of a group
    n = jnp.minimum(right.sum(axis=1), self.demos)
    used = asked[:, None] & (place < n[:, None])

    def put(ours, theirs):
      theirs = jax.vmap(lambda x, at: x[at])(theirs, order)
      mark = used.reshape(*used.shape, *[1] * (theirs.ndim - 2))
      return jnp.where(mark, theirs, ours)

    theirs = shown.rollout
    theirs = theirs.replace(
      logp=jnp.zeros_like(theirs.logp), is_demo=jnp.ones_like(theirs.is_demo)
    )
    both = (own.rollout, own.reward, own.row), (theirs, reward, shown.row)
    rollout, reward, row = jax.tree.map(put, *both)
    groups = own.replace(rollout=rollout, reward=reward, row=row)
    return groups, jnp.any(used, axis=1)


def _by_group(found: Trajectories) -> Trajectories:
  """Returns trajectories by group, with marks of demonstrations."""
  groups = group_arrays.of(found)
  none = jnp.zeros_like(groups.rollout.truncated)
  return groups.replace(rollout=groups.rollout.replace(is_demo=none))
