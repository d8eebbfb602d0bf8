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
from jaxrl_reason.data import pipeline, preference_pairs, step_labels
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
) -> tuple[Any, Callable[[int, dict], dict]]:
  """Returns the examples of a supervised stage, or its pairs, and the function
  from (index, example) to their rows.
  """
  problems, tokenizer = parts.problems, parts.tokenizer
  if isinstance(c, Preference | RewardModel):
    pairs = problems.pairs[c.labels or c.pairs]
    if c.labels:
      return pairs, step_labels.encoder(c, d, tokenizer)
    return pairs, preference_pairs.encoder(c, d, pairs, tokenizer)

  def encode(i, example):
    lens = d.prompt_len, d.completion_len
    row = pipeline.solution_row(i, example, tokenizer, *lens)
    if not c.weights:
      return row
    return row | pipeline.weight_row(i, example, c.weights, row['valid'], lens)

  found = problems.supervised or problems.train
  if c.weights:
    encode(0, found[0])  # refused before anything is compiled
  return found, encode


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
