"""Hints: the beginning of the reference solution, appended to the prompt.

  always   problem + first tokens of the solution -> completions of the rest
  failed   without hints first; problems that no sample has solved are generated
           again with a hint

A hint belongs to the prompt: it has no sampler log-prob, rewards do not read
it, and it has no loss unless `learn` is set. With `learn` its tokens are
trained on as off-policy tokens by `rl.loss.offpolicy`: by their likelihood, or
by LUFFY's shaped policy gradient (https://arxiv.org/abs/2504.14945) with the
row's advantage. Prefix-RFT (https://arxiv.org/abs/2507.01679) combines the two
in this way. With `always` the hint precedes the completion in training too.
With `failed` the samples are trained on as completions of the problem alone,
with the ratio to the policy under the hint.

`always` with a share that decreases during the run is a reverse curriculum (R3,
https://arxiv.org/abs/2402.05808; by solve rate it is AdaBack,
https://arxiv.org/abs/2506.18110, which has a share per problem). `failed` is
the guidance of Guide-GRPO, https://arxiv.org/abs/2506.13923, with two
differences: the hint is the beginning of the solution, not a written text, and
all samples of a failed problem are replaced, not some.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Prompts, Trajectories
from jaxrl_reason.rollouts import group_arrays, progress
from jaxrl_reason.rollouts.rounds import Finished, Rounds

WHEN = ('always', 'failed')


def hinted(
  prompts: Prompts, n: jax.Array, room: int, learn: bool = False
) -> Prompts:
  """Appends the first n tokens i32 [B] of the reference solutions to prompts
  [B,P]. The result [B,P+room] is left-padded; n is at most `room` and a
  solution's length.

  Args:
    learn: mark the tokens of hints as tokens to train on.
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
    is_hinted=n > 0,
  )


@struct.dataclass
class HintedGroups:
  """The groups of a step, and the problems that were failed without a hint."""

  groups: Trajectories  # [B,...], by group
  failed: jax.Array  # bool [B]


@dataclasses.dataclass(frozen=True, eq=False)
class Hints(Rounds):
  """Appends the beginning of the reference solution to prompts; static.

  Attributes:
    max_tokens: the largest number of tokens of a hint.
    when: a name in WHEN.
    by: name of the progress value that sets the share.
    at, values: points of the share, interpolated linearly.
    learn: also train on the tokens of the hint; with `always` only.
  """

  max_tokens: int
  when: str
  by: str
  at: tuple[float, ...]
  values: tuple[float, ...]
  learn: bool = False
  name = 'hints'

  @property
  def n(self) -> int:
    """Rounds at most."""
    return 1 if self.fixed else 2

  @property
  def fixed(self) -> bool:
    """Returns whether every problem has its hint in the first round."""
    return self.when == 'always'

  @property
  def only_asks(self) -> bool:
    """Returns whether a step has a single round."""
    return self.fixed

  def init(self, control: dict, like: Trajectories) -> HintedGroups | tuple:
    """Returns groups of zeros, with every problem marked as failed."""
    if self.fixed:
      return ()
    shapes = jax.eval_shape(group_arrays.of, like)
    b = shapes.prompts.tokens.shape[0]
    return HintedGroups(group_arrays.empty(shapes, b), jnp.ones(b, bool))

  def ask(self, control: dict, carry, prompts: Prompts, i) -> Prompts:
    """Returns prompts [B,P+max_tokens] with their hints. With `failed`, round 0
    has no hints, and both rounds are trained on under the problem alone.
    """
    n = self._tokens(control, prompts)
    if self.fixed:
      return hinted(prompts, n, self.max_tokens, self.learn)
    alone = hinted(prompts, jnp.zeros_like(n), self.max_tokens)
    asked = hinted(prompts, jnp.where(i > 0, n, 0), self.max_tokens)
    return asked.replace(train_tokens=alone.tokens, train_valid=alone.valid)

  def add(self, carry, found: Trajectories, i) -> HintedGroups | tuple:
    """Stores the groups of round 0, then those of the failed problems."""
    if self.fixed:
      return (*carry, found)
    first = jnp.asarray(i) == 0
    asked, new = carry.failed | first, group_arrays.of(found)
    groups = trees.where_rows(asked, new, carry.groups)
    return HintedGroups(groups, jnp.where(first, failed(found), carry.failed))

  def more(self, carry: HintedGroups | tuple) -> jax.Array:
    """Returns whether any problem is failed, bool []; False if all problems
    had their hints.
    """
    return jnp.bool_(False) if self.fixed else jnp.any(carry.failed)

  def finish(self, control, carry, root, step) -> Finished:
    """Returns the groups of all problems."""
    if self.fixed:
      return Finished(carry[0])
    found = group_arrays.to_rows(carry.groups)
    reward = carry.groups.reward
    right = reward.valid & (reward.parts[..., 0] > 0.5)
    rescued = carry.failed & jnp.any(right, axis=1)
    metrics = {
      'hints/failed': jnp.mean(carry.failed),
      'hints/solved': rescued.sum() / jnp.maximum(carry.failed.sum(), 1),
    }
    return Finished(found, None, metrics)

  def dead(self, found: Trajectories) -> jax.Array:
    """Marks the failed problems, bool [B]."""
    return failed(found)

  def _tokens(self, control: dict, prompts: Prompts) -> jax.Array:
    """Counts the tokens of hints, i32 [B]; a hint ends before the answer."""
    x = progress.of(control)[self.by].astype(jnp.float32)
    share = jnp.interp(x, jnp.float32(self.at), jnp.float32(self.values))
    limit = prompts.hint_limit
    limit = prompts.demo_length - 1 if limit is None else limit
    n = jnp.floor(share * limit).astype(jnp.int32)
    return jnp.clip(n, 0, self.max_tokens)


def failed(found: Trajectories) -> jax.Array:
  """Marks the groups, bool [B], with verified rows of which none is correct."""
  seen = batch_lib.outcomes(batch_lib.make_batch(found))
  _, none = batch_lib.solved_groups(seen)
  return none.reshape(found.prompts.tokens.shape[0], -1)[:, 0]
