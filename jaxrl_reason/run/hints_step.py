"""The host side of an RL step that asks problems again with a hint, where no
sample was right: `rollouts.hints` with rewards in Python.

  start -> submit -> take without hints; where some problem was missed the same
  with hints; then the two are put together and learnt from
"""

import dataclasses
import time
from collections.abc import Callable, Iterator

import jax

from jaxrl_reason import trees
from jaxrl_reason.base import TrainState
from jaxrl_reason.rollouts import refill
from jaxrl_reason.rollouts.hints import Hints
from jaxrl_reason.rollouts.host import Answered, HostSource, Questions
from jaxrl_reason.rollouts.replay import Replay
from jaxrl_reason.run import heat, programs
from jaxrl_reason.run.host_step import wait_for_update
from jaxrl_reason.update.learner import Learner


@dataclasses.dataclass
class HintsStep:
  """Makes one RL step with host rewards, and hints where they are needed.

  Attributes:
    hints: which, and how long; source, steps, replay, learner, to_device,
      where, ask: as of `rounds_step.RoundsStep`.
  """

  hints: Hints
  source: HostSource
  steps: Iterator[list[Questions]]
  replay: Replay | None
  learner: Learner
  to_device: Callable = trees.same
  where: object = None
  ask: Callable | None = None

  def __post_init__(self):
    self._views = jax.jit(Hints.views, static_argnums=0)
    self._missed = jax.jit(programs.rl_missed, static_argnums=0)
    self._learn = programs.updating(programs.rl_learn_hints, 3, self.where)
    self._updating = None  # (metrics, when dispatched) of the step before

  def __call__(
    self, state: TrainState, more: bool = False
  ) -> tuple[TrainState, dict, dict, list[Answered]]:
    """Makes one step.

    Returns:
      (next state, device metrics, seconds by phase, answers by round).
    """
    del more
    timing, begun = wait_for_update(self._updating), time.monotonic()
    (asked,) = (
      next(self.steps)
      if self.ask is None
      else self.ask(state.control, state.step)
    )
    views = self._views(self.hints, state.control, asked.prompts)
    rounds, answers = [], []
    for index, prompts in enumerate(views):
      found, answered = self._round(state, asked, prompts, index)
      rounds.append(found)
      answers.append(answered)
      if not bool(self._missed(self.source.n_samples, found).any()):
        break
    timing |= {'rollout_s': time.monotonic() - begun}
    # The same program with or without a second round.
    rounds = rounds if len(rounds) > 1 else 2 * rounds
    static = self.learner, self.replay, self.source.n_samples
    given = state, rounds, self.source.root, self.source.sampling
    state, metrics = self._learn(*static, *given)
    self._updating = metrics, time.monotonic()
    return state, metrics, timing, answers

  def _round(self, state, asked: Questions, prompts, index: int) -> tuple:
    """Generates and verifies one round: (prompts, Rollouts of the parts,
    reward, greedy one), and what was answered.
    """
    root = refill.key_of_round(self.source.root, index)
    how = self.source.sampling
    if self.learner.heat is not None:
      how = heat.heated(state.control, how)
    questions = asked._replace(prompts=prompts)
    given = state.params, state.step, state.step, questions, root
    self.source.start(*given, how)
    prompts, outs = self.source.submit(state.control)
    answered = self.source.take()
    rewards = self.to_device((answered.reward, answered.greedy))
    return (prompts, outs, *rewards), answered
