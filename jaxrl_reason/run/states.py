"""Builds the TrainState of a stage: shapes, shardings, first weights, and the
memory of the rl stage (`TrainState.control`): that of the chain's parts, and
that of refill, replay and the queue of batches.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Prompts, Reward, TrainState, Trajectories
from jaxrl_reason.checkpoints import other_run, pretrained
from jaxrl_reason.config import RL
from jaxrl_reason.data import informed_prompts
from jaxrl_reason.logits import Sampling
from jaxrl_reason.losses.imitation import REFERENCE
from jaxrl_reason.models import spec
from jaxrl_reason.models.adapters import frozen
from jaxrl_reason.rewards.kernels import reference
from jaxrl_reason.rollouts import archive, fused, group_arrays, in_flight
from jaxrl_reason.rollouts.fused import Generation
from jaxrl_reason.rollouts.views import ANSWER_VIEWS
from jaxrl_reason.run.prepare import Prepared
from jaxrl_reason.run.process import chips
from jaxrl_reason.run.rl import sources, teachers
from jaxrl_reason.update import critics
from jaxrl_reason.update import learner as learner_lib
from jaxrl_reason.update.learner import Learner


class Layout:
  """The shapes and shardings of a stage's state.

  Attributes:
    template: the state's shapes.
    shardings: the sharding of each of its arrays.
  """

  def __init__(
    self,
    learner: Learner,
    mesh: jax.sharding.Mesh,
    control: Callable[[jax.Array], dict | None],
  ):
    """Args: control: (steps of the run so far) -> the stage's memory before its
    first step.
    """

    def init_state(params, total):
      state = learner_lib.init_state(learner, params, control(total))
      return state.replace(step=total)

    specs = learner.model.specs
    params, zero = spec.abstract(specs), jnp.int32(0)
    template = jax.eval_shape(init_state, params, zero)
    where = sharding.state_shardings(
      template,
      sharding.shardings(specs, mesh, sharding.TRAIN_RULES),
      mesh,
      learner.offload,
    )
    self._make = jax.jit(init_state, out_shardings=where, donate_argnums=0)
    teacher = learner.teacher_specs
    if teacher is not None:
      host = 'teacher_params' in learner.offload
      template = template.replace(teacher_params=spec.abstract(teacher))
      where = where.replace(teacher_params=_frozen(teacher, mesh, host))
    reward = learner.reward_model
    if reward is not None:
      shapes, laid = _of_critic(reward, mesh)
      template = template.replace(reward_params=shapes)
      where = where.replace(reward_params=laid)
    self.template, self.shardings = template, where

  def begin(
    self, params, total: int, teacher: Any = None, reward: Any = None
  ) -> TrainState:
    """Builds a stage's first state: given parameters, a new optimizer.

    Args:
      params: donated, as a step donates its state, so that they are not copied.
      total: steps of the run before this stage.
      teacher: the weights of a teacher that is another model, or None.
      reward: the weights of a reward model, or None.
    """
    state = self._make(params, jnp.int32(total))
    return state.replace(teacher_params=teacher, reward_params=reward)


def _of_critic(critic: critics.Critic, mesh: jax.sharding.Mesh):
  """Returns the shapes of a critic's weights and their shardings."""
  specs = critic.model.specs
  first = functools.partial(critics.first_params, critic)
  shapes = jax.eval_shape(first, spec.abstract(specs))
  laid = sharding.shardings(specs, mesh, sharding.TRAIN_RULES)
  return shapes, sharding.state_shardings(shapes, laid, mesh)


def _frozen(specs: Any, mesh: jax.sharding.Mesh, host: bool) -> Any:
  """Returns the shardings of weights that are only read."""
  where = sharding.shardings(specs, mesh, sharding.TRAIN_RULES)
  if not host:
    return where
  return jax.tree.map(lambda s: s.with_memory_kind('pinned_host'), where)


def init_params(parts: Prepared, workdir) -> Any:
  """Loads or initializes a run's first weights, with their shardings: from
  another run, from its model's folder (adapters are then from the seed), or
  from the seed.
  """
  config, specs, loaded = parts.config, parts.model.specs, {}
  where = sharding.shardings(specs, parts.mesh, sharding.TRAIN_RULES)
  off = parts.model.adapters_off or trees.identity
  if config.init_from:
    loaded = other_run.read(config.init_from, specs, off(specs), where)
    teachers.refuse_other_tokens(config.init_from, parts.tokenizer, 'init_from')
  elif config.model_dir:
    loaded = pretrained.load(workdir, parts.shape, off(specs), off(where))

  if loaded.keys() == specs.keys():
    return loaded

  def rest(tree):
    return {k: v for k, v in tree.items() if k not in loaded}

  def init_params(key):
    return frozen.init(rest(specs), key)

  make = jax.jit(init_params, out_shardings=rest(where))
  return loaded | make(trees.named_key(parts.root, 'init'))


