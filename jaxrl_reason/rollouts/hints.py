"""Hints: part of the reference solution, given with the problem.

  always   problem + first tokens of the solution -> completions of the rest
  failed   without hints first; problems that no sample has solved are asked
           again with a hint

What is given belongs to the prompt: it has no sampler log-prob, rewards do not
read it, and it has no loss, unless `learn` asks for one: then it is trained on
as off-policy tokens, as `rl.loss.offpolicy` has it: by its likelihood, or by
LUFFY's shaped policy gradient (https://arxiv.org/abs/2504.14945) on the row's
advantage; Prefix-RFT (https://arxiv.org/abs/2507.01679) blends the two so. With
`always` it stands before the completion in training too; with `failed` the
samples are learnt from as answers to the problem alone, by the ratio to the
policy that had the hint.

`always` with a share that falls in the course of the run is a reverse
curriculum (R3, https://arxiv.org/abs/2402.05808; by solve rate as AdaBack,
https://arxiv.org/abs/2506.18110, which has a rate per problem). `failed` is the
guidance of Guide-GRPO, https://arxiv.org/abs/2506.13923, with the solution's
beginning in place of a written hint, and with all samples of such a problem
replaced in place of some.

In the graph `Hints` stands around a source; on the host path `run.hints_step`
calls the same functions between verdicts.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import Account, Prompts, Trajectories
from jaxrl_reason.rollouts import groups as groups_lib
from jaxrl_reason.rollouts.refill import key_of_round

WHEN = ('always', 'failed')


def hinted(
  prompts: Prompts, n: jax.Array, room: int, learn: bool = False
) -> Prompts:
  """Appends the first n tokens i32 [B] of the reference solutions to prompts
  [B,P], left-padded to [B,P+room]; n is at most `room` and a solution's length.

  Args:
    learn: mark them as tokens to be trained on.
  """
  c = prompts.demo.shape[1]
  columns = jnp.arange(prompts.tokens.shape[1] + room) + n[:, None]

  def shifted(own, demo):
    both = jnp.pad(own, ((0, 0), (room, 0)))
    both = jnp.concatenate([both, demo[:, :room]], axis=1)
    columns_ = jnp.minimum(columns, both.shape[1] - 1)
    return sharding.rows(jnp.take_along_axis(both, columns_, axis=1))

  given = jnp.arange(c) < prompts.demo_length[:, None]
  none = jnp.zeros_like(prompts.valid)
  return prompts.replace(
    tokens=shifted(prompts.tokens, prompts.demo),
    valid=shifted(prompts.valid, given),
    forced=shifted(none, given) if learn else None,
  )


@dataclasses.dataclass(frozen=True, eq=False)
class Hints:
  """Gives hints to a source; static.

  Attributes:
    source: as `fused.FusedSource`.
    room: tokens of a hint, at most.
    when: a name in WHEN.
    by: number in control that the share follows.
    at, values: its points, a straight line between two.
    learn: the hint's tokens are trained on too; with `always` only.
  """

  source: Callable[..., Trajectories]
  room: int
  when: str
  by: str
  at: tuple[float, ...]
  values: tuple[float, ...]
  learn: bool = False

  def __call__(
    self, params, control, prompts: Prompts, root, step, sampling, stop
  ) -> Trajectories:
    """Gives one step's trajectories, inside jit.

    Args:
      prompts: with reference solutions; those given back have P + room columns.
    """
    rest = step, sampling, stop
    if self.when == 'always':
      helped = self.helped(control, prompts)
      return self.source(params, control, helped, root, *rest)
    alone, helped = self.views(control, prompts)
    first = self.source(params, control, alone, root, *rest)
    missed = failed(first)

    def again():
      key = key_of_round(root, 1)
      return groups_lib.of(self.source(params, control, helped, key, *rest))

    own = groups_lib.of(first)
    more = jax.lax.cond(jnp.any(missed), again, lambda: own)
    return both(own, more, missed)

  def helped(self, control: dict, prompts: Prompts) -> Prompts:
    """Gives the prompts [B,P+room] with their hints."""
    n = self._tokens(control, prompts)
    return hinted(prompts, n, self.room, self.learn)

  def views(self, control: dict, prompts: Prompts) -> tuple[Prompts, Prompts]:
    """Gives the prompts [B,P+room] without and with a hint, both trained under
    the problem alone.
    """
    alone = hinted(prompts, jnp.zeros_like(prompts.demo_length), self.room)
    view = dict(train_tokens=alone.tokens, train_valid=alone.valid)
    helped = self.helped(control, prompts)
    return alone.replace(**view), helped.replace(**view)

  def _tokens(self, control: dict, prompts: Prompts) -> jax.Array:
    """How many tokens of each solution are given, i32 [B]; never its end."""
    x = control[self.by].astype(jnp.float32)
    share = jnp.interp(x, jnp.float32(self.at), jnp.float32(self.values))
    n = jnp.floor(share * (prompts.demo_length - 1)).astype(jnp.int32)
    return jnp.clip(n, 0, self.room)


def both(
  own: Trajectories, more: Trajectories, missed: jax.Array
) -> Trajectories:
  """Gives the groups `own`, those missed, bool [B], replaced by `more`; where
  none is, `more` is not read.
  """

  def pick(new, old):
    return jnp.where(missed.reshape(-1, *[1] * (old.ndim - 1)), new, old)

  found = groups_lib.to_rows(jax.tree.map(pick, more, own))
  first, second = (
    groups_lib.account(groups_lib.to_rows(x)).seen for x in (own, more)
  )
  asked = jnp.any(missed)  # else the second are the first
  second = second.replace(reward_valid=second.reward_valid & asked)
  seen = jax.tree.map(lambda *x: jnp.concatenate(x), first, second)
  rescued = missed & ~failed(found)
  told = {
    'hints/failed': jnp.mean(missed),
    'hints/solved': rescued.sum() / jnp.maximum(missed.sum(), 1),
  }
  n = 1 + asked.astype(jnp.int32)
  return found.replace(account=Account(seen, n, {}, told))


def failed(found: Trajectories) -> jax.Array:
  """Tells whether no row of a group was right, and some verified, bool [B]."""
  seen = batch_lib.outcomes(batch_lib.make_batch(found))
  _, none = batch_lib.solved_groups(seen)
  b = found.prompts.tokens.shape[0]
  ok = seen.reward_valid.reshape(b, -1)
  return none.reshape(b, -1)[:, 0] & jnp.any(ok, axis=1)
