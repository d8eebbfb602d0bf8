"""The host side of an RL step: rewards in Python between two programs.

  parts of the prompts -> generate -> (text -> verifier pool) -> Batch -> learn

The next part is generated while the one before is verified, the scoring pass
(reference or old log-probs) runs while the last part is, and the update of the
step before while this step's first part waits in the queue. Nothing is stale:
a step's samples come from the parameters it updates. Given the step after
(`ahead`), that one is generated while this one is verified, from the parameters
before this update: one version stale, and the device waits for no verifier.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_reason import batch as batch_lib
from jaxrl_reason.base import Batch, Prompts, Reward, Rollout, TrainState
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rewards import compose
from jaxrl_reason.rewards.verdict import Verdict, all_failed
from jaxrl_reason.run import fused_step, jitted
from jaxrl_reason.update import learner as learner_lib


class RewardFailed(RuntimeError):
  """The reward function raised on every completion of a step."""


@dataclasses.dataclass
class HostStep:
  """One RL step with host rewards: (state, prompts, examples) -> state.

  Attributes:
    learner, gen: what the programs are made of.
    pool: a VerifierPool, or anything with `submit(cases) -> future`.
    tokenizer: gives the text of a completion.
    parts: pieces a batch is generated and verified in.
    root, sampling, stop: the run's key, sampling settings, stop tokens.
    to_device: host arrays [N,...] to the mesh.
    to_host: an array [N,...] on the mesh to this process's rows [n,...].
    all_rows: this process's rows as those of all processes.
  """

  learner: learner_lib.Learner
  gen: fused_step.Generation
  pool: object
  tokenizer: object
  parts: int
  root: jax.Array
  sampling: Sampling
  stop: jax.Array
  to_device: Callable = lambda tree: tree
  to_host: Callable = np.asarray
  all_rows: Callable = lambda tree: tree

  def __post_init__(self):
    self._generate = jitted.generate(self.learner, self.gen)
    self._greedy = jitted.greedy(self.learner, self.gen)
    self._score = jitted.score(self.learner, self.gen)
    self._learn = jitted.learn(self.learner, self.gen)
    self._updating = None  # (metrics, when dispatched) of the step before
    self._failed = 0  # problems on which the reward has raised, in a row
    self._ahead = None  # what `_dispatch` gave for the step after

  def __call__(
    self,
    state: TrainState,
    prompts: Prompts,
    examples: Sequence[dict],
    ahead: Prompts | None = None,
  ) -> tuple[TrainState, dict, dict, Reward]:
    """One step.

    Args:
      examples: of the prompts that this process holds. It verifies those.
      ahead: the next step's prompts, to be sampled already now; the next call
        must be about them. The loss must then measure its ratio against the
        sampler (`Learner.old_logp`).

    Returns:
      (next state, device metrics, seconds by phase, rewards of all rows on the
      host).
    """
    begun = time.monotonic()
    stale = self._ahead is not None
    outs, best = self._ahead or self._dispatch(
      state.params, prompts, state.step
    )
    timing = self._wait_for_update()
    begun = time.monotonic() if timing else begun
    futures = [
      self.pool.submit(self._cases(out, examples[i :: self.parts]))
      for i, out in enumerate(outs)
    ]
    if best is not None:
      best = self.pool.submit(self._cases(best, examples))
    generated = time.monotonic()
    self._ahead = ahead and self._dispatch(state.params, ahead, state.step + 1)
    batch = self._score(state, prompts, outs, self.sampling)
    reward = self._collect(futures)
    verified = time.monotonic()
    timing |= {
      'rollout_s': generated - begun,
      'verify_wait_s': verified - generated,
      'stale_steps': float(stale),
    }
    batch = self._rewarded(batch, reward, best)
    _, order = fused_step.step_keys(self.root, state.step)
    state, metrics = self._learn(state, batch, self.sampling, order)
    self._updating = metrics, verified
    return state, metrics, timing, reward

  def _rewarded(self, batch: Batch, reward: Reward, best: Any) -> Batch:
    """The batch with its rewards, and those of its greedy completions that the
    pool has been given (None: there are none).
    """
    on_device = self.to_device(reward)
    batch = batch.replace(
      reward=on_device.total,
      reward_parts=on_device.parts,
      reward_valid=on_device.valid,
    )
    if best is None:
      return batch
    greedy = to_reward(best.result(), self.gen.part_names)
    return batch_lib.with_greedy(batch, self.to_device(self.all_rows(greedy)))

  def _dispatch(self, params, prompts, step) -> tuple[list[Rollout], Any]:
    """Queues the generation of every part, and of the greedy completions of a
    loss that reads them; returns at once.

    Part i takes prompts i, i + parts, ...: every device keeps its share. Row
    ids are those of the whole batch, so that parts change no sample.
    """
    g, b = self.gen.n_samples, prompts.tokens.shape[0]
    ids = np.arange(b * g, dtype=np.int32).reshape(b, g)
    at, outs, best = (self.root, step), [], None
    for i in range(self.parts):
      piece = jax.tree.map(lambda x: x[i :: self.parts], prompts)  # noqa: B023
      rows = ids[i :: self.parts].reshape(-1)
      outs.append(
        self._generate(params, piece, at, self.sampling, self.stop, rows)
      )
    if 'greedy_reward' in self.learner.needs:
      best = self._greedy(params, prompts, at, self.stop)
    return outs, best

  def _wait_for_update(self) -> dict[str, float]:
    """Times the update of the step before; the device's queue goes on."""
    if self._updating is None:
      return {}
    metrics, since = self._updating
    jax.block_until_ready(metrics)
    return {'update_s': time.monotonic() - since}

  def _cases(self, out: Rollout, examples) -> list[tuple[str, dict]]:
    """(completion text, example) of a part's rows; waits for the part."""
    tokens, lengths = self.to_host(out.tokens), self.to_host(out.length)
    g = len(lengths) // len(examples)
    return [
      (self.tokenizer.decode(row[:n].tolist()), examples[i // g])
      for i, (row, n) in enumerate(zip(tokens, lengths))
    ]

  def _collect(self, futures) -> Reward:
    """The verdicts of all parts, in the order of the batch's rows.

    Raises:
      RewardFailed: every case of the step failed, on all hosts, and not of one
        problem alone: that is the reward, not the data.
    """
    verdicts = [f.result() for f in futures]
    parts = [to_reward(v, self.gen.part_names) for v in verdicts]
    failed = [np.array([x.status == 'error' for x in v]) for v in verdicts]
    own = batch_lib.interleaved(
      list(zip(parts, failed)), self.gen.n_samples, np
    )
    reward, failed = self.all_rows(own)
    self._refuse_failed(failed, [x for v in verdicts for x in v])
    return reward

  def _refuse_failed(self, failed: np.ndarray, own: Sequence[Verdict]) -> None:
    """Ends the run where nothing but errors has come of two problems or more,
    of this step or of those right before it; failed: bool [N], of all hosts.
    """
    if not failed.all():
      self._failed = 0
      return
    self._failed += len(failed) // self.gen.n_samples
    if self._failed > 1:
      raise RewardFailed(all_failed(own))


def to_reward(verdicts: Sequence[Verdict], part_names) -> Reward:
  """Verdicts as arrays; a failed verifier is invalid, not a zero."""
  total, parts, valid = compose.columns(verdicts, part_names)
  return Reward(
    np.asarray(total, np.float32),
    np.asarray(parts, np.float32),
    np.asarray(valid, bool),
  )
