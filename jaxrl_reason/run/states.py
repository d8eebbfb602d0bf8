"""A stage's TrainState: where its arrays live, and where they come from."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Model, TrainState
from jaxrl_reason.checkpoints import other_run, pretrained
from jaxrl_reason.models import spec, transformer
from jaxrl_reason.models.adapters import frozen
from jaxrl_reason.update import learner as learner_lib


class Layout:
  """The shapes and shardings of a stage's state.

  Attributes:
    template: the state's shapes.
    shardings: where each of its arrays lives.
  """

  def __init__(
    self,
    learner: learner_lib.Learner,
    mesh: jax.sharding.Mesh,
    control: Callable[[jax.Array], dict | None],
  ):
    """Args: control: makes what sources and rewards remember, as a stage
    begins after so many steps of the run.
    """

    def init_state(params, total):
      state = learner_lib.init_state(learner, params, control(total))
      return state.replace(step=total)

    specs = learner.model.specs
    params, zero = spec.abstract(specs), jnp.int32(0)
    self._make = init_state
    self.template = jax.eval_shape(init_state, params, zero)
    self.shardings = sharding.state_shardings(
      self.template,
      sharding.shardings(specs, mesh, sharding.TRAIN_RULES),
      mesh,
      learner.offload,
    )

  def begin(self, params, total: int) -> TrainState:
    """Makes a stage's first state: given parameters, a new optimizer.

    Args:
      params: donated, as a step donates its state: memory is touched once.
      total: steps of the run before this stage.
    """
    make = jax.jit(self._make, out_shardings=self.shardings, donate_argnums=0)
    return make(params, jnp.int32(total))


def _whole(tree):
  return tree


def init_params(
  config: ml_collections.ConfigDict,
  model: Model,
  shape: transformer.Config,
  mesh: jax.sharding.Mesh,
  root: jax.Array,
  workdir,
) -> Any:
  """Makes a run's first weights where they live: those of another run, of its
  model's folder (adapters are then from the seed), or from the seed.
  """
  specs, loaded = model.specs, {}
  where = sharding.shardings(specs, mesh, sharding.TRAIN_RULES)
  off = model.adapters_off or _whole
  if config.init_from:
    loaded = other_run.read(config.init_from, specs, off(specs), where)
  elif config.model_dir:
    loaded = pretrained.load(workdir, shape, off(specs), off(where))

  if loaded.keys() == specs.keys():
    return loaded

  def rest(tree):
    return {k: v for k, v in tree.items() if k not in loaded}

  def init_params(key):
    return frozen.init(rest(specs), key)

  make = jax.jit(init_params, out_shardings=rest(where))
  return loaded | make(trees.named_key(root, 'init'))
