"""Rounds of generation: whether a step generates again, and how the groups of
its rounds are combined.

A kind of round is a static object with five functions (`Rounds`). Refill adds
other problems, hints repeat the failed problems, and extra adds samples. Replay
combines one round with groups of earlier steps, and rescue with reference
solutions, or with solutions from a second round that shows the answer. Two
drivers call the same functions:

  RoundsSource           in the compiled step, by a `while_loop`
  run.rl.host_step       on the host, by a `while`, with verifiers in Python

Kinds can be nested: a `RoundsSource` is itself a source, so refill may contain
hints. The statistics include the outcomes of every round, also of dropped
groups.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import trees
from jaxrl_reason.base import (
  Account,
  Metrics,
  Outcomes,
  Prompts,
  Trajectories,
)
from jaxrl_reason.rollouts import group_arrays

Carry = Any


class Finished(NamedTuple):
  """The trajectories of a step, the kind's next memory or None, and metrics."""

  found: Trajectories
  memory: Any = None
  metrics: Metrics = {}


class Rounds:
  """A kind of round; static. Subclasses override what they need.

  Attributes:
    n: rounds at most.
    fixed: every round runs, and rounds may differ in size. Otherwise rounds run
      while `more` returns true, and have one size.
    name: of the kind, and of its memory in `TrainState.control` if it has one.
      It determines the noise of rounds, so nested kinds of several rounds have
      different names.
    only_asks: a step has one round, whose trajectories stay as they are.
    reads_demos: `finish` reads the rewards of the reference solutions.
  """

  n: int = 1
  fixed: bool = True
  name: str = ''
  only_asks: bool = False
  reads_demos: bool = False

  def memory(self, like: Trajectories) -> Any:
    """Returns the memory before the first step.

    Args:
      like: shapes of a step's trajectories by group (`group_arrays.of`).
    """

  def init(self, control: dict | None, like: Trajectories) -> Carry:
    """Returns the carry before the first round.

    Args:
      like: trajectories of a round, or their shapes.
    """
    return ()

  def ask(
    self, control: dict | None, carry: Carry, prompts: Prompts, i: jax.Array
  ) -> Prompts:
    """Returns the prompts of round i. A kind that is not fixed must not read
    the carry, which may be None.
    """
    return prompts

  def add(self, carry: Carry, found: Trajectories, i: jax.Array) -> Carry:
    """Adds the trajectories of round i."""
    return (*carry, found)

  def more(self, carry: Carry) -> jax.Array:
    """Returns whether another round is needed, bool []."""
    return jnp.bool_(False)

  def finish(
    self, control: dict | None, carry: Carry, root: jax.Array, step: jax.Array
  ) -> Finished:
    """Combines the rounds.

    Args:
      root: the run's key; step: i32 []; both determine the noise.
    """
    return Finished(carry[0])

  def dead(self, found: Trajectories) -> jax.Array:
    """Marks the groups of a round that require another round, bool [B]."""
    return jnp.zeros(found.prompts.tokens.shape[0], bool)

  def spare(self, control: dict | None, carry: Carry) -> jax.Array:
    """Counts the dead groups, i32 [], that a step may have without another
    round; the carry is None before the first round.
    """
    return jnp.int32(0)


class Tally(NamedTuple):
  """The rounds of a step so far.

  Attributes:
    carry: of the kind.
    seen: Outcomes [n,r,N] of n rounds, each of r inner ones.
    ran: bool [n,r], whether each of them ran.
    metrics: of inner kinds, summed over rounds.
    account: of the rounds of a fixed kind; replaces the three above.
  """

  carry: Carry
  seen: Outcomes | None = None
  ran: jax.Array | None = None
  metrics: Metrics = {}
  account: Account | None = None


def key_of_round(
  root: jax.Array, name: str, index: jax.Array | int
) -> jax.Array:
  """Derives the key of a round; round 0 has the key of the rounds around it.

  Args:
    name: of the kind. Without it, a round of an inner kind would have the key
      of an outer round.
  """
  if isinstance(index, int) and index == 0:
    return root
  other = jax.random.fold_in(trees.named_key(root, f'{name} round'), index)
  return jnp.where(jnp.asarray(index) > 0, other, root)


def begin(kind: Rounds, control: dict | None, like: Trajectories) -> Tally:
  """Returns the tally before the first round.

  Args:
    like: trajectories of a round, or their shapes.
  """
  carry = kind.init(control, like)
  if kind.fixed:
    return Tally(carry)
  one = jax.eval_shape(group_arrays.account, like)

  def zeros(x):
    return jnp.zeros((kind.n, *x.shape), x.dtype)

  seen, ran = jax.tree.map(zeros, (one.seen, one.ran))
  metrics = {k: jnp.zeros(x.shape, jnp.float32) for k, x in one.metrics.items()}
  return Tally(carry, seen, ran, metrics)


