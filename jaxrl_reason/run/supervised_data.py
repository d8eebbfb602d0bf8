"""The rows of supervised stages, and the evaluation of held-out ones."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Metrics
from jaxrl_reason.config import Data
from jaxrl_reason.config.training import Preference, RewardModel, Training
from jaxrl_reason.data import (
  pipeline,
  preference_pairs,
  step_labels,
  teacher_answers,
)
from jaxrl_reason.models import logprobs
from jaxrl_reason.run.prepare import Prepared
from jaxrl_reason.run.rl import programs
from jaxrl_reason.update import critics
from jaxrl_reason.update.learner import Learner

# Metric of an update -> of held-out rows.
OF_PAIRS = {'preferred': 'pairs/preferred', 'preference_margin': 'pairs/margin'}
OF_STEPS = {
  f'steps/{k}': f'steps/{k}' for k in ('accuracy', 'wrong', 'wrong_found')
}


def examples(
  c: Training, d: Data, parts: Prepared
) -> list[tuple[Any, Callable[[int, dict], dict]]]:
  """Returns the examples of a supervised stage, or its pairs, and the function
  from (index, example) to their rows; then the same of held-out ones, if there
  are any.
  """
  problems, tokenizer = parts.problems, parts.tokenizer
  if isinstance(c, Preference | RewardModel):
    pairs = problems.pairs[preference_pairs.name_of(c, d)]
    n = c.heldout
    both = preference_pairs.split(pairs, n) if n else (pairs,)
    if c.labels:
      return [(part, step_labels.encoder(c, d, tokenizer)) for part in both]
    make = preference_pairs.encoder
    return [(part, make(c, d, part, tokenizer)) for part in both]
  if c.teacher:
    answers = problems.pairs[preference_pairs.name_of(c, d)]
    answers = teacher_answers.of_score(answers, c.least_score)
    return [(answers, _taught(c, d, tokenizer))]

  def encode(i, example):
    lens = d.prompt_len, d.completion_len
    row = pipeline.solution_row(i, example, tokenizer, *lens)
    if c.weights:
      row |= pipeline.weight_row(i, example, c.weights, row['valid'], lens)
    if c.behaviour:
      row |= _logp_row(i, example, c.behaviour, row['valid'], lens)
    return row

  found = problems.supervised or problems.train
  if c.weights or c.behaviour:
    encode(0, found[0])  # refused before anything is compiled
  return [(found, encode)]


def _taught(c: Training, d: Data, tokenizer) -> Callable[[int, dict], dict]:
  """Returns a function from (index, record of a teacher) to its row."""
  encode = teacher_answers.encoder(d, tokenizer)

  def of_loss(i, record):
    row = encode(i, record)
    top = logprobs.Top(row.pop('top_ids'), row.pop('top_logp'))
    return row | {'teacher_top': top} if c.loss == 'topk' else row

  return of_loss


def _logp_row(
  index: int, example: dict, field: str, valid: np.ndarray, lens: tuple
) -> dict:
  """Returns the log-probs [T] of a worked solution under its author.

  Args:
    field: of the example's row; valid: [T], of the row; lens: P and C, columns.

  Raises:
    ValueError: names the example without such log-probs.
  """
  given = example.get('meta', {}).get(field)
  n = int(valid[lens[0] :].sum())
  try:
    logp = np.asarray(given, np.float32)
  except (TypeError, ValueError):
    logp = np.full(0, np.nan)
  if logp.shape != (n,) or not np.isfinite(logp).all() or logp.max() > 0:
    raise ValueError(
      f'{example["task"]} example {index}: sft.behaviour={field!r} is '
      f'{given!r:.80}; write one log-probability, at most 0, for each of the '
      f'{n} tokens of the solution with its stop token'
    )
  return {'sampler_logp': np.pad(logp, (lens[0], lens[1] - n))}


def evaluation(
  c: Preference | RewardModel,
  learn: Learner,
  pairs: Sequence,
  encode: Callable[[int, dict], dict],
  parts: Prepared,
) -> Callable[[Any], dict[str, float]]:
  """Returns a function from the state to metrics of held-out pairs, or of
  solutions with labels of steps.

  Args:
    encode: (index, pair) -> its rows [blocks,T].
  """
  mine = sharding.my_rows(parts.mesh, c.rows)
  places = np.arange(len(pairs)).reshape(-1, c.rows)[:, mine]
  batches = [[encode(i, pairs[i]) for i in batch] for batch in places]
  rows = trees.stacked([trees.stacked(batch) for batch in batches])
  rows = sharding.to_global(rows, parts.mesh, axis=1)
  program = jax.jit(metrics, static_argnums=0)

  def evaluate(state):
    found = program(learn, state, rows, parts.root)
    return {f'eval/{k}': float(v) for k, v in found.items()}

  return evaluate


def metrics(learner: Learner, state, rows, key) -> Metrics:
  """Averages the metrics of batches, rows [K,P,blocks,T]: of pairs over pairs,
  and of labels over steps. The compiler removes the update, because nothing
  reads its state.
  """

  def one(row):
    batch = jax.tree.map(lambda x: x[None], row)
    return programs.preference_steps(learner, state, batch, key)[1]

  found = jax.lax.map(one, rows)
  names, n = OF_PAIRS, jnp.ones_like(found['loss'])
  if learner.critic and learner.critic.output == critics.STEPS:
    names, n = OF_STEPS, found['steps/number']
  return {
    new: jnp.sum(found[name] * n / n.sum()) for name, new in names.items()
  }
