"""The source with rewards in Python: generate -> text -> verifier pool.

  source.start(params, ...)    queues the generation of a round, in pieces
  source.submit(control)       submits the texts of each piece to the pool
  source.take()                waits for the verdicts

The next piece is generated while the one before is verified. Programs that the
caller dispatches between `submit` and `take` run during verification. A round
may be started before the previous one is taken, so that generation runs a step
ahead.
"""

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import trees
from jaxrl_reason.base import Prompts, Reward, Rollout
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts import progress
from jaxrl_reason.rollouts.verdict_arrays import Writer, to_reward
from jaxrl_reason.verifiers.judges import pairwise
from jaxrl_reason.verifiers.verdict import Verdict, all_failed


class RewardFailed(RuntimeError):
  """The reward function raised an error on every completion of a step."""


class VerifierWait:
  """Measures the time for which this process waits for verdicts.

  Attributes:
    seconds: of all waits so far.
  """

  def __init__(self):
    self.seconds, self._pool = 0.0, None

  @contextlib.contextmanager
  def on(self, pool: Any) -> Iterator[None]:
    """Counts the seconds inside as a wait for a pool."""
    begun, self._pool = time.monotonic(), pool
    try:
      yield
    finally:
      self._pool = None
      self.seconds += time.monotonic() - begun

  def text(self) -> str:
    """Returns a line about the current wait, or '' if there is none."""
    pool = self._pool  # read once: another thread calls this
    return '' if pool is None else pool.progress()


class Asked(NamedTuple):
  """The problems of one round.

  Attributes:
    prompts: [B,...], on the mesh.
    problem: problem id -> the problem, for the problems of this process.
  """

  prompts: Prompts
  problem: Callable[[int], dict]


class Answered(NamedTuple):
  """The verdicts of one round. Only the last two fields differ by process.

  Attributes:
    reward: of all rows [N,...], on the host.
    helped: bool [N], rows that are demonstrations or begin with a hint.
    greedy: of the greedy completions [B,...], or None.
    demo: of the reference solutions [B,...], or None.
    ids: int [b], of the problems of this process.
    verdicts: [n], of this process's rows.
  """

  reward: Reward
  helped: np.ndarray
  greedy: Reward | None
  demo: Reward | None
  ids: np.ndarray
  verdicts: np.ndarray


@dataclasses.dataclass
class _UnderWay:
  """A round between `start` and `take`.

  Attributes:
    outs: Rollouts of the pieces; best: the greedy one, or None.
    drawn_by: (root, step), which determine the noise.
    sampling: settings of the samples.
    pieces: number of pieces of the round; `outs` has those queued so far.
    examples, noise: of this process's problems, for rewards, after the first
      piece is submitted.
    ids: of this process's problems, after they are read.
    futures: of the verdicts of the pieces, after they are submitted.
    best_future, demo_future: of the greedy completions and of the reference
      solutions, or None.
  """

  asked: Asked
  outs: list[Rollout]
  best: Rollout | None
  drawn_by: tuple
  sampling: Sampling
  pieces: int
  examples: list[dict] | None = None
  noise: list | None = None
  ids: np.ndarray | None = None
  futures: list = dataclasses.field(default_factory=list)
  best_future: Any = None
  demo_future: Any = None