def add(kind: Rounds, tally: Tally, found: Trajectories, i: jax.Array) -> Tally:
  """Adds the trajectories of round i."""
  if kind.only_asks and found.account is None:
    return Tally(kind.add(tally.carry, found, i))
  one = group_arrays.account(found)
  carry = kind.add(tally.carry, found.replace(account=one), i)
  if kind.fixed:
    return Tally(carry, account=_beside(tally.account, one))

  def put(rounds, x):
    return rounds.at[i].set(x)

  seen, ran = jax.tree.map(put, (tally.seen, tally.ran), (one.seen, one.ran))
  metrics = {k: x + one.metrics[k] for k, x in tally.metrics.items()}
  return Tally(carry, seen, ran, metrics)


def _beside(before: Account | None, one: Account) -> Account:
  """Joins the rows of a further round of a fixed kind to the earlier rows."""
  if before is None:
    return one
  seen = jax.tree.map(
    lambda x, y: jnp.concatenate([x, y], axis=1), before.seen, one.seen
  )
  return before.replace(seen=seen)


def more(kind: Rounds, tally: Tally) -> jax.Array:
  """Returns whether another round is needed, bool []."""
  return kind.more(tally.carry)


def finish(
  kind: Rounds, control: dict | None, tally: Tally, root, step
) -> Trajectories:
  """Combines the rounds of a step, with the account of all of them."""
  found, memory, metrics = kind.finish(control, tally.carry, root, step)
  if kind.fixed and tally.account is None:
    return found
  account = tally.account if kind.fixed else _account(tally)
  if found.group is not None and kind.n > 1:
    # Rounds number their groups alike; combined, they have the batch's numbers.
    n = account.seen.group.shape[-1]
    group = jnp.broadcast_to(
      batch_lib.per_row(found.group, n), account.seen.group.shape
    )
    account = account.replace(seen=account.seen.replace(group=group))
  if kind.name and memory is not None:
    memory = {kind.name: memory}
    account = account.replace(control=account.control | memory)
  account = account.replace(metrics=account.metrics | metrics)
  return found.replace(account=account)


def _account(tally: Tally) -> Account:
  """Builds the account of successive rounds. Metrics of inner kinds are means
  over the rounds.
  """
  n = jnp.maximum(jnp.any(tally.ran, axis=1).sum(), 1)

  def flat(x):
    return x.reshape(-1, *x.shape[2:])

  seen, ran = jax.tree.map(flat, (tally.seen, tally.ran))
  return Account(seen, ran, {}, {k: x / n for k, x in tally.metrics.items()})


@dataclasses.dataclass(frozen=True, eq=False)
class RoundsSource:
  """Generates the rounds of a kind in the compiled step; itself a source.

  Attributes:
    source: of one round, as `fused.FusedSource`.
    kind: of the rounds.
  """

  source: Callable[..., Trajectories]
  kind: Rounds

  def __call__(
    self, params, control, prompts: Prompts, root, step, sampling, stop
  ) -> Trajectories:
    """Generates the trajectories of one step.

    Args:
      prompts: of the step, as the kind's `ask` reads them.
    """
    kind, rest = self.kind, (step, sampling, stop)

    def generate(carry, i):
      asked = kind.ask(control, carry, prompts, i)
      key = key_of_round(root, kind.name, i)
      return self.source(params, control, asked, key, *rest)

    if kind.fixed:
      tally = Tally(())
      for i in range(kind.n):
        tally = add(kind, tally, generate(tally.carry, i), i)
      return finish(kind, control, tally, root, step)

    def body(state):
      i, tally = state
      found = generate(tally.carry, i)
      return i + 1, add(kind, tally, found, i)

    def is_needed(state):
      i, tally = state
      return (i < kind.n) & more(kind, tally)

    tally = begin(kind, control, jax.eval_shape(generate, None, 0))
    with trees.at_most('rounds', kind.n):
      _, tally = jax.lax.while_loop(is_needed, body, (jnp.int32(0), tally))
    return finish(kind, control, tally, root, step)


def nested(source: Callable, kinds: tuple[Rounds, ...]) -> Callable:
  """Wraps a source in kinds of rounds; the first kind is innermost."""
  for kind in kinds:
    source = RoundsSource(source, kind)
  return source
