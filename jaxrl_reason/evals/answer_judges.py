"""The judge whose probabilities weight votes: a reward model of a run.

  evaluate --judge=WORKDIR[@step]     a run with a stage of kind reward_model

Its probability that a completion is correct is the sigmoid of its reward, or,
if it was trained on labels of steps, the lowest probability of a step. Votes
weighted by a verifier: https://arxiv.org/abs/2505.04842.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath

from jaxrl_reason import sharding
from jaxrl_reason.base import Rows
from jaxrl_reason.checkpoints import conversion, other_run
from jaxrl_reason.data import step_labels
from jaxrl_reason.evals import loading
from jaxrl_reason.models import transformer, weights
from jaxrl_reason.update import critics

HEAD = f'{other_run.CRITIC}{critics.HEAD}'  # in the record of a checkpoint
BODY = f'{other_run.CRITIC}body/'


@dataclasses.dataclass(frozen=True)
class Judge:
  """A reward model that has been loaded.

  Attributes:
    name: WORKDIR@step; params: its weights; tokenizer: of its run.
    of: (params, rows, C) -> f32 [N], probabilities that completions, the last C
      columns, are correct.
  """

  name: str
  params: Any
  tokenizer: Any
  of: Callable[[Any, Rows, int], jax.Array]


def full_name(name: str, key: str = '--judge', other: str = '') -> str:
  """Returns WORKDIR@step of the newest checkpoint with a reward model.

  Args:
    key: flag or key of the config, that names it.
    other: what else it may name, for the error.

  Raises:
    ValueError: names the key; there is no such checkpoint.
  """
  folder, step = loading.split_step(name)
  if not other_run.is_run(folder):
    raise ValueError(
      f'{key}={name!r}: name {other}the workdir of a run with a stage of kind '
      'reward_model, WORKDIR[@step]'
    )
  newest = other_run.newest_with(folder, HEAD, step)
  if newest is None:
    which = 'checkpoint' if step is None else f'checkpoint of step {step}'
    raise ValueError(
      f'{key}={name!r}: {folder} has no {which} with a reward model, as stages '
      'of kind reward_model save them'
    )
  return f'{folder}@{newest}'


def load(name: str, dtype: str, mesh: jax.sharding.Mesh) -> Judge:
  """Loads a judge.

  Args:
    name: see `full_name`; dtype: of weights and computation.

  Raises:
    ValueError: there is no such judge.
  """
  name = full_name(name)
  text, step = loading.split_step(name)
  folder = epath.Path(text)
  found = other_run.Weights(folder, step, over=BODY)
  vocab = found.shapes['embed'].shape[0]
  shape, _ = conversion.config_of_run(folder, vocab)
  shape = dataclasses.replace(shape, dtype=dtype)
  body = conversion.read_weights(found, folder, weights.specs(shape), mesh)
  body = jax.tree.map(lambda x: x.astype(dtype), body)
  head = found.read_arrays({HEAD: sharding.replicated(mesh)})[HEAD]
  params = {'body': body, critics.HEAD: head}
  tokenizer = loading.tokenizer_of(folder, is_run=True)
  critic = critics.Critic(
    critics.REWARD_MODEL, transformer.build(shape), None, None, start=0
  )
  of = _probability(critic, loading.run_of(name).reward_model, tokenizer)
  return Judge(name, params, tokenizer, of)


def _probability(critic: critics.Critic, c: Any, tokenizer: Any) -> Callable:
  """Returns the function `Judge.of` of a reward model.

  Args:
    c: section of the stage that trained it.
  """
  if not c.get('labels'):

    def of_row(params, rows, room):
      del room
      return jax.nn.sigmoid(critics.evaluate(critic, params, params, rows))

    return of_row
  key = 'reward_model.separator'
  ends = np.int32(step_labels.separator_ids(c.separator, tokenizer, key))
  lowest = functools.partial(critics.over_steps, critic, 'min', ends)

  def of_steps(params, rows, room):
    return lowest(room, params, params, rows)

  return of_steps
