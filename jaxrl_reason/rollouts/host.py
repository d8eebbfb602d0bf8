"""The source whose rewards are Python: generate -> text -> verifier pool.

  source.start(params, ...)    queues the generation of a batch, in parts
  source.submit(control)       gives each part's texts to the pool as it comes
  source.take()                waits for the verdicts

The next part is generated while the one before is verified, and whatever the
caller dispatches between `submit` and `take` runs meanwhile. A batch may be
started before the one in hand is taken: that is how a step runs ahead.
"""

import collections
import dataclasses
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import trees
from jaxrl_reason.base import Prompts, Reward, Rollout
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rewards import compose
from jaxrl_reason.rewards.verdict import Verdict, all_failed
from jaxrl_reason.rollouts import progress


class RewardFailed(RuntimeError):
  """The reward function raised on every completion of a step."""


class Questions(NamedTuple):
  """One step's problems.

  Attributes:
    prompts: on the mesh.
    ids: int [b], of the problems that this process holds.
    examples: those problems.
  """

  prompts: Prompts
  ids: np.ndarray
  examples: Sequence[dict]


class Answered(NamedTuple):
  """Questions with the rewards of all rows [N,...], and of the greedy
  completions [B,...] or None: on the host, alike on every process; and the
  verdicts [n] of this process's rows.
  """

  questions: Questions
  reward: Reward
  greedy: Reward | None
  verdicts: np.ndarray


@dataclasses.dataclass
class _UnderWay:
  """A batch between `start` and `take`.

  Attributes:
    outs: Rollouts of the parts; best: the greedy one, or None.
    drawn_by: (root, step), what noise goes by.
    futures, best_future: of the verdicts, once submitted.
  """

  questions: Questions
  outs: list[Rollout]
  best: Rollout | None
  drawn_by: tuple
  futures: list = dataclasses.field(default_factory=list)
  best_future: Any = None


