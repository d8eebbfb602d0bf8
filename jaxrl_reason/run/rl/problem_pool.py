"""The problem pool of a stage: its prompts as arrays, the controller's choice
of the next step's problems, and the statistics of their outcomes.

On the fused path the choice is inside the compiled step. On the host path it is
a program of its own, with the same functions on the same arrays.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import (
  Metrics,
  Outcomes,
  Prompts,
  TrainState,
)
from jaxrl_reason.config import RL, Data
from jaxrl_reason.data import chooser as chooser_lib
from jaxrl_reason.data import controllers, mixture, pipeline, pool
from jaxrl_reason.data.chooser import Chooser
from jaxrl_reason.parts import Part, Step

POOL = 'pool'  # of TrainState.control


def chooser(data: Data) -> Chooser:
  """Builds the chooser of a run whose controller is on."""
  return chooser_lib.make(data, *mixture.names_and_weights(data))


def pool_of(data: Data, train, number: int = 0) -> Any:
  """Returns the problems of the pool: a data set, or a window of an endless
  one.

  Args:
    number: of the window, from 0.
  """
  if hasattr(train, 'moved'):
    return train.moved(number)
  if len(train) < pipeline.ENDLESS:
    return train
  n = data.controller.window
  return pipeline.Subset(train, range(number * n, (number + 1) * n))


def moving(train) -> tuple[bool, ...]:
  """Returns, for each source, whether the pool covers only a window of it."""
  return getattr(train, 'endless', (len(train) >= pipeline.ENDLESS,))


@struct.dataclass
class Facts:
  """The source and difficulty of M problems, known before the first step.

  Attributes:
    source: i32 [M]; difficulty: f32 [M], 0 to 1.
  """

  source: np.ndarray
  difficulty: np.ndarray


def unknown(n: int) -> Facts:
  """Returns placeholder facts of n problems; only their shapes are read."""
  return Facts(np.zeros(n, np.int32), np.zeros(n, np.float32))


def first_facts(data: Data, train) -> Facts:
  """Returns the facts of a stage's first pool; only a controller reads them."""
  if not data.has_pool:
    return shapes(data, train)
  return facts(data, pool_of(data, train))


def shapes(data: Data, train) -> Facts:
  """Returns facts of the shapes of the pool, without reading its problems."""
  return unknown(len(pool_of(data, train)))


def facts(data: Data, problems) -> Facts:
  """Reads the sources and difficulties of a pool's problems. If none is stated,
  it is the number of characters of the worked solution.
  """
  keys = mixture.own(data, 'difficulty')
  source, hard, name = [], [], data.controller.name
  read = name in controllers.BY_DIFFICULTY
  for i in range(len(problems)):
    example = problems[i]
    source.append(example.get('source', 0))
    try:
      own = chooser_lib.difficulty(example, keys[source[-1]], strict=read)
    except ValueError as e:
      text = example['prompt']
      raise ValueError(
        f'data.controller.name={name!r}: problem {i} ({text!r:.60}): {e}'
      ) from e
    hard.append(own)
  if None in hard:
    if read:
      _refuse_partly_stated(name, problems, hard)
    lengths = [len(problems[i].get('solution') or '') for i in range(len(hard))]
    hard = [n if own is None else own for n, own in zip(lengths, hard)]
  ranked = pool.ranked(np.float64(hard))
  if read and not ranked.any():
    raise ValueError(
      f'data.controller.name={name!r} uses difficulty, and all {len(hard)} '
      'problems are alike in it: set data.sources.<name>.difficulty'
    )
  return Facts(np.int32(source), ranked)


def _refuse_partly_stated(name: str, problems, hard: list[float | None]):
  """Refuses difficulties of which some would be lengths of solutions."""
  stated = [own for own in hard if own is not None]
  if stated:
    at = hard.index(None)
    raise ValueError(
      f'data.controller.name={name!r}: problem {at} '
      f'({problems[at]["prompt"]!r:.60}) states no difficulty, and '
      f'{len(stated)} of {len(hard)} problems do: write the field into every '
      'row, or set data.sources.<name>.difficulty of every source'
    )


def prompts_of(problems, encode: Callable, mesh) -> Prompts:
  """Encodes a pool's problems as Prompts [M,...], on every device of a mesh."""
  rows = [encode(i, problems[i]) for i in range(len(problems))]
  rows = trees.stacked(rows)

  def everywhere(x):
    where = sharding.replicated(mesh)
    return jax.make_array_from_callback(x.shape, where, lambda at: x[at])

  return Prompts(**jax.tree.map(everywhere, rows))


@dataclasses.dataclass(frozen=True)
class ProblemSampler:
  """Samples the problems of a step; static, so it selects a program.

  Attributes:
    chooser: of the problems.
    n: problems of a step.
    spares: further problems for each problem, for the rounds of a refill.
  """

  chooser: Chooser
  n: int
  spares: int = 0

  def ids(self, control: dict, root: jax.Array, step: jax.Array) -> jax.Array:
    """Samples the ids of a step's problems: [n], or [n,1+spares] by round. The
    first column is the same as without spares.

    Args:
      root: the run's key, which the step is folded into.
    """
    stats, propose = control[POOL], self.chooser.propose
    ids = propose(stats, trees.named_key(root, POOL), self.n, step)
    if not self.spares:
      return ids
    key = trees.named_key(root, 'spares')
    others = propose(stats, key, self.n * self.spares, step)
    # A round takes consecutive problems of the proposal, so every source has
    # its share.
    others = others.reshape(self.spares, self.n).T
    return jnp.concatenate([ids[:, None], others], axis=1)


