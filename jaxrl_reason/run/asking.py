"""What a stage with a pool asks: the pool's prompts as arrays, the ids of the
next step by a controller, and what is noted of a batch.

On the fused path both happen in the compiled step; on the host path `Ask.ids`
is a program of its own, and the same functions run on the same arrays.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from flax import struct

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import (
  Batch,
  Metrics,
  Outcomes,
  Prompts,
  TrainState,
)
from jaxrl_reason.data import chooser as chooser_lib
from jaxrl_reason.data import controllers, mixture, pipeline, pool
from jaxrl_reason.data.chooser import Chooser

POOL = 'pool'  # of TrainState.control


def chooser(config: ml_collections.ConfigDict) -> Chooser | None:
  """Makes the chooser of a run; None: problems come in the data's order."""
  if not controllers.is_on(config.data):
    return None
  return chooser_lib.make(config.data, *mixture.names_and_weights(config.data))


def pool_of(config: ml_collections.ConfigDict, train, number: int = 0) -> Any:
  """Gives the problems of the pool: a data set, or a window of an endless one.

  Args:
    number: of the window, from 0.
  """
  if hasattr(train, 'moved'):
    return train.moved(number)
  if len(train) < pipeline.ENDLESS:
    return train
  n = config.data.controller.window
  return pipeline.Subset(train, range(number * n, (number + 1) * n))


def moving(train) -> tuple[bool, ...]:
  """Tells of each source whether its part of the pool is a window."""
  return getattr(train, 'endless', (len(train) >= pipeline.ENDLESS,))


@struct.dataclass
class Facts:
  """What is known of M problems before any is tried.

  Attributes:
    source: i32 [M]; difficulty: f32 [M], 0 to 1.
  """

  source: np.ndarray
  difficulty: np.ndarray


def unknown(n: int) -> Facts:
  """Gives facts of n problems where their shapes alone are read."""
  return Facts(np.zeros(n, np.int32), np.zeros(n, np.float32))


def facts(config: ml_collections.ConfigDict, problems) -> Facts:
  """Reads the sources and difficulties of a pool's problems."""
  said = mixture.own(config.data, 'difficulty')
  source, hard = [], []
  for i in range(len(problems)):
    example = problems[i]
    source.append(example.get('source', 0))
    hard.append(chooser_lib.difficulty(example, said[source[-1]]))
  ranked, name = pool.ranked(np.float64(hard)), config.data.controller.name
  if name in controllers.BY_DIFFICULTY and not ranked.any():
    raise ValueError(
      f'data.controller.name={name!r} goes by difficulty, and all {len(hard)} '
      'problems are alike in it: set data.sources.<name>.difficulty'
    )
  return Facts(np.int32(source), ranked)


def prompts_of(problems, encode: Callable, mesh) -> Prompts:
  """Encodes a pool's problems as Prompts [M,...], on every device of a mesh."""
  rows = [encode(i, problems[i]) for i in range(len(problems))]
  rows = trees.stacked(rows)

  def everywhere(x):
    where = sharding.replicated(mesh)
    return jax.make_array_from_callback(x.shape, where, lambda at: x[at])

  return Prompts(**jax.tree.map(everywhere, rows))


@dataclasses.dataclass(frozen=True)
class Ask:
  """What a step asks; static, so it selects a program.

  Attributes:
    chooser: of the problems.
    n: problems of a step.
    spares: further ones for each of these, of the rounds of a refill.
  """

  chooser: Chooser
  n: int
  spares: int = 0

  def ids(self, control: dict, root: jax.Array, step: jax.Array) -> jax.Array:
    """Chooses the ids of a step's problems: [n], or [n,1+spares] by round, of
    which the first are those there would be without spares.

    Args:
      root: the run's key, which the step is folded into.
    """
    stats, propose = control[POOL], self.chooser.propose
    ids = propose(stats, trees.named_key(root, POOL), self.n, step)
    if not self.spares:
      return ids
    key = trees.named_key(root, 'spares')
    others = propose(stats, key, self.n * self.spares, step)
    return jnp.concatenate([ids[:, None], others.reshape(self.n, -1)], axis=1)


def asker(
  config: ml_collections.ConfigDict, windows: 'Windows', encode, root, mesh
) -> Callable[[dict, jax.Array], dict]:
  """Gives (control, step) -> this process's encoded rows of a step [m,...], or
  [m,1+spares,...], for the host path; waits for the state.
  """
  ask = Ask(chooser(config), config.rl.prompts, config.rl.refill_rounds)
  propose = jax.jit(Ask.ids, static_argnums=0)

  def rows(control, step):
    ids = np.asarray(propose(ask, control, root, step))
    mine = ids[sharding.my_rows(mesh, ask.n)]
    asked = windows.problems
    rows = [encode(int(i), asked[int(i)]) for i in mine.ravel()]
    return jax.tree.map(
      lambda x: x.reshape(*mine.shape, *x.shape[1:]), trees.stacked(rows)
    )

  return rows


