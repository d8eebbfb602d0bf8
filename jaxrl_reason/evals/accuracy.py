"""Computes greedy, pass@1, pass@k and maj@k of problems while a run trains.

Sample 0 of every problem is greedy (temperature 0), the others are random. A
bounded number of completions is generated at a time (`sampled_answers`). The
host reward verifies them; each process verifies its own rows.
"""

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence

import jax
import numpy as np
from absl import logging

from jaxrl_reason import sharding
from jaxrl_reason.base import Model
from jaxrl_reason.data import pipeline
from jaxrl_reason.evals import answer_programs, estimators, scores
from jaxrl_reason.evals import sampled_answers as answers
from jaxrl_reason.evals.sampled_answers import EvalSet
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models.chunk_layout import Chunks
from jaxrl_reason.rollouts import turns
from jaxrl_reason.verifiers import tasks

# Most draws, in multiples of the problems that are asked for.
DRAWS = 10


def first_problems(source, n: int) -> list[dict]:
  """Returns the first n different problems of a source, because intervals
  assume that problems are independent.

  There are fewer if the source is shorter, or if DRAWS * n draws have fewer;
  then a warning has their number. Games are never repeats: the prompt of many
  is the same, and the environment deals.
  """
  found, draws = {}, min(DRAWS * n, len(source))
  for i in range(draws):
    example = source[i]
    found.setdefault(_identity(example, i), example)
    if len(found) == n:
      break
    if i % 100_000 == 99_999:
      logging.info('%d draws have %d of %d problems.', i + 1, len(found), n)
  problems = [dict(example) for example in found.values()]
  if len(problems) < min(n, len(source)):
    logging.warning(
      '%s: %d draws have only %d different problems, and %d were asked for. '
      'The evaluation uses these. Harder knobs of the task have more.',
      problems[0]['task'],
      draws,
      len(problems),
      n,
    )
  return problems


def _identity(example: dict, index: int) -> Hashable:
  """Returns a value that is equal for repeats of a problem. Sources of a
  mixture may ask the same problem in other ways.
  """
  name = example['task']
  if name in tasks.GAMES or not tasks.is_known(name):
    return index
  return example.get('source'), name, tasks.get(name).identity(example)


def make_set(
  source,
  n: int,
  tokenizer,
  prompt_len: int,
  encode: Callable | None = None,
  hosted: bool = False,
) -> EvalSet:
  """Returns the first n different problems of a source.

  Args:
    encode: of the environment, if any; hosted: the environment is in Python.

  Raises:
    ValueError: names a problem with more tokens than prompt_len.
  """
  examples = first_problems(source, n)
  ids = [pipeline.prompt_ids(e, tokenizer) for e in examples]
  for i, (example, row) in enumerate(zip(examples, ids)):
    pipeline.pad_prompt(row, prompt_len, f'{example["task"]} example {i}')
  encoded = encode and [encode(example) for example in examples]
  return EvalSet(examples, ids, prompt_len, encoded, hosted)


class Evaluation:
  """Evaluates the greedy and the sampled completions of problems."""

  def __init__(
    self,
    model: Model,
    stop: jax.Array,
    *,
    n_samples: int,
    max_new: int,
    sampling: Sampling,
    rows: int,
    mesh: jax.sharding.Mesh,
    tokenizer,
    grade: Callable,
    key: jax.Array,
    how: turns.Turns | None = None,
    programs: dict[int, Callable] | None = None,
    player: Callable | None = None,
    chunks: Chunks | None = None,
  ):
    """Args:
    n_samples: drawn beside the greedy one, with these settings.
    rows: completions at a time, over all devices.
    grade: list of (completion, example) -> list of Verdict.
    how: the environment and the limits; None: one completion.
    programs: by samples of a unit; evaluations that differ only in problems and
      noise share them.
    player: of an environment in Python, samples of a unit -> what
      `answer_programs.make_generate` gives.
    chunks: of completions, with a carried tail; None: they are whole.
    """
    self._samples, self._rows = range(1 + n_samples), rows
    self._of = dict(
      mesh=mesh,
      tokenizer=tokenizer,
      grade=grade,
      key=key,
      stop=stop,
      sampling=sampling,
      row_id=self._row_id,
    )
    self._make = player or functools.partial(
      answer_programs.make_generate,
      model,
      max_new=max_new,
      how=how,
      chunks=chunks,
    )
    self._generate = {} if programs is None else programs

  def _row_id(self, problem: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """Returns the index of a row among the rows of all problems."""
    return problem * len(self._samples) + sample

  def __call__(
    self,
    params,
    problems: EvalSet,
    show: int = 0,
    stopped: Callable[[], bool] = bool,
  ) -> tuple[dict[str, float], list[dict]] | None:
    """Evaluates problems.

    Args:
      stopped: called after each block of problems; True ends the evaluation.

    Returns:
      (metrics by name, records of all answers, in the order of the problems,
      greedy first, texts only of the first `show`), the same on every process;
      None if it was stopped.
    """

    def told(row):
      """Removes texts of problems that are not shown, before hosts exchange
      records.
      """
      if row['problem'] < show:
        return row
      return {k: v for k, v in row.items() if k not in _TEXTS}

    grid = answers.Grid.make(
      len(problems.examples),
      self._samples,
      self._rows,
      sharding.row_shards(self._of['mesh']),
    )
    if grid.s not in self._generate:
      self._generate[grid.s] = self._make(n_samples=grid.s)
    sampler = answers.AnswerSampler(
      self._generate[grid.s], params, told=told, **self._of
    )
    rows = []
    for block in sampler.blocks(problems, grid):
      rows += block
      if stopped():
        return None
    return values(rows), rows


_TEXTS = ('prompt', 'completion', 'conversation', 'meta')


def names(n: int) -> list[str]:
  """Lists the metrics of an evaluation with n random samples. Those after
  `truncated` are only of some tasks.
  """
  ks = estimators.powers(n)
  of_draws = [f'{x}@{k}' for x in ('cot_pass', scores.DISTINCT) for k in ks]
  first = ['greedy', *(f'pass@{k}' for k in ks), f'maj@{n}']
  return [
    *first,
    'length',
    'invalid',
    'truncated',
    *of_draws,
    *scores.CONFIDENCE,
  ]


def values(rows: Sequence[Mapping]) -> dict[str, float]:
  """Summarises the records of an evaluation for metrics.jsonl."""
  found = scores.values(rows)
  n = max(row['sample'] for row in rows)
  # Without incorrect answers, for example, there is no area under a curve.
  return {k: found[k] for k in names(n) if np.isfinite(found.get(k, np.nan))}