@dataclasses.dataclass
class HostSource:
  """Answers prompts on the device and has the answers judged in a pool.

  Attributes:
    questions: gives those of the next step.
    generate, greedy: compiled `fused.complete` and `fused.greedy`; greedy None:
      no loss reads it.
    n_samples: G; part_names: of the reward.
    pool: a VerifierPool, or anything with `submit(cases) -> future`.
    tokenizer: gives the text of a completion.
    parts: pieces a batch is generated and verified in.
    root, sampling, stop: the run's key, sampling settings, stop tokens.
    to_host: an array [N,...] on the mesh to this process's rows [n,...].
    all_rows: this process's rows as those of all processes.
    draws: (root, step, use, samples of a problem) -> f32 [n], of this process's
      rows, which rewards read as example['uniform']; None: none reads it.
    play: in place of `generate`, of episodes with an environment in Python: the
      problems follow the prompts.
  """

  questions: Iterator[Questions]
  generate: Callable[..., Rollout]
  greedy: Callable[..., Rollout] | None
  n_samples: int
  part_names: tuple[str, ...]
  pool: Any
  tokenizer: Any
  parts: int
  root: jax.Array
  sampling: Sampling
  stop: jax.Array
  to_host: Callable = np.asarray
  all_rows: Callable = trees.same
  draws: Callable | None = None
  play: Callable[..., Rollout] | None = None

  def __post_init__(self):
    self._under_way = collections.deque()
    self.judged = 0.0  # when this process had its own last verdicts
    self._failed = 0  # problems on which the reward has raised, in a row

  def start(
    self, params, step, version, questions=None, root=None, sampling=None
  ) -> None:
    """Queues the generation of the next questions; returns at once.

    Part i takes prompts i, i + parts, ...: every device keeps its share. Row
    ids are those of the whole batch, so that parts change no sample.

    Args:
      step: i32 [], of the run, that the samples are for.
      version: i32 [], updates behind `params`; fewer than `step` when ahead.
      questions: in place of the next ones; root: in place of the run's key;
        sampling: in place of the run's settings.
    """
    questions = next(self.questions) if questions is None else questions
    root = self.root if root is None else root
    sampling = self.sampling if sampling is None else sampling
    prompts, g = questions.prompts, self.n_samples
    ids = np.arange(len(prompts.tokens) * g, dtype=np.int32).reshape(-1, g)
    outs, best = [], None
    for i in range(self.parts):
      piece = trees.take(prompts, slice(i, None, self.parts))
      rows = ids[i :: self.parts].reshape(-1)
      how = root, step, sampling, self.stop, rows, version
      if self.play is None:
        outs.append(self.generate(params, piece, *how))
      else:
        asked = questions.examples[i :: self.parts]
        outs.append(self.play(params, piece, asked, *how))
    if self.greedy is not None:
      best = self.greedy(params, prompts, root, step, self.stop)
    self._under_way.append(_UnderWay(questions, outs, best, (root, step)))

  @property
  def started(self) -> int:
    """Counts how many batches are under way."""
    return len(self._under_way)

  def submit(self, control: dict | None) -> tuple[Prompts, list[Rollout]]:
    """Gives the oldest batch to the pool, waiting for each of its parts.

    Args:
      control: of the TrainState, for the numbers that scheduled rewards go
        by; they read them as example['state'].

    Returns:
      (prompts, Rollouts of the parts), on the device.
    """
    batch = self._under_way[0]
    examples = batch.questions.examples
    state = {k: float(v) for k, v in progress.of(control).items()}
    if state:
      examples = [example | {'state': state} for example in examples]
    noise = self.draws and self._noise(batch, 'views', self.n_samples)
    for i, out in enumerate(batch.outs):
      part = slice(i, None, self.parts)
      cases = self._cases(out, examples[part], noise and noise[part])
      batch.futures.append(self.pool.submit(cases))
    if batch.best is not None:
      noise = self.draws and self._noise(batch, 'greedy views', 1)
      cases = self._cases(batch.best, examples, noise)
      batch.best_future = self.pool.submit(cases)
    return batch.questions.prompts, batch.outs

  def part(self, i: int) -> Reward:
    """Waits for the verdicts of part i of the oldest batch, on all hosts."""
    batch = self._under_way[0]
    reward = self._reward(batch.futures[i].result(), batch.outs[i])
    return self.all_rows(reward)

  def take(self) -> Answered:
    """Waits for the verdicts of the oldest batch.

    Raises:
      RewardFailed: every case failed, on all hosts, and not of one problem
        alone: that is the reward, not the data.
    """
    batch = self._under_way.popleft()
    verdicts = [future.result() for future in batch.futures]
    self.judged = time.monotonic()
    parts = [
      (self._reward(found, out), np.array(found, object))
      for found, out in zip(verdicts, batch.outs)
    ]
    own, told = batch_lib.interleaved(parts, self.n_samples, np)
    failed = np.array([verdict.status == 'error' for verdict in told])
    reward, failed = self.all_rows((own, failed))
    self._refuse_failed(failed, told.tolist())
    best = batch.best_future and self._best(batch)
    return Answered(batch.questions, reward, best, told)

  def _best(self, batch: _UnderWay) -> Reward:
    reward = self._reward(batch.best_future.result(), batch.best)
    return self.all_rows(reward)

  def _reward(self, verdicts: Sequence[Verdict], out: Rollout) -> Reward:
    """Verdicts as arrays, and what an environment gave as the last part."""
    if out.episode is None:
      return to_reward(verdicts, self.part_names)
    found = to_reward(verdicts, self.part_names[:-1])
    own = np.nansum(self.to_host(out.episode.reward), axis=1, dtype=np.float32)
    parts = found.parts.reshape(len(own), -1)
    return found.replace(
      total=found.total + own,
      parts=np.concatenate([parts, own[:, None]], axis=1),
    )

  def _refuse_failed(self, failed: np.ndarray, own: Sequence[Verdict]) -> None:
    """Ends the run where nothing but errors has come of two problems or more,
    of this step or of those right before it.

    Args:
      failed: bool [N], of all hosts.
      own: the verdicts of this one.
    """
    if not failed.all():
      self._failed = 0
      return
    self._failed += len(failed) // self.n_samples
    if self._failed > 1:
      raise RewardFailed(all_failed(own))

  def _noise(self, batch: _UnderWay, use: str, n: int) -> list:
    """What rewards read as example['uniform'], of n rows by problem."""
    return self.draws(*batch.drawn_by, use, n).reshape(-1, n).tolist()

  def _cases(self, out: Rollout, examples, noise) -> list[tuple[str, dict]]:
    """(completion text, example) of a part's rows; waits for the part."""
    tokens, sampled = self.to_host(out.tokens), self.to_host(out.sampled)
    g = len(tokens) // len(examples)
    if noise is not None:
      examples = [
        example | {'uniform': x}
        for example, drawn in zip(examples, noise)
        for x in drawn
      ]
      g = 1
    return [
      (self.tokenizer.decode(row[own].tolist()), examples[i // g])
      for i, (row, own) in enumerate(zip(tokens, sampled))
    ]


def to_reward(verdicts: Sequence[Verdict], part_names) -> Reward:
  """Lays verdicts out as arrays; a failed verifier is invalid, not a zero."""
  total, parts, valid = compose.columns(verdicts, part_names)
  return Reward(
    np.asarray(total, np.float32),
    np.asarray(parts, np.float32),
    np.asarray(valid, bool),
    np.asarray([answer_id(v.extracted) for v in verdicts], np.int32),
  )


def answer_id(answer: object) -> int:
  """Returns a number from 0 that equal answers share; -1: none was found, or
  nothing stands there, as `kernels.final.answer_ids` has it.
  """
  return -1 if answer in (None, '') else zlib.crc32(str(answer).encode()) >> 1
