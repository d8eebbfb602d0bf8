"""Demonstrations for what nobody has solved: in groups without a right sample
the last `rl.demos` samples are replaced by the reference solution.

So the policy imitates where it has nothing of its own to learn from, and
learns from itself elsewhere. ReLIFT (https://arxiv.org/abs/2506.07527) does so
in turns of RL and of supervised steps on the hardest problems. How it
imitates is `rl.loss.offpolicy`.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason.base import Account, Prompts, Trajectories
from jaxrl_reason.rollouts import fused
from jaxrl_reason.rollouts import groups as groups_lib
from jaxrl_reason.rollouts.hints import failed

WHEN = ('always', 'failed')


@dataclasses.dataclass(frozen=True, eq=False)
class Rescue:
  """Puts demonstrations into a source's failed groups; static.

  Attributes:
    source: whose own samples are all the policy's.
    demos: of a group's samples, how many are replaced.
  """

  source: fused.FusedSource
  demos: int

  def __call__(
    self, params, control, prompts: Prompts, root, step, sampling, stop
  ) -> Trajectories:
    """Gives one step's trajectories, inside jit.

    Args:
      prompts: with reference solutions.
    """
    rest = root, step, sampling, stop
    found = self.source(params, control, prompts, *rest)
    own, n = found.rollout, found.rollout.length.shape[0]
    missed = failed(found)
    shown = fused.with_demos(own, prompts, self.demos)
    rows = batch_lib.per_row(missed, n) & shown.is_demo

    def pick(new, old):
      return jnp.where(rows.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    rollout = jax.tree.map(pick, shown.replace(is_demo=None), own)
    rollout = rollout.replace(is_demo=rows)
    how = root, step, 'views'
    reward = self.source.judged(params, control, prompts, rollout, how)
    # Statistics are of what the policy said.
    account = groups_lib.account(found)
    told = {'demos/groups': jnp.mean(missed)}
    account = Account(account.seen, account.rounds, {}, told)
    return found.replace(rollout=rollout, reward=reward, account=account)
