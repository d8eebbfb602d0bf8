"""What a stage's problems come from, and what stands around its source: refill
and replay, by its configuration, and what they remember (`TrainState.control`).
"""

import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from jaxrl_reason import config as config_lib
from jaxrl_reason import hosts, sharding, trees
from jaxrl_reason.base import Prompts, Reward, Trajectories
from jaxrl_reason.data import controllers, pipeline
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import spec
from jaxrl_reason.rewards.kernels import likelihood
from jaxrl_reason.rollouts import (
  archive,
  extra,
  filters,
  fused,
  groups,
  hints,
  progress,
  refill,
  replay,
  rescue,
  shaping,
)
from jaxrl_reason.rollouts.fused import Generation
from jaxrl_reason.rollouts.host import HostSource, Questions
from jaxrl_reason.run import asking, chips, goodput, heat, programs, rewarding
from jaxrl_reason.update import refresh
from jaxrl_reason.update.learner import Learner

SHAPING = 'shaping'  # of TrainState.control


def check(config: ml_collections.ConfigDict, problems: Problems) -> None:
  """Refuses a replay that the problems give nothing to choose from.

  Raises:
    ValueError: names the key.
  """
  c, endless = config.rl.replay, len(problems.train) >= pipeline.ENDLESS
  if 'rl' not in config.stages:
    return
  moves = config.data.controller.refresh
  if moves and not any(asking.moving(problems.train)):
    raise ValueError(
      f'data.controller.refresh={moves}: data.name={config.data.name!r} is a '
      'data set, all of which is the pool; set it to 0'
    )
  never = endless and not controllers.is_on(config.data)
  again = {
    'rl.shaping.historical': config.rl.shaping.historical,
    'rl.archive': config.rl.archive,
  }
  for key, value in again.items():
    if value and never:
      raise ValueError(
        f'{key}={value} is kept by problem, and those of data.name='
        f'{config.data.name!r} never come twice: set data.controller.name to '
        'make a pool of them'
      )
  for key, value in {'by': 'failing', 'mix': 'rows'}.items():
    if c.rows and c[key] == value and never:
      raise ValueError(
        f'rl.replay.{key}={value!r} replays problems that are asked again, and '
        f'those of data.name={config.data.name!r} never come twice; use another'
      )


def shaped(config: ml_collections.ConfigDict) -> shaping.Shaping | None:
  """Makes the terms that are added to rewards; None: none is."""
  c = config.rl.shaping.to_dict()
  own = {k: tuple(v) if isinstance(v, list) else v for k, v in c.items()}
  made = shaping.Shaping(config.rl.samples, config.data.completion_len, **own)
  return made if made.is_on else None


def shaper(config: ml_collections.ConfigDict) -> Callable | None:
  """Gives (control, outcomes, chosen batch) -> (control, batch, metrics);
  None: rewards are as they are.
  """
  made = shaped(config)

  def shape(control: dict, seen, chosen):
    chosen, known, told = made(control[SHAPING], seen, chosen)
    return control | {SHAPING: known}, chosen, told

  return made and shape


def refreshed(config: ml_collections.ConfigDict) -> refresh.Refresh | None:
  """Makes what moves the reference policy; None: it stands still."""
  made = refresh.Refresh(**config.rl.reference.to_dict())
  return made if made.is_on else None


def archived(config: ml_collections.ConfigDict) -> archive.Archive | None:
  """Makes what keeps the solutions of problems; None: nothing does."""
  c, columns = config.rl, config_lib.prompt_room(config)
  room = config.data.completion_len
  if not c.archive:
    return None
  return archive.Archive(c.archive, c.samples, columns, room)


def archiver(config: ml_collections.ConfigDict) -> Callable | None:
  """Gives (control, batch) -> (control, metrics); None: nothing is kept."""
  made = archived(config)

  def keep(control: dict, batch):
    known, told = made(control[archive.CONTROL], batch)
    return control | {archive.CONTROL: known}, told

  return made and keep


def is_plain(c: ml_collections.ConfigDict) -> bool:
  """Whether a step has one round, and learns from that alone."""
  again = c.hints.room and c.hints.when == 'failed'
  return not (c.refill_rounds or c.replay.rows or again)


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
  return replay.Replay(source, keeps, again, c.replay.by, c.replay.mix)


def hinted(c: ml_collections.ConfigDict, source=None) -> hints.Hints | None:
  """Puts the hints that the rl section asks for around a source, if any."""
  h = c.hints
  if not h.room:
    return None
  share = h.by, tuple(h.at), tuple(h.share)
  return hints.Hints(source, h.room, h.when, *share, h.learn)