@dataclasses.dataclass
class HostSource:
  """Generates completions on the device, and verifies them in a pool.

  Attributes:
    generate, greedy: compiled `fused.complete` and `fused.greedy`; greedy None:
      no loss reads it.
    n_samples: G; part_names: of the reward.
    pool: a VerifierPool, or anything with `submit(cases) -> future`.
    tokenizer: decodes completions.
    pieces: number of pieces of a round.
    root, sampling, stop: the run's key, sampling settings, stop tokens.
    to_host: returns this process's rows [n,...] of an array [N,...].
    all_rows: returns the rows of all processes from this process's rows.
    draws: (root, step, use, rows N) -> f32 [n] for this process's rows, which
      rewards read as example['uniform']; None: no reward reads it.
    play: replaces `generate` for episodes with an environment in Python; its
      arguments also have the problems, after the prompts.
    demos: verify the reference solutions too.
    others: a reward reads the other completions of the problem, as
      example['others'].
    details: converts messages of verifiers to tokens; None: nothing reads them.
    weight: factor that the rewards of an environment already have.
  """

  generate: Callable[..., Rollout]
  greedy: Callable[..., Rollout] | None
  n_samples: int
  part_names: tuple[str, ...]
  pool: Any
  tokenizer: Any
  pieces: int
  root: jax.Array
  sampling: Sampling
  stop: jax.Array
  to_host: Callable = np.asarray
  all_rows: Callable = trees.identity
  draws: Callable | None = None
  play: Callable[..., Rollout] | None = None
  demos: bool = False
  others: bool = False
  details: Writer | None = None
  weight: float = 1.0

  def __post_init__(self):
    self._under_way = collections.deque()
    self.wait = VerifierWait()
    self.judged = 0.0  # the time of this process's last verdicts
    self._failed = 0  # consecutive problems on which the reward raised

  def start(
    self,
    params,
    step,
    version,
    asked: Asked,
    root=None,
    sampling=None,
    control=None,
    submit_each: bool = False,
  ) -> None:
    """Queues the generation of a round. On a GPU, the call returns when the
    loop over tokens is almost done; elsewhere at once.

    Piece i has prompts i, i + pieces, ..., so every device has its share. Row
    ids are those of the whole round, so the split changes no sample.

    Args:
      step: i32 [], of the run, that the samples are for.
      version: i32 [], updates behind `params`; fewer than `step` when ahead.
      root: replaces the run's key; sampling: replaces its settings.
      control: as for `submit`.
      submit_each: submit each piece before the next program is queued.
    """
    root = self.root if root is None else root
    sampling = self.sampling if sampling is None else sampling
    prompts, g = asked.prompts, self.n_samples
    b = len(prompts.tokens)
    ids = np.arange(b * g, dtype=np.int32).reshape(-1, g)
    pieces = self.pieces if b % self.pieces == 0 else 1
    batch = _UnderWay(asked, [], None, (root, step), sampling, pieces)
    for i in range(pieces):
      if submit_each and batch.outs:
        self._submit_pieces(batch, control)
      piece = trees.take(prompts, slice(i, None, pieces))
      rows = ids[i::pieces].reshape(-1)
      how = root, step, sampling, self.stop, rows, version
      if self.play is None:
        batch.outs.append(self.generate(params, piece, *how))
      else:
        examples = self._problems(batch)[i::pieces]
        batch.outs.append(self.play(params, piece, examples, *how))
    if self.greedy is not None:
      if submit_each:
        self._submit_pieces(batch, control)
      given = params, prompts, root, step, sampling, self.stop
      batch.best = self.greedy(*given)
    self._under_way.append(batch)

  @property
  def started(self) -> int:
    """Counts the unfinished rounds."""
    return len(self._under_way)

  @property
  def sampled_with(self) -> Sampling:
    """Returns the sampling settings of the oldest unfinished round."""
    return self._under_way[0].sampling

  def submit(self, control: dict | None) -> tuple[Prompts, list[Rollout]]:
    """Submits the oldest round to the pool, waiting for each of its pieces.

    Args:
      control: of the TrainState; scheduled rewards read the stage's progress
        as example['state'].

    Returns:
      (prompts, Rollouts of the pieces), on the device.
    """
    batch = self._under_way[0]
    self._submit_pieces(batch, control)
    examples, noise = batch.examples, None
    if self.draws and (batch.best is not None or self.demos):
      noise = self._noise(batch, 'greedy views', 1)
    if batch.best is not None:
      cases = self._cases(batch.best, examples, noise)
      batch.best_future = self.pool.submit(cases)
    if self.demos:
      texts = [example.get('solution') or '' for example in examples]
      cases = self._of_texts(texts, examples, noise)
      batch.demo_future = self.pool.submit(cases)
    return batch.asked.prompts, batch.outs

  def _submit_pieces(self, batch: _UnderWay, control: dict | None) -> None:
    """Submits the queued pieces that were not submitted before."""
    if batch.examples is None:
      self._add_inputs_of_rewards(batch, control)
    for i in range(len(batch.futures), len(batch.outs)):
      piece = slice(i, None, batch.pieces)
      noise = batch.noise and batch.noise[piece]
      cases = self._cases(batch.outs[i], batch.examples[piece], noise)
      batch.futures.append(self.pool.submit(cases))

  def _add_inputs_of_rewards(self, batch: _UnderWay, control) -> None:
    """Adds the problems and the noise that rewards read to a round."""
    batch.examples = self._problems(batch)
    state = {k: float(v) for k, v in progress.of(control).items()}
    if state:
      batch.examples = [x | {'state': state} for x in batch.examples]
    if self.draws:
      batch.noise = self._noise(batch, 'views', self.n_samples)

  def piece(self, i: int) -> Reward:
    """Waits for the verdicts of piece i of the oldest round, on all hosts."""
    batch = self._under_way[0]
    with self.wait.on(self.pool):
      verdicts = batch.futures[i].result()
    reward = self._reward(verdicts, batch.outs[i])
    return self.all_rows(reward)

  def take(self) -> Answered:
    """Waits for the verdicts of the oldest round.

    Raises:
      RewardFailed: every case of two or more problems failed on all hosts. The
        cause is then the reward, not the data.
    """
    batch = self._under_way.popleft()
    with self.wait.on(self.pool):
      verdicts = [future.result() for future in batch.futures]
      rest = batch.best_future, batch.demo_future
      greedy, solutions = (future and future.result() for future in rest)
    self.judged = time.monotonic()
    pieces = [
      (self._reward(found, out), np.array(found, object), self._is_demo(out))
      for found, out in zip(verdicts, batch.outs)
    ]
    own, told, helped = batch_lib.interleaved(pieces, self.n_samples, np)
    if (hinted := batch.asked.prompts.is_hinted) is not None:
      helped = helped | np.repeat(self.to_host(hinted), self.n_samples)
    failed = np.array([verdict.status == 'error' for verdict in told])
    reward, failed, helped = self.all_rows((own, failed, helped))
    self._refuse_failed(failed, told.tolist())
    best = greedy and self.all_rows(self._reward(greedy, batch.best))
    demo = solutions and self.all_rows(self._reward(solutions))
    return Answered(reward, helped, best, demo, batch.ids, told)

  def _is_demo(self, out: Rollout) -> np.ndarray:
    demo = out.is_demo
    return self.to_host(out.length) < 0 if demo is None else self.to_host(demo)

  def _problems(self, batch: _UnderWay) -> list[dict]:
    """Returns the problems [b] of this process; waits for their ids."""
    if batch.ids is None:
      batch.ids = self.to_host(batch.asked.prompts.prompt_id)
    return [batch.asked.problem(int(i)) for i in batch.ids]

  def _reward(
    self, verdicts: Sequence[Verdict], out: Rollout | None = None
  ) -> Reward:
    """Converts verdicts to arrays. The last part is the reward of an
    environment, without its weight.

    Args:
      out: the completions; None: of reference solutions.
    """
    if out is None or out.episode is None:
      return to_reward(verdicts, self.part_names, self.details)
    found = to_reward(verdicts, self.part_names[:-1], self.details)
    own = np.nansum(self.to_host(out.episode.reward), axis=1, dtype=np.float32)
    parts = found.parts.reshape(len(own), -1)
    part = own[:, None] / np.float32(self.weight or 1.0)
    return found.replace(
      total=found.total + own,
      parts=np.concatenate([parts, part], axis=1),
    )

  def _refuse_failed(self, failed: np.ndarray, own: Sequence[Verdict]) -> None:
    """Raises an error if every verdict is a failure, for two problems or more,
    in this step or the consecutive steps before it.

    Args:
      failed: bool [N], of all hosts.
      own: the verdicts of this host.
    """
    if not failed.all():
      self._failed = 0
      return
    self._failed += len(failed) // self.n_samples
    if self._failed > 1:
      raise RewardFailed(all_failed(own))

  def _noise(self, batch: _UnderWay, use: str, n: int) -> list:
    """Returns the noise of a round's rows, n for each problem."""
    rows = len(batch.asked.prompts.tokens) * n
    return self.draws(*batch.drawn_by, use, rows).reshape(-1, n).tolist()

  def _cases(self, out: Rollout, examples, noise) -> list[tuple[str, dict]]:
    """Returns (completion, problem) of a piece's rows; waits for the piece."""
    tokens, sampled = self.to_host(out.tokens), self.to_host(out.sampled)
    texts = [
      self.tokenizer.decode(row[own].tolist())
      for row, own in zip(tokens, sampled)
    ]
    return self._of_texts(texts, examples, noise)

  def _of_texts(self, texts, examples, noise) -> list[tuple[str, dict]]:
    """Returns (text, problem) for texts, an equal number for each problem.

    Args:
      noise: numbers of each problem's texts, or None.
    """
    g = len(texts) // len(examples)
    problems = [example for example in examples for _ in range(g)]
    if noise is not None:
      drawn = [x for of_problem in noise for x in of_problem]
      problems = [p | {'uniform': x} for p, x in zip(problems, drawn)]
    if self.others:
      groups = (texts[i : i + g] for i in range(0, len(texts), g))
      others = [x for group in groups for x in pairwise.others(group)]
      problems = [p | {'others': x} for p, x in zip(problems, others)]
    return list(zip(texts, problems))
