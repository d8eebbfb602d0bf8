"""What stands around the source of a run: refill and replay, by its
configuration, what they remember (`TrainState.control`), and its batches.
"""

import zlib
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Prompts, Reward, Trajectories
from jaxrl_reason.data import pipeline
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import spec
from jaxrl_reason.rollouts import (
  extra,
  filters,
  fused,
  groups,
  hints,
  progress,
  refill,
  replay,
)
from jaxrl_reason.rollouts.fused import Generation
from jaxrl_reason.rollouts.host import Questions
from jaxrl_reason.run import chips, goodput, rewarding
from jaxrl_reason.update.learner import Learner


def batches(
  config, source, encode, rows: int, k: int, name: str, mesh, spares: int = 0
) -> goodput.Timed:
  """Dispatches of k steps of `rows` rows each.

  Args:
    spares: further rows that each row comes with, [k*rows,1+spares,...].
  """
  mine = sharding.my_rows(mesh, rows)
  mine = np.concatenate([i * rows + mine for i in range(k)])

  def drawn(name: str, n: int, mine):
    # No two stages see the same order.
    seed = zlib.crc32(f'{name}/{config.seed}'.encode())
    return pipeline.batches(source, encode, n, seed=seed, mine=mine)

  first = drawn(name, k * rows, mine)
  if not spares:
    return goodput.Timed(first)
  columns = (mine[:, None] * spares + np.arange(spares)).reshape(-1)
  others = drawn(f'{name}/spares', k * rows * spares, columns)
  return goodput.Timed(pipeline.WithSpares(first, others, spares))


def check(config: ml_collections.ConfigDict, problems: Problems) -> None:
  """Refuses a replay that the problems give nothing to choose from.

  Raises:
    ValueError: names the key.
  """
  c, endless = config.rl.replay, len(problems.train) >= pipeline.ENDLESS
  if 'rl' in config.stages and c.rows and c.by == 'failing' and endless:
    raise ValueError(
      "rl.replay.by='failing' replays problems that are asked again, and those "
      f'of data.name={config.data.name!r} never come twice; use another'
    )


def is_plain(c: ml_collections.ConfigDict) -> bool:
  """Whether a step has one round, and learns from that alone."""
  return not (c.refill_rounds or c.replay.rows)


def refilled(c: ml_collections.ConfigDict, source=None) -> refill.Refill:
  """Puts the rounds that the rl section asks for around a source."""
  keeps = filters.make(c.filter, c.filter_args)
  return refill.Refill(source, keeps, c.refill_rounds, c.refill_keep)


def replayed(c: ml_collections.ConfigDict, source=None) -> replay.Replay | None:
  """Puts the replay that the rl section asks for around a source, if any."""
  if not c.replay.rows:
    return None
  keeps = filters.make(c.filter, c.filter_args)
  again = c.replay.rows // c.samples
  return replay.Replay(source, keeps, again, c.replay.by)


def around(c: ml_collections.ConfigDict, source) -> Callable:
  """Puts all that the rl section asks for around the source in the graph."""
  h = c.hints
  if h.room:
    share = h.by, tuple(h.at), tuple(h.share)
    source = hints.Hints(source, h.room, h.when, *share)
  if c.extra.groups:
    return extra.Extra(source, c.extra.groups, c.extra.by)
  if c.refill_rounds:
    source = refilled(c, source)
  return replayed(c, source) or source


def remembered(
  config: ml_collections.ConfigDict,
  learn: Learner,
  gen: Generation,
  mesh: jax.sharding.Mesh,
) -> Callable[[], dict | None]:
  """Gives a function that makes what the rl stage remembers, as it starts.

  Raises:
    ValueError: a replay that does not fit the device's memory.
  """
  c, like = config.rl, None
  if c.refill_keep or c.replay.rows:
    like = group_shapes(config, learn, gen)

  def make() -> dict | None:
    goes_by = rewarding.is_scheduled(c.rewards) or c.hints.room
    control = progress.start() if goes_by else {}
    if c.refill_keep:
      control['refill'] = refill.start(like)
    if c.replay.rows:
      control['replay'] = replay.start(like, c.replay.capacity)
    return control or None

  if c.replay.rows:
    kept = jax.eval_shape(make)['replay']
    _refuse_too_large(kept, c.replay.capacity, mesh)
  return make


def group_shapes(config, learn: Learner, gen: Generation) -> Trajectories:
  """The shapes of a step's groups, from the configuration alone."""
  c = config.rl
  b, n, r = c.prompts, c.prompts * c.samples, len(c.rewards)

  def make(params, key):
    tokens = jnp.zeros((b, config_lib.prompt_room(config)), jnp.int32)
    ids = jnp.zeros(b, jnp.int32)
    asked = Prompts(tokens, tokens > 0, ids, {})
    if c.hints.room and c.hints.when == 'failed':
      asked = asked.replace(train_tokens=tokens, train_valid=tokens > 0)
    if gen.demos:
      demo = jnp.zeros((b, gen.max_new), jnp.int32)
      asked = asked.replace(demo=demo, demo_length=ids)
    stop = jnp.zeros(1, jnp.int32)
    out = fused.complete(
      gen, params, asked, key, jnp.int32(0), Sampling.make(), stop
    )
    return groups.of(
      Trajectories(
        asked,
        out,
        _no_reward(n, r),
        _no_reward(b, r) if 'greedy_reward' in learn.needs else None,
      )
    )

  params = spec.abstract(learn.model.specs)
  return jax.eval_shape(make, params, jax.eval_shape(lambda: jax.random.key(0)))


def _no_reward(n: int, parts: int) -> Reward:
  return Reward(jnp.zeros(n), jnp.zeros((n, parts)), jnp.zeros(n, bool))


def _refuse_too_large(kept, capacity: int, mesh: jax.sharding.Mesh) -> None:
  """Refuses a ring that leaves a device no memory."""
  shards = sharding.row_shards(mesh)
  size = trees.n_bytes(kept) // (1 if capacity % shards else shards)
  room = chips.memory(mesh.devices.flat[0])
  if room is not None and size >= room:
    raise ValueError(
      f'rl.replay.capacity={capacity} groups take {size / 2**30:.1f} GiB of '
      f'each device, which has {room / 2**30:.1f} GiB: lower it'
    )


def questions(data, mesh, spares: int) -> Iterator[list[Questions]]:
  """The rows of `data` on the mesh, with the problems they are of: those of a
  step, by round.
  """
  for rows in data:
    columns = [rows]
    if spares:
      columns = [
        jax.tree.map(lambda x: x[:, i], rows)  # noqa: B023
        for i in range(1 + spares)
      ]
    yield [_asked(column, mesh) for column in columns]


def _asked(rows: dict, mesh) -> Questions:
  examples, ids = rows.pop('example').tolist(), rows['prompt_id']
  return Questions(Prompts(**sharding.to_global(rows, mesh)), ids, examples)
