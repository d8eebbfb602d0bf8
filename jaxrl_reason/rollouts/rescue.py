"""Demonstrations for problems without a correct sample: the reference solution
replaces the last `rl.demos` samples of such a group.

In groups without a signal, the policy imitates the solution; in other groups,
it is trained on its own samples. ReLIFT (https://arxiv.org/abs/2506.07527)
alternates RL with supervised steps on the hardest problems instead.
`rl.loss.offpolicy` is the loss of the demonstrations.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import trees
from jaxrl_reason.base import Trajectories
from jaxrl_reason.rollouts import fused
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
