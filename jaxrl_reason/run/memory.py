"""What the rl stage remembers (`TrainState.control`), by its configuration, and
the parts of its updates that read and write it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Prompts, Reward, Trajectories
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import spec
from jaxrl_reason.rollouts import (
  archive,
  fused,
  groups,
  progress,
  refill,
  replay,
  shaping,
)
from jaxrl_reason.rollouts.fused import Generation
from jaxrl_reason.run import asking, chips, heat, rewarding
from jaxrl_reason.update import refresh
from jaxrl_reason.update.learner import Learner

SHAPING = 'shaping'  # of TrainState.control


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
  """Returns the shapes of a step's groups, from the configuration alone."""
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
      gen, params, asked, key, jnp.int32(0), Sampling.fixed(), stop
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