def take(prompts: Prompts, ids: jax.Array) -> Prompts:
  """Gives the prompts [n,...] of ids [n] of a pool, or [n,1+spares,...]."""
  return jax.tree.map(sharding.rows, trees.take(prompts, ids))


def observe(
  chooser: Chooser,
  control: dict,
  seen: Outcomes,
  chosen: Batch,
  step: jax.Array,
) -> tuple[dict, Metrics]:
  """Notes what a step told of its problems.

  Args:
    seen: all that was generated, [...,N].
    chosen: what is learnt from: rows without a token left are not used.

  Returns:
    (control after the step, metrics of what it was chosen by).
  """
  stats, valid = control[POOL], seen.reward_valid
  if seen.is_demo is not None:
    valid &= ~seen.is_demo
  answers = seen.answer_id
  rows = dict(
    ids=seen.prompt_id,
    reward=seen.reward,
    solved=seen.reward_parts[..., 0] > 0.5,
    valid=valid,
    length=seen.length,
    answer_id=jnp.full_like(seen.length, -1) if answers is None else answers,
  )
  rows = {k: x.reshape(-1) for k, x in rows.items()}
  rows |= dict(used_ids=chosen.prompt_id, used_tokens=chosen.mask.sum(axis=1))
  # One order on every mesh: sums over rows are then the same, bit by bit.
  rows = {k: sharding.everywhere(x) for k, x in rows.items()}
  metrics = chooser.metrics(stats, rows['ids'], rows['length'] > 0, step)
  return control | {POOL: chooser.observe(stats, **rows, step=step)}, metrics


def observer(chooser: Chooser | None) -> Callable | None:
  """Gives `observe` of a chooser; None: there is none."""
  return chooser and functools.partial(observe, chooser)


def start(chooser: Chooser, known: Facts, total: jax.Array) -> dict:
  """Gives what is known as a stage begins, at step `total` of the run."""
  return {POOL: chooser.start(known.source, known.difficulty, total)}


def renewed(
  chooser: Chooser,
  moves: tuple[bool, ...],
  old: pool.Statistics,
  known: Facts,
) -> pool.Statistics:
  """Gives what is known as the pool's windows move on: nothing of their
  problems; of other sources', and of the controllers, all there was.

  Args:
    moves: of each source, whether it is a window; known: of the new problems.
  """
  new = chooser.start(known.source, known.difficulty, old.begun)
  moved = jnp.asarray(moves)[old.source]
  fields = [k for k in vars(old) if k not in ('begun', 'own', 'arms')]
  both = {k: jnp.where(moved, getattr(new, k), getattr(old, k)) for k in fields}
  return old.replace(**both)


class Windows:
  """The pool of a stage and its state as data: how many steps were made, of
  which the window follows.

  Attributes:
    problems: the pool now.
  """

  seconds = 0.0

  def __init__(self, config: ml_collections.ConfigDict, train):
    self._config, self._train = config, train
    self._every, self._steps = config.data.controller.refresh, 0
    given = chooser(config), moving(train)
    self._renewed = jax.jit(functools.partial(renewed, *given))
    self.problems = pool_of(config, train)

  def get_state(self) -> dict[str, int]:
    return {'next_index': 0, 'steps': self._steps}

  def set_state(self, state: dict[str, int]) -> None:
    # At the very end of a window the next dispatch moves on.
    self._steps = state.get('steps', 0)
    number = max(self._steps - 1, 0) // self._every if self._every else 0
    self.problems = pool_of(self._config, self._train, number)

  @property
  def due(self) -> bool:
    """Tells whether the next step is the first of another window."""
    every, steps = self._every, self._steps
    return bool(every and steps and steps % every == 0)

  def advance(self, steps: int) -> None:
    """Counts steps that are made."""
    self._steps += steps

  def move(self, state: TrainState) -> TrainState:
    """Takes the next window, and forgets the problems of the last."""
    number = self._steps // self._every
    self.problems = pool_of(self._config, self._train, number)
    known = facts(self._config, self.problems)
    old = state.control[POOL]
    # Laid out as it was: another layout is another program.
    where = jax.tree.map(operator.attrgetter('sharding'), old)
    new = jax.device_put(self._renewed(old, known), where)
    return state.replace(control=state.control | {POOL: new})
