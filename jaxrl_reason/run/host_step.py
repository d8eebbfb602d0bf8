"""The host side of an RL step: rewards in Python between two programs.

  start -> generate -> submit -> (verifier pool) -> score -> take -> learn

Reference and old log-probs are computed while the last part is verified, and
the update of the step before while this step's first part waits in the queue.
Nothing is stale: a step's samples come from the parameters it updates. With
`ahead`, the next batch is generated while this one is verified, from the
parameters before this update: one version stale, and the device waits for no
verifier.
"""

import dataclasses
import time
from collections.abc import Callable

import jax

from jaxrl_reason import trees
from jaxrl_reason.base import TrainState
from jaxrl_reason.rollouts.hints import Hints
from jaxrl_reason.rollouts.host import Answered, HostSource
from jaxrl_reason.run import heat, programs
from jaxrl_reason.update.learner import Learner


@dataclasses.dataclass
class HostStep:
  """Makes one RL step with host rewards.

  Attributes:
    source: of its rollouts.
    learner: what the update is made of.
    to_device: host arrays [N,...] to the mesh.
    where: shardings of the state, or None.
    ahead: start the next batch before this one is learnt from, where one
      follows. The loss must then measure its ratio against the sampler
      (`Learner.old_logp`).
    ask: (control, step) -> the step's Questions, a list of one, where what is
      known of the problems decides; None: the source's own come next.
    hints: given with every problem, or None.
  """

  source: HostSource
  learner: Learner
  to_device: Callable = trees.same
  where: object = None
  ahead: bool = False
  ask: Callable | None = None
  hints: Hints | None = None

  def __post_init__(self):
    self._helped = jax.jit(Hints.helped, static_argnums=0)
    self._score = jax.jit(programs.rl_score, static_argnums=(0, 1, 2))
    self._learn = programs.updating(programs.rl_learn, 1, self.where)
    self._updating = None  # (metrics, when dispatched) of the step before

  def __call__(
    self, state: TrainState, more: bool = False
  ) -> tuple[TrainState, dict, dict, Answered]:
    """Makes one step.

    Args:
      more: whether another step follows before the state is saved.

    Returns:
      (next state, device metrics, seconds by phase, what was answered).
    """
    source, begun = self.source, time.monotonic()
    stale = source.started > 0
    if not stale:
      self._start(state, state.step)
    timing = wait_for_update(self._updating)
    begun = time.monotonic() if timing else begun
    prompts, outs = source.submit(state.control)
    generated = time.monotonic()
    if self.ahead and more:
      self._start(state, state.step + 1)
    static = self.learner, source.n_samples, len(source.part_names)
    batch = self._score(*static, state, prompts, outs, source.sampling)
    answered = source.take()
    verified = time.monotonic()
    timing |= {
      'rollout_s': generated - begun,
      'verify_wait_s': verified - generated,
      'verify_s': source.judged - generated,
      'stale_steps': float(stale),
    }
    rewards = self.to_device((answered.reward, answered.greedy))
    given = batch, *rewards, source.root, source.sampling
    state, metrics = self._learn(self.learner, state, *given)
    self._updating = metrics, verified
    return state, metrics, timing, answered

  def _start(self, state: TrainState, step: jax.Array) -> None:
    """Queues the batch of a step, sampled by the parameters there are now."""
    asked = self.ask and self.ask(state.control, step)[0]
    if self.hints is not None:
      asked = with_hints(self._helped, self.hints, state, asked, self.source)
    how = self.source.sampling
    if self.learner.heat is not None:
      how = heat.heated(state.control, how)
    self.source.start(state.params, step, state.step, asked, sampling=how)


def with_hints(helped, hints: Hints, state, asked, source: HostSource):
  """Gives Questions with the hints of a step; asked None: the source's next.

  Args:
    helped: compiled `Hints.helped`.
  """
  asked = next(source.questions) if asked is None else asked
  prompts = helped(hints, state.control, asked.prompts)
  return asked._replace(prompts=prompts)


def wait_for_update(updating: tuple | None) -> dict[str, float]:
  """Times the update of the step before; the device's queue goes on.

  Args:
    updating: (its metrics, when it was dispatched), or None.
  """
  if updating is None:
    return {}
  metrics, since = updating
  jax.block_until_ready(metrics)
  return {'update_s': time.monotonic() - since}
