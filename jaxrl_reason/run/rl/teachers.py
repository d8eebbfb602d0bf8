"""The teacher of the rl stage (`rl.teacher`): its model, weights and tokens.

A teacher is a second model that scores the batch as the reference does
(`update.scoring`). The reference itself may be the teacher; every other teacher
has its own weights in the state, `TrainState.teacher_params`.
"""

import dataclasses
import functools
from typing import Any

import jax
from etils import epath

from jaxrl_reason.base import Model, TrainState
from jaxrl_reason.checkpoints import conversion, hf, other_run, pretrained
from jaxrl_reason.config import Data
from jaxrl_reason.config.rl_sections import Teacher as TeacherSection
from jaxrl_reason.config.run import Model as ModelSection
from jaxrl_reason.data import informed_prompts, lengths
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.evals import loading
from jaxrl_reason.models import adapters, families, transformer, weights, zoo
from jaxrl_reason.models.adapters import frozen, steering
from jaxrl_reason.rollouts import views
from jaxrl_reason.update.learner import SAME, Learner, Teacher, teacher_params

# A size of the zoo instead of a model, because plans read no weights.
ZOO = 'zoo:'
KEY = 'rl.teacher.weights'
NEEDS = frozenset({'teacher_logp', 'teacher_kl'})  # of losses with a teacher
NOTHING = '(?!)'  # matches no path: no weight of a teacher is trained


def of(c: TeacherSection, policy: ModelSection, model: Model) -> Teacher:
  """Builds the teacher of the rl stage.

  Args:
    policy: the `model` section; model: the policy's model.

  Raises:
    ValueError: names the key; the weights' model is unknown.
  """
  if c.weights in SAME:
    return Teacher(model, c.weights)
  shape = runtime_shape(c.weights, policy)
  built = adapters.attach(
    transformer.build(shape), frozen_dtype=c.dtype, trainable=NOTHING
  )
  return Teacher(built, memory=c.memory)


def runtime_shape(
  name: str, policy: ModelSection, key: str = KEY
) -> transformer.Config:
  """Returns the sizes of a model, with the policy's settings of computation."""
  values = policy.to_dict() | {'remat': 'none'}
  runtime = {key: values[key] for key in families.RUNTIME}
  return dataclasses.replace(_shape(name, key), **runtime)


def check(c: TeacherSection, data: Data, problems: Problems, tokenizer) -> None:
  """Refuses a teacher with other tokens than the policy, and problems that its
  prompt has no room for.

  Raises:
    ValueError: names the key and the first token that differs, or the row.
  """
  if c.prompt:
    own = tokenizer, c, data.completion_len

    def encode(i, example):
      return informed_prompts.row(i, example, *own)

    lengths.check_encoded(problems, data, encode)
  if c.weights not in SAME:
    refuse_other_tokens(c.weights, tokenizer)


def refuse_other_tokens(name: str, tokenizer, key: str = KEY) -> None:
  """Refuses a model with other tokens than the policy.

  Args:
    name: of the model; key: of the config, that names it.

  Raises:
    ValueError: names the key and the first token that differs.
  """
  found = loading.tokenizer_of(*source(name, key)[::2])
  ours, theirs = tokenizer.token_bytes(), found.token_bytes()
  if ours == theirs:
    return
  at = next((i for i, pair in enumerate(zip(ours, theirs)) if len({*pair}) > 1),
            min(len(ours), len(theirs)))  # fmt: skip
  words = [repr(x[at]) if at < len(x) else 'none' for x in (theirs, ours)]
  raise ValueError(
    f'{key}={name!r} has another tokenizer: {len(theirs)} tokens '
    f'and the policy {len(ours)}; token {at} is {words[0]} there and '
    f'{words[1]} here. Choose a model with the tokenizer of the policy'
  )


def load(c: TeacherSection, policy: ModelSection, where: Any) -> Any:
  """Loads the weights of a teacher into their shards.

  Args:
    where: shardings of `TrainState.teacher_params`.

  Returns:
    The weights, in the storage of `rl.teacher.dtype`.
  """
  specs, name = of(c, policy, None).model.specs, c.weights
  folder, step, is_run = source(name)
  on_device = jax.tree.map(lambda s: s.with_memory_kind('device'), where)
  if is_run:
    found = other_run.Weights(folder, step)
    params = of_run(found, folder, _shape(name), specs, on_device)
  else:
    params = hf.load(folder, _shape(name), where=on_device, kept=specs)
  return jax.device_put(params, where)


def of_run(
  found: other_run.Weights, folder, shape: transformer.Config, specs, where
) -> Any:
  """Reads the weights of a run, with its adapters merged, in the storage of
  `specs`.

  Args:
    where: shardings of the result.
  """
  mesh = jax.tree.leaves(where)[0].mesh
  plain = weights.specs(shape)

  def stored(params):
    return jax.tree.map(frozen.keep, specs, params, is_leaf=frozen.is_stored)

  return conversion.read_weights(found, folder, plain, mesh, stored, where)


def source(name: str, key: str = KEY) -> tuple[epath.Path, int | None, bool]:
  """Returns (folder, step of a checkpoint or None, whether it is a run).

  Raises:
    ValueError: names the key; there is no such model.
  """
  try:
    folder, step = loading.split_step(loading.full_name(name))
    if step is not None:
      return epath.Path(folder), step, True
    return epath.Path(pretrained.resolve(name)[0]), None, False
  except ValueError as e:
    raise ValueError(f'{key}={name!r}: {e}') from e


@functools.cache
def _shape(name: str, key: str = KEY) -> transformer.Config:
  """Returns the sizes of a model."""
  if name.startswith(ZOO):
    return zoo.ZOO[name.removeprefix(ZOO)]
  folder, step, is_run = source(name, key)
  if not is_run:
    return families.from_hf(hf.read_config(folder))
  shapes = other_run.Weights(folder, step).shapes
  if any(path.startswith(steering.KEY) for path in shapes):
    raise ValueError(
      f'{key}={name!r} was trained with steering vectors: make a '
      'folder of it with jaxrl convert'
    )
  return conversion.config_of_run(folder, shapes['embed'].shape[0])[0]


def read_by_rewards(learner: Learner, state: TrainState) -> dict[str, Any]:
  """Returns the weights that rewards read beside the policy's, by name."""
  out = {}
  if state.reward_params is not None:
    out[views.REWARD] = state.reward_params
  if state.teacher_params is not None:
    out[views.TEACHER] = teacher_params(learner, state)
  return out
