"""The judge whose probabilities weight votes and guide a search.

  evaluate --judge=WORKDIR[@step]     a run with a stage of kind reward_model,
                                      with a value head (PPO), or trained with
                                      rl.loss.sft_on=verdict
  evaluate --judge=FOLDER             another model, as in `loading`

Its probability that a completion is correct is the sigmoid of the reward of a
reward model; the lowest probability of a step, if that was trained on labels
of steps; the value of a row, limited to 0 to 1, for rewards of 0 and 1; or
p(yes) / (p(yes) + p(no)) after the question of `rl.verdict`. Votes
weighted by a verifier: https://arxiv.org/abs/2505.04842.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
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
VALUE_HEAD = f'{other_run.CRITIC}{critics.VALUE_HEAD}'
BODY = f'{other_run.CRITIC}body/'


@dataclasses.dataclass(frozen=True)
class Judge:
  """A judge that has been loaded.

  Attributes:
    name: full name of its model; params: its weights; tokenizer: its own.
    of: (params, rows, C) -> f32 [N], probabilities that completions, the last C
      columns, are correct.
    of_beginnings: whether it was also trained on beginnings of completions, and
      returns the probability that a completion of them is correct.
  """

  name: str
  params: Any
  tokenizer: Any
  of: Callable[[Any, Rows, int], jax.Array]
  of_beginnings: bool = False


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
  for head in (HEAD, VALUE_HEAD) if other_run.is_run(folder) else ():
    newest = other_run.newest_with(folder, head, step)
    if newest is not None:
      return f'{folder}@{newest}'
  try:
    found = loading.full_name(name)
  except ValueError as e:
    raise ValueError(f'--judge={name!r}: {e}') from e
  run = loading.run_of(found)
  if run is not None and section(found, 'rl').loss.get('sft_on') != VERDICT:
    raise ValueError(
      f'--judge={name!r} has no checkpoint with a reward model or a value '
      f'head, and was not trained with rl.loss.sft_on={VERDICT!r}: name '
      'another run, or a folder of weights'
    )
  return found


def section(name: str, kind: str) -> ml_collections.ConfigDict:
  """Returns the section of a run's newest stage of a kind, with the changes of
  a named stage.

  Args:
    name: WORKDIR@step; of other names, such as steered runs, the section is
      that of the whole run. kind: of the stage, and name of the section.
  """
  run, (folder, step) = loading.run_of(name), loading.split_step(name)
  found = run[kind].copy_and_resolve_references()
  stages = () if step is None else other_run.stages_until(folder, step)
  for stage in reversed(stages):
    own = run.named.get(stage, {'kind': stage})
    if own['kind'] == kind:
      changes = own.get(kind, {})
      with found.unlocked():
        found.update(changes)
      break
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
  for head in (HEAD, VALUE_HEAD) if step is not None else ():
    if other_run.newest_with(folder, head, step) is not None:
      return _critic(name, head, dtype, mesh)
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
  own = judge.run and section(judge.name, 'rl').get('verdict')
  texts = VerdictText().to_dict() | (own.to_dict() if own else {})
  asks = own_verdicts.made(texts, judge.model, judge.tokenizer, of=judge.name)

  def of(params, rows, room):
    del room
    return asks.probability(params, rows)

  return of


def _critic(name: str, head: str, dtype: str, mesh: jax.sharding.Mesh) -> Judge:
  """Loads the reward model or the critic of WORKDIR@step.

  Args:
    head: path of its head, HEAD or VALUE_HEAD.
  """
  text, step = loading.split_step(name)
  folder = epath.Path(text)
  found = other_run.Weights(folder, step, over=BODY)
  vocab = found.shapes['embed'].shape[0]
  shape, _ = conversion.config_of_run(folder, vocab)
  shape = dataclasses.replace(shape, dtype=dtype)
  body = conversion.read_weights(found, folder, weights.specs(shape), mesh)
  body = conversion.cast(body, dtype)
  vector = found.read_arrays({head: sharding.replicated(mesh)})[head]
  params = {'body': body, head.removeprefix(other_run.CRITIC): vector}
  tokenizer = loading.tokenizer_of(folder, is_run=True)
  output = critics.REWARD_MODEL if head == HEAD else critics.VALUES
  model = transformer.build(shape)
  critic = critics.Critic(output, model, None, None, start=0)
  if head == VALUE_HEAD:
    of, whole = _value(critic, tokenizer), False
  else:
    c = section(name, 'reward_model')
    of, whole = _probability(critic, c, tokenizer), not c.get('labels')
  return Judge(name, params, tokenizer, of, not whole)


def _value(critic: critics.Critic, tokenizer: Any) -> Callable:
  """Returns the function `Judge.of` of a critic with values."""
  stop = np.int32(tokenizer.eos_ids)

  def of(params, rows, room):
    del room
    values = critics.state_values(critic, stop, params, params, rows)
    return jnp.clip(values, 0, 1)

  return of


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
