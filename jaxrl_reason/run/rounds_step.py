"""The host side of an RL step whose groups come from several rounds: refill
and replay with rewards in Python.

  a round: start -> generate -> submit -> (verifier pool) -> take -> places
  as long as groups are missing; then finish -> mix -> learn

The functions are those of the compiled step (`rollouts.refill`, `.replay`). The
next round is generated while this one is verified as soon as it is known to be
needed: where more groups of the parts verified so far are without signal than
there are to spare.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator

import jax

from jaxrl_reason import trees
from jaxrl_reason.base import TrainState, Trajectories
from jaxrl_reason.rollouts import groups, refill
from jaxrl_reason.rollouts.hints import Hints
from jaxrl_reason.rollouts.host import Answered, HostSource, Questions
from jaxrl_reason.rollouts.refill import Places, Refill
from jaxrl_reason.rollouts.replay import Replay
from jaxrl_reason.run import heat, programs
from jaxrl_reason.run.host_step import wait_for_update, with_hints
from jaxrl_reason.update.learner import Learner


@dataclasses.dataclass
class RoundsStep:
  """Makes one RL step with host rewards, in rounds.

  Attributes:
    source: of the rollouts of a round.
    steps: gives the questions of a step, by round.
    refill: which groups count, and how many rounds there may be.
    replay: what is learnt from again, or None.
    learner: what the update is made of.
    to_device: host arrays [N,...] to the mesh.
    where: shardings of the state, or None.
    ask: (control, step) -> the questions of a step, by round, where what is
      known of the problems decides; None: the next of `steps`.
    hints: given with every problem, or None.
  """

  source: HostSource
  steps: Iterator[list[Questions]]
  refill: Refill
  replay: Replay | None
  learner: Learner
  to_device: Callable = trees.same
  where: object = None
  ask: Callable | None = None
  hints: Hints | None = None

  def __post_init__(self):
    self._helped = jax.jit(Hints.helped, static_argnums=0)
    self._add = jax.jit(programs.rl_round, static_argnums=(0, 1))
    self._learn = programs.updating(programs.rl_learn_rounds, 3, self.where)
    self._alive = jax.jit(groups.alive, static_argnums=0)
    self._updating = None  # (metrics, when dispatched) of the step before

  def __call__(
    self, state: TrainState, more: bool = False
  ) -> tuple[TrainState, dict, dict, list[Answered]]:
    """Makes one step.

    Returns:
      (next state, device metrics, seconds by phase, answers by round).
    """
    del more
    timing = wait_for_update(self._updating)
    places, answers, spent = self._rounds(state)
    static = self.learner, self.refill, self.replay
    given = state, places, self.source.root, self.source.sampling
    state, metrics = self._learn(*static, *given)
    self._updating = metrics, time.monotonic()
    return state, metrics, timing | spent, answers

  def _rounds(self, state) -> tuple[Places, list[Answered], dict]:
    """Generates and verifies until no group is missing or no round is left."""
    if self.ask is None:
      first, *others = next(self.steps)
    else:
      first, *others = self.ask(state.control, state.step)
    self._start(state, first, 0)
    places, answers = None, []
    spent = dict.fromkeys(('rollout_s', 'verify_wait_s', 'rounds_ahead'), 0.0)
    for index, later in enumerate([*others, None], 1):
      begun = time.monotonic()
      given = self.source.submit(state.control)
      generated = time.monotonic()
      ahead = later is not None and self._is_short_surely(state, places, *given)
      if ahead:
        self._start(state, later, index)
      answers.append(self.source.take())
      spent['rollout_s'] += generated - begun
      spent['verify_wait_s'] += time.monotonic() - generated
      spent['rounds_ahead'] += ahead
      places, short = self._placed(state, places, *given, answers[-1])
      if not short:
        break
      if not ahead:
        self._start(state, later, index)
    return places, answers, spent

  def _start(self, state: TrainState, questions: Questions, index: int):
    root = refill.key_of_round(self.source.root, index)
    if self.hints is not None:
      given = self.hints, state, questions, self.source
      questions = with_hints(self._helped, *given)
    how = self.source.sampling
    if self.learner.heat is not None:
      how = heat.heated(state.control, how)
    given = state.params, state.step, state.step, questions, root
    self.source.start(*given, how)

  def _placed(self, state, places, prompts, outs, answered: Answered):
    """The places with a round's groups, and whether some are still missing."""
    rewards = self.to_device((answered.reward, answered.greedy))
    static = self.refill, self.source.n_samples
    given = state.control, places, prompts, outs, *rewards
    places, short = self._add(*static, *given)
    return places, bool(short)

  def _is_short_surely(self, state, places, prompts, outs) -> bool:
    """Whether groups will be missing whatever the last part's verdicts are."""
    spare, parts = 0, len(outs)
    if places is not None:
      spare = int(places.live)
    elif self.refill.keep:
      spare = int(state.control['refill']['n'])
    for i, out in enumerate(outs[:-1]):
      asked = trees.take(prompts, slice(i, None, parts))
      reward = self.to_device(self.source.part(i))
      found = Trajectories(asked, out, reward)
      spare -= int((~self._alive(self.refill.keeps, found)).sum())
      if spare < 0:
        return True
    return False
