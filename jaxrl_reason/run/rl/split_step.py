"""An RL step on two meshes: one samples and verifies, the other trains.

With a queue of k batches (`rl.staleness`), step i is

  sampler   weights of version i arrive -> sample, verify -> batch i
  trainer   train on batch i - k of the queue -> batch i takes its place

Both halves read weights of version i and not each other, so they run at the
same time. All of it is queued without waiting. The state at the end of a step
is that of one mesh: the queue is part of it, and weights are sent when a step
begins. So nothing is under way when a checkpoint is saved.

Without a queue, the trainer waits for batch i and the sampler for the update.
"""

import collections
import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.base import (
  Account,
  Metrics,
  Model,
  Prompts,
  TrainState,
  Trajectories,
)
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import adapters
from jaxrl_reason.models.adapters import frozen
from jaxrl_reason.rollouts import group_arrays, progress
from jaxrl_reason.rollouts.delay import Delay
from jaxrl_reason.rollouts.rounds import RoundsSource
from jaxrl_reason.rollouts.views import with_answers_only
from jaxrl_reason.run import two_meshes
from jaxrl_reason.run.prepare import Prepared
from jaxrl_reason.run.rl import programs
from jaxrl_reason.run.two_meshes import Transfer
from jaxrl_reason.update.learner import Learner


def rl_settings(
  learner: Learner, state: TrainState, sampling: Sampling
) -> tuple[jax.Array, Sampling, dict | None]:
  """Returns what a step's generation reads beside weights: its number, the
  sampling settings, and the progress of the stage.
  """
  control = progress.of(state.control)
  sampling = learner.chain.sampling(state.control, sampling)
  return state.step, sampling, {progress.CONTROL: control} if control else None


def rl_sample(
  source: Callable, queued: bool, params, prompts: Prompts, root, settings, stop
) -> Trajectories | tuple[Trajectories, Account]:
  """Samples and verifies the completions of one step.

  Args:
    queued: the groups are for the queue, with their account beside them.
    settings: of `rl_settings`.
  """
  step, sampling, control = settings
  found = source(params, control, prompts, root, step, sampling, stop)
  if not queued:
    # States of the sampler's weights, which may be rounded, are not kept.
    return found.replace(rollout=with_answers_only(found.rollout))
  return group_arrays.of(found), group_arrays.account(found)


def rl_learn_now(
  learner: Learner,
  kind: None,
  state: TrainState,
  found: Trajectories,
  root,
  sampling: Sampling,
) -> tuple[TrainState, Metrics]:
  """Trains on the batch of this step."""
  del kind
  sampling = learner.chain.sampling(state.control, sampling)
  return programs.rl_learn_rounds(learner, state, found, root, sampling)


def rl_learn_oldest(
  learner: Learner, kind: Delay, state: TrainState, root, sampling: Sampling
) -> tuple[TrainState, Metrics]:
  """Trains on the oldest batch of the queue, which stays in it."""
  found = group_arrays.to_rows(kind.oldest(state.control[kind.name]))
  sampling = learner.chain.sampling(state.control, sampling)
  batch = batch_lib.make_batch(found)
  return programs.learn(learner, state, batch, root, sampling)


def rl_enqueue(
  learner: Learner, kind: Delay, state: TrainState, groups, account: Account
) -> tuple[TrainState, Metrics]:
  """Puts a batch into the queue in place of the oldest, and returns statistics
  of its completions.
  """
  queue = kind.put(state.control[kind.name], groups)
  control = state.control | account.control | {kind.name: queue}
  metrics = batch_lib.stats_of_rounds(account, learner.part_names)
  return state.replace(control=control), metrics | account.metrics


@dataclasses.dataclass
class SplitStep:
  """Runs RL steps whose halves are programs of two meshes.

  Attributes:
    learner: of the update.
    source: of the rollouts, without the queue.
    kind: the queue, or None.
    root, sampling, stop: the run's key, sampling settings, stop tokens.
    shardings: of the state, on the trainer's mesh.
    weights, settings, samples: the transfers of weights and of `rl_settings`
      to the sampler, and of batches to the trainer.
  """

  learner: Learner
  source: Callable[..., Trajectories]
  kind: Delay | None
  root: jax.Array
  sampling: Sampling
  stop: jax.Array
  shardings: Any
  weights: Transfer
  settings: Transfer
  samples: Transfer

  def __post_init__(self):
    self._settings = jax.jit(rl_settings, static_argnums=0)
    self._sample = jax.jit(rl_sample, static_argnums=(0, 1))
    self._learn, self._learn_oldest, self._enqueue = (
      programs.updating(f, 2, self.shardings)
      for f in (rl_learn_now, rl_learn_oldest, rl_enqueue)
    )
    self._clock = Clock(self.kind is not None)

  def __call__(
    self, state: TrainState, prompts: Prompts
  ) -> tuple[TrainState, Metrics, dict[str, float]]:
    """Queues one step.

    Args:
      prompts: [B,...] on the sampler's mesh.

    Returns:
      (state, metrics of the device, seconds of earlier steps).
    """
    begun = time.monotonic()
    weights = self.weights(state.params)
    settings = self._settings(self.learner, state, self.sampling)
    settings = self.settings(settings).tree
    given = weights.tree, prompts, self.root, settings, self.stop
    with jax.set_mesh(self.weights.target):
      found = self._sample(self.source, self.kind is not None, *given)
    rest = self.root, self.sampling
    static = self.learner, self.kind
    if self.kind is None:
      moved = self.samples(found)
      state, metrics = self._learn(*static, state, moved.tree, *rest)
      updated = metrics['loss']
    else:
      state, metrics = self._learn_oldest(*static, state, *rest)
      updated = metrics['loss']
      moved = self.samples(found)
      state, more = self._enqueue(*static, state, *moved.tree)
      metrics |= more
    events = weights.sent, weights.copied, moved.sent, moved.copied, updated
    self._clock.note(begun, *events)
    return state, metrics, self._clock.seconds()

  def dispatches(self, data: Iterator[dict]) -> Callable:
    """Returns the stage's function of a step, which takes its rows from data
    (`stages.Stage.dispatch`).
    """

    def dispatch(state, more):
      del more
      rows = sharding.to_global(next(data), self.weights.target)
      state, metrics, seconds = self(state, Prompts(**rows))
      return state, metrics, {f'perf/{k}': x for k, x in seconds.items()}

    return dispatch

  def close(self) -> None:
    """Ends the threads that note times."""
    self._clock.close()