def around(c: ml_collections.ConfigDict, source) -> Callable:
  """Puts all that the rl section asks for around the source in the graph."""
  if c.demos and c.demos_when == 'failed':
    source = rescue.Rescue(source, c.demos)
  source = hinted(c, source) or source
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
  n_problems: int,
  known: asking.Facts | None,
) -> Callable[[jax.Array], dict | None]:
  """Gives a function that makes what the rl stage remembers, as it starts after
  so many steps of the run.

  Args:
    n_problems: of the pool; known: of them; None: shapes alone are read.

  Raises:
    ValueError: a replay that does not fit the device's memory.
  """
  c, like, chooser = config.rl, None, asking.chooser(config)
  if c.refill_keep or c.replay.rows:
    like = group_shapes(config, learn, gen)

  if known is None:
    known = asking.unknown(n_problems)
  shape, moving = shaped(config), refreshed(config)
  solved = archived(config)

  def make(total: jax.Array) -> dict | None:
    goes_by = rewarding.is_scheduled(c.rewards) or c.hints.room
    goes_by = goes_by or c.reference.patience
    control = progress.start() if goes_by else {}
    if c.refill_keep:
      control['refill'] = refill.start(like)
    if c.replay.rows:
      control['replay'] = replay.start(like, c.replay.capacity)
    if chooser is not None:
      control |= asking.start(chooser, known, total)
    if shape is not None:
      control[SHAPING] = shape.start(n_problems)
    if solved is not None:
      control[archive.CONTROL] = solved.start(n_problems)
    if moving is not None:
      control[refresh.CONTROL] = moving.start()
    if c.heat.entropy:
      control[heat.CONTROL] = jnp.float32(c.temperature)
    return control or None

  if c.replay.rows:
    kept = jax.eval_shape(make, jnp.int32(0))['replay']
    n, shards = c.replay.capacity, sharding.row_shards(mesh)
    shards = 1 if n % shards else shards
    what = f'rl.replay.capacity={n} groups'
    _refuse_too_large(what, trees.n_bytes(kept) // shards, mesh)
  if solved is not None:
    kept = jax.eval_shape(make, jnp.int32(0))[archive.CONTROL]
    what = f'rl.archive={c.archive} solutions of {n_problems} problems'
    _refuse_too_large(what, trees.n_bytes(kept), mesh)
  return make


def group_shapes(config, learn: Learner, gen: Generation) -> Trajectories:
  """The shapes of a step's groups, from the configuration alone."""
  c = config.rl
  b, n, r = c.prompts, c.prompts * c.samples, len(c.rewards)

  def make(params, key):
    tokens = jnp.zeros((b, config_lib.prompt_room(config)), jnp.int32)
    ids = jnp.zeros(b, jnp.int32)
    asked = Prompts(tokens, tokens > 0, ids, {})
    if c.hints.learn:
      asked = asked.replace(forced=tokens > 0)
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
  ids = jnp.zeros(n, jnp.int32)
  return Reward(jnp.zeros(n), jnp.zeros((n, parts)), ids > 0, ids)


def _refuse_too_large(what: str, size: int, mesh: jax.sharding.Mesh) -> None:
  """Refuses to keep what leaves a device, with `size` bytes, no memory."""
  room = chips.memory(mesh.devices.flat[0])
  if room is not None and size >= room:
    raise ValueError(
      f'{what} take {size / 2**30:.1f} GiB of '
      f'each device, which has {room / 2**30:.1f} GiB: lower it'
    )


def questions(rows: dict, mesh, spares: int) -> list[Questions]:
  """The rows of a step on the mesh, with the problems they are of, by round."""
  columns = [rows]
  if spares:
    columns = [
      jax.tree.map(lambda x: x[:, i], rows)  # noqa: B023
      for i in range(1 + spares)
    ]
  return [_asked(column, mesh) for column in columns]


def _asked(rows: dict, mesh) -> Questions:
  examples, ids = rows.pop('example').tolist(), rows['prompt_id']
  return Questions(Prompts(**sharding.to_global(rows, mesh)), ids, examples)


def batches(
  config, source, encode, rows: int, k: int, name: str, mesh, spares: int = 0
) -> goodput.Timed:
  """Makes dispatches of k steps of `rows` rows each.

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


def host_source(
  config, learn, made, mesh, questions, pool, tokenizer, root, stop
) -> HostSource:
  """Makes the source whose rewards are Python.

  Args:
    made: how completions are made, and the sampling settings.
  """
  c = config.rl
  gen, sampling = made
  rollout = jax.jit(programs.rl_rollout, static_argnums=0)
  greedy = jax.jit(programs.rl_greedy, static_argnums=0)
  reads_greedy = 'greedy_reward' in learn.needs
  return HostSource(
    questions,
    lambda *args: rollout(gen, *args),
    (lambda *args: greedy(gen, *args)) if reads_greedy else None,
    c.samples,
    tuple(c.rewards),
    pool,
    tokenizer,
    c.parts,
    root,
    sampling,
    stop,
    to_host=lambda x: sharding.to_local(x, mesh),
    all_rows=lambda tree: everyone(mesh, tree),
    draws=_draws(c, mesh) if rewarding.reads_noise(c.rewards) else None,
  )


def _draws(c: ml_collections.ConfigDict, mesh) -> Callable:
  """Gives `HostSource.draws`, the numbers that the compiled step draws too."""

  def draws(root, step, use: str, n_samples: int) -> np.ndarray:
    n = c.prompts * n_samples
    found = likelihood.uniforms(fused.key_of(root, step, use), n)
    return np.asarray(found)[sharding.my_rows(mesh, n)]

  return draws


def everyone(mesh, tree: Any) -> Any:
  """Gives this process's rows [m,...] of a batch as all rows [N,...]."""
  n = sharding.rows_of_all(mesh, len(jax.tree.leaves(tree)[0]))
  return hosts.all_rows(sharding.my_rows(mesh, n), tree)
