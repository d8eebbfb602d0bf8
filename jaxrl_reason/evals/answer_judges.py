"""The judge whose probabilities weight votes.

  evaluate --judge=WORKDIR[@step]     a run with a stage of kind reward_model,
                                      or trained with rl.loss.sft_on=verdict
  evaluate --judge=FOLDER             another model, as in `loading`

Its probability that a completion is correct is the sigmoid of the reward of a
reward model; the lowest probability of a step, if that was trained on labels
of steps; or p(yes) / (p(yes) + p(no)) after the question of `rl.verdict`. Votes
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
from jaxrl_reason.config.rl_sections import VerdictText
from jaxrl_reason.data import step_labels
from jaxrl_reason.evals import loading
from jaxrl_reason.losses.imitation import VERDICT
from jaxrl_reason.models import transformer, weights
from jaxrl_reason.rollouts import own_verdicts
from jaxrl_reason.update import critics

HEAD = f'{other_run.CRITIC}{critics.HEAD}'  # in the record of a checkpoint
BODY = f'{other_run.CRITIC}body/'


@dataclasses.dataclass(frozen=True)
class Judge:
  """A judge that has been loaded.

  Attributes:
    name: full name of its model; params: its weights; tokenizer: its own.
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


def judge_name(name: str) -> str:
  """Returns the full name of a judge.

  Raises:
    ValueError: there is no such model, or its run has trained no judge.
  """
  folder, step = loading.split_step(name)
  if other_run.is_run(folder) and other_run.newest_with(folder, HEAD, step):
    return full_name(name)
  try:
    found = loading.full_name(name)
  except ValueError as e:
    raise ValueError(f'--judge={name!r}: {e}') from e
  run = loading.run_of(found)
  if run is not None and run.rl.loss.get('sft_on') != VERDICT:
    raise ValueError(
      f'--judge={name!r} has no checkpoint with a reward model, and was not '
      f'trained with rl.loss.sft_on={VERDICT!r}: name another run, or a folder '
      'of weights'
    )
  return found


def load(name: str, policy: loading.Loaded, mesh: jax.sharding.Mesh) -> Judge:
  """Loads a judge in the dtype of the policy.

  Args:
    name: see `judge_name`; policy: the evaluated model, whose weights are
      shared if it is the judge.

  Raises:
    ValueError: there is no such judge.
  """
  name, dtype = judge_name(name), policy.shape.dtype
  folder, step = loading.split_step(name)
  if step is not None and other_run.newest_with(folder, HEAD, step):
    return _reward_model(name, dtype, mesh)
  found = policy
  if name != policy.name:
    found = loading.load(name, dtype=dtype, mesh=mesh)
  return Judge(name, found.params, found.tokenizer, _verdict(found))


def _verdict(judge: loading.Loaded) -> Callable:
  """Returns the function `Judge.of` of a model that is asked a question.

  Raises:
    ValueError: names the key of a text that the tokenizer cannot encode, or of
      a verdict that is not one token.
  """
  run = judge.run and judge.run.rl.get('verdict')
  texts = VerdictText().to_dict() | (run.to_dict() if run else {})
  asks = own_verdicts.made(texts, judge.model, judge.tokenizer, of=judge.name)

  def of(params, rows, room):
    del room
    return asks.probability(params, rows)

  return of


def _reward_model(name: str, dtype: str, mesh: jax.sharding.Mesh) -> Judge:
  """Loads the reward model of WORKDIR@step."""
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