class Times(NamedTuple):
  """When the events of a step happened, by time.monotonic().

  Attributes:
    begun: the step was queued.
    sent, weights: the trainer's devices had laid out the weights, and the
      sampler's had received them.
    sampled, samples: the same of the batch, in the other direction.
    updated: the update was finished.
  """

  begun: float
  sent: float
  weights: float
  sampled: float
  samples: float
  updated: float


def seconds(before: Times, now: Times, queued: bool) -> dict[str, float]:
  """Returns the seconds of a step by name, from its events and those of the
  step before it.

  A side waits from the end of its last work, or from when the step was queued
  if that is later, until weights or samples arrive. With a queue, the batch
  of the step before must have arrived.
  """
  arrived = before.samples if queued else now.samples
  free = max(before.sampled, now.begun)
  idle = max(before.updated, now.begun)
  start = {'sampler': max(free, now.weights), 'trainer': max(idle, arrived)}
  return {
    'sampler_wait_s': start['sampler'] - free,
    'trainer_wait_s': start['trainer'] - idle,
    'weights_s': max(0.0, now.weights - now.sent),
    'samples_s': max(0.0, now.samples - now.sampled),
    'sample_s': max(0.0, now.sampled - start['sampler']),
    'train_s': max(0.0, now.updated - start['trainer']),
  }


class Clock:
  """Notes when the arrays of steps are ready, in threads that wait for them."""

  def __init__(self, queued: bool):
    self._queued, self._before = queued, None
    self._steps = collections.deque()
    self._threads = concurrent.futures.ThreadPoolExecutor(max_workers=16)

  def note(self, begun: float, *events: jax.Array) -> None:
    """Starts to wait for the events of a step, in the order of `Times`."""
    at = [self._threads.submit(_when, x) for x in events]
    self._steps.append((begun, at))

  def seconds(self) -> dict[str, float]:
    """Returns the seconds of the newest step that is over, or {}."""
    out = {}
    while self._steps and all(x.done() for x in self._steps[0][1]):
      begun, at = self._steps.popleft()
      now = Times(begun, *(x.result() for x in at))
      if self._before is not None:
        out = seconds(self._before, now, self._queued)
      self._before = now
    return out

  def close(self) -> None:
    self._threads.shutdown(wait=False, cancel_futures=True)


def _when(x: jax.Array) -> float:
  """Waits for an array, and returns the time."""
  jax.block_until_ready(x)
  return time.monotonic()


def without_queue(source: Callable) -> tuple[Callable, Delay | None]:
  """Returns a step's source without the queue around it, and the queue."""
  if isinstance(source, RoundsSource) and isinstance(source.kind, Delay):
    return source.source, source.kind
  return source, None


def sampler_learner(learn: Learner, dtype: str) -> Learner:
  """Returns the learner with the model as the sampler stores it, from which a
  source is built.
  """
  model = sampler_model(learn.model, dtype)
  return dataclasses.replace(learn, model=model)


def sampler_model(model: Model, dtype: str) -> Model:
  """Returns the policy whose weights are stored as `dtype`."""
  if dtype == 'float32':
    return model
  return adapters.attach(model, frozen_dtype=dtype, trainable='')


def _converting(model: Model) -> Callable[[str, jax.Array], Any]:
  """Returns (path, weight) -> its arrays as a model stores them."""
  stored = trees.flatten(model.specs, frozen.is_stored)

  def convert(path, x):
    return frozen.keep(stored[path], x)

  return convert


def make(
  learn: Learner,
  source: Callable,
  parts: Prepared,
  shardings: Any,
  sampling: Sampling,
) -> SplitStep:
  """Builds the step of a stage.

  Args:
    source: of a step; the queue is outermost, if there is one.
    shardings: of the state.
  """
  source, kind = without_queue(source)
  trainer, sampler = parts.mesh, parts.sampler_mesh
  model = sampler_model(learn.model, parts.config.sampler_dtype)
  laid = sharding.shardings(model.specs, sampler, sharding.TRAIN_RULES)
  by_path = trees.flatten(laid)

  def of_weight(path, x):
    del x
    return by_path[path]

  weights = Transfer(trainer, sampler, of_weight)
  if model is not learn.model:
    weights = dataclasses.replace(weights, convert=_converting(model))
  return SplitStep(
    learn,
    source,
    kind,
    parts.root,
    sampling,
    parts.stop,
    shardings,
    weights=weights,
    settings=Transfer(trainer, sampler, two_meshes.by_rows(sampler)),
    samples=Transfer(sampler, trainer, two_meshes.by_rows(trainer)),
  )
