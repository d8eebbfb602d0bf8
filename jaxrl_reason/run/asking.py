"""What a stage with a pool asks: the pool's prompts as arrays, the ids of the
next step by a controller, and what is noted of a batch.

On the fused path both happen inside the compiled step; on the host path
`ids_of` is a program of its own, and the same functions run on the same arrays.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
import numpy as np

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Batch, Metrics, Prompts
from jaxrl_reason.data import chooser as chooser_lib
from jaxrl_reason.data import controllers, mixture, pipeline, pool
from jaxrl_reason.data.chooser import Chooser

POOL = 'pool'  # of TrainState.control


def chooser(config: ml_collections.ConfigDict) -> Chooser | None:
  """Makes the chooser of a run; None: problems come in the data's order."""
  if not controllers.is_on(config.data):
    return None
  return chooser_lib.make(config.data, *mixture.names_and_weights(config.data))


def pool_of(config: ml_collections.ConfigDict, train) -> Any:
  """Gives the problems of the pool: a data set, or the first problems of an
  endless one.
  """
  if len(train) < pipeline.ENDLESS:
    return train
  return pipeline.Subset(train, range(config.data.controller.window))


@dataclasses.dataclass
class Facts:
  """What is known of M problems before any is tried.

  Attributes:
    source: i32 [M]; difficulty: f32 [M], 0 to 1.
  """

  source: np.ndarray
  difficulty: np.ndarray


def unknown(n: int) -> Facts:
  """Facts of n problems where their shapes alone are read."""
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
  rows = jax.tree.map(lambda *x: np.stack(x), *rows)

  def everywhere(x):
    where = sharding.replicated(mesh)
    return jax.make_array_from_callback(x.shape, where, lambda at: x[at])

  return Prompts(**jax.tree.map(everywhere, rows))


def ids_of(
  chooser: Chooser, n: int, control: dict, root: jax.Array, step: jax.Array
) -> jax.Array:
  """Chooses the ids [n] of a step's problems; root: the run's key."""
  key = trees.named_key(root, POOL)
  return chooser.propose(control[POOL], key, n, step)


def rows_chooser(
  chooser: Chooser, problems, encode: Callable, n: int, root, mesh
) -> Callable[[dict, jax.Array], dict]:
  """Gives (control, step) -> this process's encoded rows [m,...] of the n
  problems of a step, for the host path; waits for the state.
  """
  propose = jax.jit(ids_of, static_argnums=(0, 1))

  def rows(control, step):
    ids = np.asarray(propose(chooser, n, control, root, step))
    mine = ids[sharding.my_rows(mesh, n)]
    rows = [encode(int(i), problems[int(i)]) for i in mine]
    return jax.tree.map(lambda *x: np.stack(x), *rows)

  return rows


def take(prompts: Prompts, ids: jax.Array) -> Prompts:
  """Gives the prompts [n,...] of some ids of a pool."""
  return jax.tree.map(lambda x: sharding.rows(x[ids]), prompts)


def observe(
  chooser: Chooser, control: dict, batch: Batch, chosen: Batch, step: jax.Array
) -> tuple[dict, Metrics]:
  """Notes what a batch told of its problems.

  Args:
    chosen: the batch after its filter: rows without a token left are not used.

  Returns:
    (control after the batch, metrics of what the batch was chosen by).
  """
  stats, valid = control[POOL], batch.reward_valid
  if batch.is_offpolicy is not None:
    valid &= ~batch.is_offpolicy.any(axis=1)  # reference solutions
  metrics = chooser.metrics(stats, batch.prompt_id, step)
  rows = dict(
    ids=batch.prompt_id,
    reward=batch.reward,
    solved=batch.reward_parts[:, 0] > 0.5,
    valid=valid,
    length=batch.mask.sum(axis=1),
    answer_id=batch.answer_id,
    used=chosen.mask.any(axis=1),
  )
  # One order on every mesh: sums over rows are then the same, bit by bit.
  rows = {k: _everywhere(x) for k, x in rows.items()}
  stats = chooser.observe(stats, **rows, step=step)
  return control | {POOL: stats}, metrics


def _everywhere(x: jax.Array) -> jax.Array:
  """Rows [N] as every device has them, inside a mesh."""
  if not sharding.in_mesh():
    return x
  return jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec())


def observer(chooser: Chooser | None) -> Callable | None:
  """`observe` of a chooser; None: there is none."""
  return chooser and functools.partial(observe, chooser)


def start(chooser: Chooser, known: Facts, total: jax.Array) -> dict:
  """What is known as a stage begins, at step `total` of the run."""
  return {POOL: chooser.start(known.source, known.difficulty, total)}


class Nothing:
  """The state of data of which nothing is drawn: what is asked follows from
  the state and the step.
  """

  def get_state(self) -> dict[str, int]:
    return {'next_index': 0}

  def set_state(self, state: dict[str, int]) -> None:
    del state
