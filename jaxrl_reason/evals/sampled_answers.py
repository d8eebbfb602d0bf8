"""Samples answers to problems, a bounded number of completions at a time.

  blocks of problems x all their samples
    -> units of equal shape, one compiled program for all
    -> completions -> verdicts -> records, by (problem, sample)

While the answers of one unit are verified, the next unit is generated. The
noise depends only on the key, the problem and the sample, so the size of a unit
and the number of devices or processes change no sample.
"""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_reason import hosts, sharding, trees
from jaxrl_reason.base import Rollout
from jaxrl_reason.data import pipeline, teacher_answers
from jaxrl_reason.evals import traces
from jaxrl_reason.evals.answer_programs import BASE, JUDGE, TOP
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts.gumbel_search import GENERATED
from jaxrl_reason.verifiers import confidence, records


@dataclasses.dataclass(frozen=True)
class EvalSet:
  """Problems of one split, encoded once.

  Attributes:
    ids: tokens of each prompt; room: P, tokens of the longest prompt.
    encoded: encoded problems for an environment or the verifier of a search, or
      None.
    hosted: an environment in Python, which reads the problems.
  """

  examples: Sequence[dict]
  ids: Sequence[Sequence[int]]
  room: int
  encoded: Sequence[dict] | None = None
  hosted: bool = False

  def rows(self, problems: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (tokens i32, valid bool) [n,P] of some of the problems."""
    rows = [
      pipeline.pad_prompt(self.ids[i], self.room, f'problem {i}')
      for i in problems
    ]
    return tuple(np.stack([r[k] for r in rows]) for k in ('tokens', 'valid'))

  def played(self, problems: np.ndarray) -> tuple[dict, ...]:
    """Returns the last argument of `answer_programs.make_generate`'s function
    for some problems, arrays [n,...]; () if it has none.
    """
    if self.encoded is None:
      return ()
    rows = [self.encoded[i] for i in problems]
    return (trees.stacked(rows),)


@dataclasses.dataclass(frozen=True)
class Grid:
  """A partition of problems x samples into units of [b problems, s samples].

  Attributes:
    problems: E, their number; samples: numbers of their samples.
    b: problems of a unit; s: samples of a unit.
  """

  problems: int
  samples: Sequence[int]
  b: int
  s: int

  @classmethod
  def make(
    cls, problems: int, samples: Sequence[int], rows: int, shards: int
  ) -> 'Grid':
    """Builds units of at most `rows` completions, and of at least `shards`."""
    most = max(1, rows // shards)  # of a shard
    parts = -(-len(samples) // most)
    s = -(-len(samples) // parts)
    b = min(max(1, most // s), -(-problems // shards)) * shards
    return cls(problems, samples, b, s)

  def units(self, first: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Returns (problems [b], samples [s]) of every unit, from problem `first`
    on; -1 fills the last units.
    """
    for start in range(first, self.problems, self.b):
      problems = np.arange(start, start + self.b)
      problems[problems >= self.problems] = -1
      for at in range(0, len(self.samples), self.s):
        part = list(self.samples[at : at + self.s])
        yield problems, np.array(part + [-1] * (self.s - len(part)))

  @property
  def units_of_block(self) -> int:
    """Counts the units with the same problems."""
    return -(-len(self.samples) // self.s)

  @property
  def n_units(self) -> int:
    """Counts the units of all problems, which are calls of the program."""
    return -(-self.problems // self.b) * self.units_of_block


def pair(problem: np.ndarray, sample: np.ndarray) -> np.ndarray:
  """Returns ids of rows [N,2] that do not depend on the number of samples."""
  return np.stack([problem, sample], axis=1)


@dataclasses.dataclass(frozen=True)
class AnswerSampler:
  """The sampler of answers, and its settings.

  Attributes:
    generate: from `answer_programs.make_generate`, for the grid's s samples.
    sampling: settings; sample 0 is always greedy.
    stop: i32 [S], tokens that end a completion.
    grade: list of (completion, example) -> list of Verdict.
    row_id: (problem [N], sample [N]) -> ids of rows, for the noise.
    budgets: tokens after which completions are also cut and judged.
    about: fields of every record.
    whole: completions begin with the first step, so their steps are checked.
    told: returns the part of a record that other processes need.
  """

  generate: Callable
  params: Any
  mesh: jax.sharding.Mesh
  tokenizer: Any
  sampling: Sampling
  key: jax.Array
  stop: jax.Array
  grade: Callable
  row_id: Callable = pair
  budgets: tuple[int, ...] = ()
  about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  told: Callable[[dict], dict] = dict
  whole: bool = True

  def blocks(
    self, problems: EvalSet, grid: Grid, first: int = 0
  ) -> Iterator[list[dict]]:
    """Returns the records of block after block, ordered by (problem, sample),
    the same on every process.

    Args:
      first: the first problem.
    """
    units = grid.units(first)
    started = (self._start(problems, *unit) for unit in units)
    ahead = next(started, None)
    answers = self._answers(problems, ahead, started)
    while block := list(itertools.islice(answers, grid.units_of_block)):
      rows = [row for part in block for row in part]
      yield sorted(rows, key=operator.itemgetter('problem', 'sample'))

  def _answers(self, problems: EvalSet, ahead, started) -> Iterator[list[dict]]:
    """Yields the records of units, while the next unit is generated."""
    while ahead is not None:
      unit, ahead = ahead, next(started, None)
      own = self._records(problems, *unit)
      rows = hosts.gather([self.told(row) for row in own])
      found = {(r['problem'], r['sample']): r for part in rows for r in part}
      yield list(found.values())

  def _start(self, problems: EvalSet, of: np.ndarray, samples: np.ndarray):
    """Dispatches a unit; returns (this process's rows [n,2], the Rollout)."""
    here = of[sharding.my_rows(self.mesh, len(of))]
    # The filling rows are sampled too, and not counted.
    asked = np.where(here < 0, 0, here)
    prompts, played = problems.rows(asked), problems.played(asked)
    rows = np.stack(
      [np.repeat(here, len(samples)), np.tile(samples, len(here))], axis=1
    )
    named = np.maximum(rows, 0)
    temperature = np.where(
      named[:, 1] == 0, 0.0, np.asarray(self.sampling.temperature)
    )
    ids = self.row_id(named[:, 0], named[:, 1]).astype(np.int32)
    tokens, valid, ids, temperature, played = sharding.to_global(
      (*prompts, ids, temperature.astype(np.float32), played), self.mesh
    )
    if problems.hosted:
      played = ([problems.examples[i] for i in asked],)
    sampling = self.sampling.replace(temperature=temperature)
    given = self.params, tokens, valid, ids, sampling, self.key, self.stop
    return rows, self.generate(*given, *played)

  def _records(
    self, problems: EvalSet, rows: np.ndarray, out: Rollout
  ) -> list[dict]:
    """Returns this process's records of a unit."""
    local = _Local(out, self.mesh)
    real = np.flatnonzero((rows >= 0).all(axis=1))
    drawn = [local.tokens[i][local.sampled[i]].tolist() for i in real]
    examples = [problems.examples[rows[i, 0]] for i in real]
    examples = [e | local.gained(i) for e, i in zip(examples, real)]
    texts = [self.tokenizer.decode(ids) for ids in drawn]
    verdicts = self.grade(list(zip(texts, examples)))
    cut = self._at_budgets(drawn, examples, verdicts)
    temperature = round(float(np.asarray(self.sampling.temperature)), 6)
    out = []
    for n, i in enumerate(real):
      number, sample = map(int, rows[i])
      row = records.record(
        _shown(examples[n]),
        number=number,
        sample=sample,
        completion=texts[n],
        length=len(drawn[n]),
        truncated=bool(local.truncated[i]),
        temperature=temperature if sample else 0.0,
        **self._judged(texts[n], examples[n]),
        **local.details(i),
        **local.top(i, drawn[n], self),
        **local.conversation(i, self.tokenizer.decode),
        **cut[n],
        **self.about,
      )
      out.append(records.judged(row, verdicts[n]))
    return out

  @functools.cached_property
  def tokenizer_digest(self) -> str:
    """Returns the digest of the tokenizer, for stored distributions."""
    return teacher_answers.digest(self.tokenizer)

  def _judged(self, text: str, example: Mapping) -> dict[str, Any]:
    """Returns further fields that are computed from a text."""
    sound = traces.check(text, example) if self.whole else None
    stated = confidence.stated(text)
    found = {'trace': sound, 'confidence': stated}
    return {k: v for k, v in found.items() if v is not None}

  def _at_budgets(self, drawn, examples, verdicts) -> list[dict]:
    """Returns {'at_budget': scores by budget} of every completion; longer
    completions are cut and verified again.
    """
    if not self.budgets:
      return [{} for _ in drawn]
    scores = [{str(b): v.score for b in self.budgets} for v in verdicts]
    longer = [
      (i, b)
      for i, ids in enumerate(drawn)
      for b in self.budgets
      if len(ids) > b
    ]
    cases = [
      (self.tokenizer.decode(drawn[i][:b]), examples[i]) for i, b in longer
    ]
    for (i, b), verdict in zip(longer, self.grade(cases)):
      scores[i][str(b)] = verdict.score
    return [{'at_budget': s} for s in scores]


def _shown(example: Mapping) -> dict[str, Any]:
  """Returns the fields of a problem that a verifier reads, for its record."""
  return {k: v for k, v in example.items() if k not in ('solution', 'rendered')}


class _Local:
  """This process's rows of a Rollout, on the host."""

  def __init__(self, out: Rollout, mesh: jax.sharding.Mesh):
    def here(x):
      return None if x is None else sharding.to_local(x, mesh)

    self.tokens, self.sampled = here(out.tokens), here(out.sampled)
    self.truncated, self.turn = here(out.truncated), here(out.turn)
    self._logp, self._entropy = here(out.policy_logp), here(out.entropy)
    views = out.views or {}
    self._base = here(views.get(BASE))
    self._generated = here(views.get(GENERATED))
    self._judged = here(views.get(JUDGE))
    self._top = [here(views.get(name)) for name in TOP]
    self._gained = here(out.episode and out.episode.reward)

  def gained(self, i: int) -> dict[str, float]:
    """Returns {'gained': a row's rewards of its environment}, for games."""
    if self._gained is None:
      return {}
    return {'gained': float(np.nansum(self._gained[i]))}

  def conversation(self, i: int, decode: Callable) -> dict[str, list]:
    """Returns {'conversation': the turns of a row}, if the policy did not
    sample every token.
    """
    real = self.turn[i] > 0
    arrays = (x[i][real] for x in (self.tokens, self.sampled, self.turn))
    return records.conversation(decode, *(x.tolist() for x in arrays))

  def details(self, i: int) -> dict[str, float]:
    """Returns log-probability and entropy of a row, if they were computed."""
    if self._logp is None:
      return {}
    on = self.sampled[i]
    found = {
      'logp': round(float(self._logp[i][on].sum()), 4),
      'entropy': round(float(self._entropy[i][on].mean()), 4),
    }
    if self._judged is not None:
      found[JUDGE] = round(float(self._judged[i]), 6)
    if self._generated is not None:
      found[GENERATED] = int(self._generated[i])
    if self._base is not None:
      found[BASE] = round(float(self._base[i][on].sum()), 4)
    return found

  def top(self, i: int, ids: list[int], sampler: AnswerSampler) -> dict:
    """Returns {'top': the likeliest tokens of a row}, if they were computed."""
    if self._top[0] is None:
      return {}
    top = (x[i][self.sampled[i]] for x in self._top)
    return {'top': teacher_answers.field(ids, *top, sampler.tokenizer_digest)}
