"""Builds the TrainState of a stage: shapes, shardings and first weights."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import TrainState
from jaxrl_reason.checkpoints import other_run, pretrained
from jaxrl_reason.models import spec
from jaxrl_reason.models.adapters import frozen
from jaxrl_reason.run.prepare import Prepared
from jaxrl_reason.run.rl import teachers
from jaxrl_reason.update import critics
from jaxrl_reason.update import learner as learner_lib


class Layout:
  """The shapes and shardings of a stage's state.

  Attributes:
    template: the state's shapes.
    shardings: the sharding of each of its arrays.
  """

  def __init__(
    self,
    learner: learner_lib.Learner,
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


def _unchanged(tree):
  return tree


def init_params(parts: Prepared, workdir) -> Any:
  """Loads or initializes a run's first weights, with their shardings: from
  another run, from its model's folder (adapters are then from the seed), or
  from the seed.
  """
  config, specs, loaded = parts.config, parts.model.specs, {}
  where = sharding.shardings(specs, parts.mesh, sharding.TRAIN_RULES)
  off = parts.model.adapters_off or _unchanged
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