def host_problem_rows(
  rl: RL, data: Data, windows: 'Windows', encode, root, mesh
) -> Callable[[dict, jax.Array], dict]:
  """Returns a function (control, step) -> this process's encoded rows of a step
  [m,...], or [m,1+spares,...], for the host path; it waits for the state.
  """
  ask = ProblemSampler(chooser(data), rl.prompts, rl.refill_rounds)
  propose = jax.jit(ProblemSampler.ids, static_argnums=0)

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
  """Returns the prompts [n,...] with ids [n] of a pool, or [n,1+spares,...]."""
  return jax.tree.map(sharding.rows, trees.take(prompts, ids))


@dataclasses.dataclass(frozen=True, eq=False)
class PoolStatistics(Part):
  """Records the outcomes of a step's problems for the controller; static.

  Attributes:
    chooser: of the problems.
    facts: of the problems before the first step.
  """

  chooser: Chooser
  facts: Facts
  name: str = POOL

  def init(self, total: jax.Array) -> pool.Statistics:
    """Returns the statistics of problems that were never tried."""
    return self.chooser.start(self.facts.source, self.facts.difficulty, total)

  def before(
    self, memory: pool.Statistics, step: Step
  ) -> tuple[pool.Statistics, Step, Metrics]:
    """Adds a step's outcomes; returns metrics of the choice of its problems."""
    rows = _observed(step.outcomes)
    used = step.batch.prompt_id, step.batch.mask.sum(axis=1)
    rows |= dict(zip(('used_ids', 'used_tokens'), used))
    # Gathered first, so that every mesh sums rows in the same order: the
    # results are equal bit for bit.
    rows = {k: sharding.everywhere(x) for k, x in rows.items()}
    number = step.state.step
    drawn = rows['ids'], rows['length'] > 0
    metrics = self.chooser.metrics(memory, *drawn, number)
    seen = pool.tell(memory, **rows, n_sources=len(self.chooser.names))
    return self.chooser.learn(memory, seen, number), step, metrics


def _observed(outcomes: Outcomes) -> dict[str, jax.Array]:
  """Returns the rows [R] of all rounds that `pool.tell` reads."""
  valid, answers = outcomes.own, outcomes.answer_id
  if answers is None:
    answers = jnp.full_like(outcomes.length, -1)
  rows = dict(
    ids=outcomes.prompt_id,
    reward=outcomes.reward,
    solved=outcomes.reward_parts[..., 0] > 0.5,
    valid=valid,
    length=outcomes.length,
    answer_id=answers,
  )
  return {k: x.reshape(-1) for k, x in rows.items()}


def statistics(data: Data, facts: Facts) -> PoolStatistics:
  """Builds the part that keeps a pool's statistics."""
  return PoolStatistics(chooser(data), facts)


def renewed(
  chooser: Chooser,
  moves: tuple[bool, ...],
  old: pool.Statistics,
  known: Facts,
) -> pool.Statistics:
  """Returns the statistics after the pool's windows move on. The problems of
  moved windows start anew; other sources and the controllers keep their
  statistics.

  Args:
    moves: for each source, whether it is a window; known: of the new problems.
  """
  new = chooser.start(known.source, known.difficulty, old.begun)
  moved = jnp.asarray(moves)[old.source]
  fields = [k for k in vars(old) if k not in ('begun', 'own', 'arms')]
  both = {k: jnp.where(moved, getattr(new, k), getattr(old, k)) for k in fields}
  return old.replace(**both)


class Windows:
  """The pool of a stage. Its data state is the number of steps so far, which
  determines the window.

  Attributes:
    problems: the current pool.
  """

  seconds = 0.0

  def __init__(self, data: Data, train):
    self._data, self._train = data, train
    self._every, self._steps = data.controller.refresh, 0
    given = chooser(data), moving(train)
    self._renewed = jax.jit(functools.partial(renewed, *given))
    self.problems = pool_of(data, train)

  def get_state(self) -> dict[str, int]:
    return {'next_index': 0, 'steps': self._steps}

  def set_state(self, state: dict[str, int]) -> None:
    # At the end of a window the next dispatch moves to the next window.
    self._steps = state.get('steps', 0)
    number = max(self._steps - 1, 0) // self._every if self._every else 0
    self.problems = pool_of(self._data, self._train, number)

  @property
  def due(self) -> bool:
    """Returns whether the next step is the first of another window."""
    every, steps = self._every, self._steps
    return bool(every and steps and steps % every == 0)

  def advance(self, steps: int) -> None:
    """Counts finished steps."""
    self._steps += steps

  def move(self, state: TrainState) -> TrainState:
    """Moves to the next window, and drops the statistics of the last one."""
    number = self._steps // self._every
    self.problems = pool_of(self._data, self._train, number)
    known = facts(self._data, self.problems)
    old = state.control[POOL]
    # The layout stays: another layout would compile another program.
    where = jax.tree.map(operator.attrgetter('sharding'), old)
    new = jax.device_put(self._renewed(old, known), where)
    return state.replace(control=state.control | {POOL: new})
