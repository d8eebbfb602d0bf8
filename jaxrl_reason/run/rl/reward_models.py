"""The reward model of the rl stage (`rl.reward_model`): its model and weights.

It is a critic that an earlier stage of kind `reward_model` trained, of this run
or of another one, and that the rl stage only reads. Its weights are
`TrainState.reward_params`. A reward model of this run shares the frozen weights
of the policy; one of another run has all weights, with its adapters merged.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath

from jaxrl_reason import trees
from jaxrl_reason.base import Model
from jaxrl_reason.checkpoints import other_run
from jaxrl_reason.config.rl_sections import RewardWeights
from jaxrl_reason.config.run import Model as ModelSection
from jaxrl_reason.config.training import OF_STAGE
from jaxrl_reason.data import step_labels
from jaxrl_reason.evals import answer_judges
from jaxrl_reason.evals.answer_judges import BODY, HEAD
from jaxrl_reason.models import transformer
from jaxrl_reason.run.rl import teachers
from jaxrl_reason.update import critics

KEY = 'rl.reward_model.weights'


def of(
  name: str, policy: ModelSection, model: Model, trainable: str
) -> critics.Critic:
  """Builds the reward model of the rl stage.

  Args:
    name: `rl.reward_model.weights`.
    policy: the `model` section; model: the policy's model; trainable: regex
      over its trained weights.

  Raises:
    ValueError: names the key; there is no such reward model.
  """
  if not name.startswith(OF_STAGE):
    shape = teachers.runtime_shape(_with_step(name), policy, KEY)
    model, trainable = transformer.build(shape), '.*'
  return critics.Critic(
    critics.REWARD_MODEL, model, None, None, start=0, trainable=trainable
  )


def scorer(
  critic: critics.Critic, c: RewardWeights, completion_len: int, tokenizer
) -> Callable[..., jax.Array]:
  """Returns a function of (weights of the reward model, policy's weights, rows)
  to rewards [N].

  Raises:
    ValueError: the separator is not one token.
  """
  if not c.steps:
    return functools.partial(critics.evaluate, critic)
  key = 'rl.reward_model.separator'
  ends = np.int32(step_labels.separator_ids(c.separator, tokenizer, key))
  return functools.partial(
    critics.over_steps, critic, c.steps, ends, completion_len
  )


def check(name: str, tokenizer) -> None:
  """Refuses a reward model with other tokens than the policy.

  Raises:
    ValueError: names the key and the first token that differs.
  """
  if not name.startswith(OF_STAGE):
    teachers.refuse_other_tokens(_with_step(name), tokenizer, KEY)


def load(
  name: str,
  policy: ModelSection,
  where: Any,
  end_of: Callable[[str], tuple[epath.Path, int]] | None = None,
) -> Any:
  """Loads the weights of a reward model into their shards.

  Args:
    where: shardings of `TrainState.reward_params`.
    end_of: returns the workdir and the last checkpoint of an earlier stage.
  """
  if name.startswith(OF_STAGE):
    return _of_stage(*end_of(name.removeprefix(OF_STAGE)), where)
  name = _with_step(name)
  shape = teachers.runtime_shape(name, policy, KEY)
  specs = transformer.build(shape).specs
  folder, step, _ = teachers.source(name, KEY)
  found = other_run.Weights(folder, step, over=BODY)
  body = teachers.of_run(found, folder, shape, specs, where['body'])
  head = found.read_arrays({HEAD: where[critics.HEAD]})[HEAD]
  return {'body': body, critics.HEAD: head}


def _of_stage(workdir: epath.Path, step: int, where: Any) -> Any:
  """Reads the trained weights of a critic of this run."""
  found, paths = other_run.Weights(workdir, step), trees.flatten(where)
  at = {path: other_run.CRITIC + path for path in paths}
  arrays = found.read_arrays({at[path]: x for path, x in paths.items()})
  leaves = [arrays[at[path]] for path in paths]
  return jax.tree.unflatten(jax.tree.structure(where), leaves)


def _with_step(name: str) -> str:
  """Returns WORKDIR@step of the newest checkpoint with a reward model."""
  stage = 'a stage of kind reward_model that is before this one, or '
  return answer_judges.full_name(name, KEY, stage)