def first_control(
  c: RL,
  prompt_columns: int,
  learn: Learner,
  gen: Generation,
  mesh: jax.sharding.Mesh,
  flight: Callable | None = None,
) -> Callable[[jax.Array], dict | None]:
  """Returns a function from the steps of the run so far to the memory of the
  rl stage before its first step.

  Args:
    flight: makes the memory of groups in flight.

  Raises:
    ValueError: a replay, a queue of batches or an archive does not fit the
      device's memory.
  """
  kinds, like = sources.kinds_of_rounds(c), None
  if c.refill_keep or c.replay.rows or c.delay:
    like = group_shapes(c, prompt_columns, learn, gen)

  def make(total: jax.Array) -> dict | None:
    control = learn.chain.init(total)
    for kind in kinds:
      if like is not None and (memory := kind.memory(like)) is not None:
        control[kind.name] = memory
    if flight is not None:
      control[in_flight.NAME] = flight()
    return control or None

  if memories := jax.eval_shape(make, jnp.int32(0)):
    _check_room(c, memories, mesh)
  return make


def _check_room(c: RL, memories: dict, mesh: jax.sharding.Mesh) -> None:
  """Refuses memories that do not fit the device's memory."""
  for kind, n, name in (
    (
      'replay',
      c.replay.capacity,
      f'rl.replay.capacity={c.replay.capacity} groups',
    ),
    ('delay', c.delay * c.prompts, f'rl.staleness={c.staleness} batches'),
    (
      in_flight.NAME,
      c.prompts // c.in_flight.pieces,
      f'rl.in_flight.batches={c.in_flight.batches} batches',
    ),
  ):
    if kind in memories:
      shards = sharding.row_shards(mesh)
      shards = 1 if n % shards else shards
      size = trees.n_bytes(memories[kind]) // shards
      _refuse_too_large(name, size, mesh)
  if archive.CONTROL in memories:
    kept = memories[archive.CONTROL]
    n = kept['length'].shape[0]
    name = f'rl.archive={c.archive} solutions of {n} problems'
    _refuse_too_large(name, trees.n_bytes(kept), mesh)


def group_shapes(
  c: RL, prompt_columns: int, learn: Learner, gen: Generation
) -> Trajectories:
  """Returns the shapes of a step's groups [B,...], by the configuration."""
  b, n = c.prompts, c.prompts * c.samples
  sizes = len(c.rewards), c.teacher.detail_len

  def make(params, key):
    tokens = jnp.zeros((b, prompt_columns), jnp.int32)
    ids = jnp.zeros(b, jnp.int32)
    asked = Prompts(tokens, tokens > 0, ids, {})
    if c.hints.learn:
      asked = asked.replace(forced=tokens > 0)
    if c.second_try or c.demos_prompt:
      asked = asked.replace(train_tokens=tokens, train_valid=tokens > 0)
    if c.hints.room or c.demos_prompt:
      asked = asked.replace(is_hinted=ids > 0)
    if 'pass_rate' in learn.needs:
      asked = asked.replace(pass_rate=jnp.zeros(b))
    if c.teacher.prompt:
      own = jnp.zeros((b, c.teacher.prompt_len), jnp.int32)
      depends = informed_prompts.fields(c.teacher.prompt)
      valid = own.astype(jnp.int8) if depends else own > 0
      asked = asked.replace(teacher_tokens=own, teacher_valid=valid)
    if gen.demos:
      demo = jnp.zeros((b, gen.max_new), jnp.int32)
      asked = asked.replace(demo=demo, demo_length=ids)
    stop = jnp.zeros(1, jnp.int32)
    out = fused.complete(
      gen, params, asked, key, jnp.int32(0), Sampling.fixed(), stop
    )
    if c.demos and not gen.demos:
      out = out.replace(is_demo=out.truncated)
    if learn.objective.likelihood_on(REFERENCE):
      answers = jnp.zeros((n, reference.columns(gen.max_new)), jnp.int32)
      out = out.replace(views=dict(zip(ANSWER_VIEWS, (answers, answers > 0))))
    return group_arrays.of(
      Trajectories(
        asked,
        out,
        no_reward(n, *sizes),
        no_reward(b, *sizes) if 'greedy_reward' in learn.needs else None,
      )
    )

  params = spec.abstract(learn.model.specs)
  return jax.eval_shape(make, params, jax.eval_shape(lambda: jax.random.key(0)))


def no_reward(n: int, parts: int, detail_len: int) -> Reward:
  """Returns rewards of 0 for n rows, with the shapes of a run.

  Args:
    detail_len: M, tokens of a message of the verifier; 0: there are none.
  """
  ids = jnp.zeros(n, jnp.int32)
  detail = jnp.zeros((n, detail_len), jnp.int32) if detail_len else None
  own = jnp.zeros(n), jnp.zeros((n, parts)), ids > 0, ids
  return Reward(*own, detail)


def _refuse_too_large(name: str, size: int, mesh: jax.sharding.Mesh) -> None:
  """Refuses arrays of `size` bytes that exceed a device's memory."""
  room = chips.memory(mesh.devices.flat[0])
  if room is not None and size >= room:
    raise ValueError(
      f'{name} take {size / 2**30:.1f} GiB of '
      f'each device, which has {room / 2**30:.1f} GiB: lower it'
    )
