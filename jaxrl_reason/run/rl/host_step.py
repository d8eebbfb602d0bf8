"""The host side of an RL step: verifiers in Python between programs.

  one round:       start -> submit -> (verifier pool) -> score -> take -> learn
  several rounds:  start -> submit -> (verifier pool) -> take -> add, as long as
                   a round is needed; then finish -> learn

With one round, reference and old log-probs are computed while the last piece is
verified. On TPUs and CPUs, the update of the previous step runs while the first
piece of this step waits in the queue. On a GPU, the call that queues sampling
returns when sampling is almost done, so the step waits for the update first.
Samples come from the parameters that the step updates. With `ahead`, the next
batch is generated while this batch is verified, with the parameters before this
update. That batch is one version old, and the device never waits for a
verifier.

With several rounds the functions of `rollouts.rounds` are those of the compiled
step. A round is generated while the one before it is verified as soon as the
verdicts so far show that it is needed.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Prompts, TrainState, Trajectories
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts import rounds
from jaxrl_reason.rollouts.host import Answered, Asked, HostSource
from jaxrl_reason.rollouts.rounds import Rounds
from jaxrl_reason.run.rl import programs
from jaxrl_reason.update.learner import Learner


class Made(NamedTuple):
  """The result of a step: the next state, metrics of the device, seconds by
  phase, and the verdicts of every round.
  """

  state: TrainState
  metrics: dict[str, Any]
  seconds: dict[str, float]
  answers: list[Answered]


@dataclasses.dataclass
class HostStep:
  """Runs RL steps with verifiers in Python.

  Attributes:
    source: of the rollouts of a round.
    learner: of the update.
    questions: (control, step) -> the problems of a step, in the form that the
      kinds of rounds read.
    kinds: of rounds, innermost first.
    to_device: host arrays [N,...] to the mesh.
    where: shardings of the state, or None.
    ahead: start the next batch before the update of this one, if another step
      follows. The loss must then allow samples of an earlier policy.
  """

  source: HostSource
  learner: Learner
  questions: Callable[[dict | None, jax.Array], Asked]
  kinds: tuple[Rounds, ...] = ()
  to_device: Callable = trees.identity
  where: object = None
  ahead: bool = False

  def __post_init__(self):
    self._one_round = all(kind.only_asks for kind in self.kinds)
    self._score = jax.jit(programs.rl_score, static_argnums=(0, 1, 2))
    self._learn = programs.updating(programs.rl_learn, 1, self.where)
    self._learn_rounds = programs.updating(
      programs.rl_learn_rounds, 1, self.where
    )
    self._round = jax.jit(programs.rl_round, static_argnums=0)
    self._ask = jax.jit(programs.rl_ask, static_argnums=0)
    self._add = jax.jit(programs.rl_add, static_argnums=0)
    self._finish = jax.jit(rounds.finish, static_argnums=0)
    self._dead = jax.jit(programs.rl_dead, static_argnums=0)
    self._updating = None  # (metrics, when dispatched) of the step before

  def __call__(self, state: TrainState, more: bool = False) -> Made:
    """Runs one step.

    Args:
      more: true if another step follows before the state is saved.
    """
    return self._step(state, more) if self._one_round else self._rounds(state)

  # --- one round -----------------------------------------------------------

  def _step(self, state: TrainState, more: bool) -> Made:
    source, stale = self.source, self.source.started > 0
    asked = None if stale else self._asked(state, state.step)
    seconds = self._updated() if queuing_waits() else {}
    begun = time.monotonic()
    if asked is not None:
      self._start(state, asked, source.root, state.step, queuing_waits())
    waited = self._updated()
    begun = time.monotonic() if waited else begun
    seconds |= waited
    prompts, outs = source.submit(state.control)
    sampling = source.sampled_with
    submitted = time.monotonic()
    if self.ahead and more:
      step = state.step + 1
      self._start(state, self._asked(state, step), source.root, step)
    generated = time.monotonic()
    static = self.learner, source.n_samples, len(source.part_names)
    batch = self._score(*static, state, prompts, outs, sampling)
    answered = source.take()
    verified = time.monotonic()
    seconds |= {
      'rollout_s': generated - begun,
      'verify_wait_s': verified - generated,
      'verify_s': source.judged - submitted,
      'stale_steps': float(stale),
    }
    rewards = self.to_device((answered.reward, answered.greedy))
    given = batch, *rewards, source.root, sampling
    state, metrics = self._learn(self.learner, state, *given)
    self._updating = metrics, verified
    return Made(state, metrics, seconds, [answered])

  def _updated(self) -> dict[str, float]:
    """Waits for the last update, unless an earlier call has, and returns its
    seconds.
    """
    if self._updating is None:
      return {}
    (metrics, since), self._updating = self._updating, None
    jax.block_until_ready(metrics)
    return {'update_s': time.monotonic() - since}

  def _asked(self, state: TrainState, step: jax.Array) -> Asked:
    """Returns the problems of a step's only round."""
    asked = self.questions(state.control, step)
    for kind in reversed(self.kinds):
      prompts = self._ask(kind, state.control, (), asked.prompts, 0)
      asked = asked._replace(prompts=prompts)
    return asked

  def _start(self, state, asked: Asked, root, step, submit_each=False) -> None:
    """Starts a round, sampled with the current parameters.

    Args:
      submit_each: see `HostSource.start`.
    """
    given = state.params, step, state.step, asked, root, self._sampling(state)
    self.source.start(*given, state.control, submit_each=submit_each)

  def _sampling(self, state: TrainState) -> Sampling:
    """Returns the settings of samples that are drawn by a state."""
    return self.learner.chain.sampling(state.control, self.source.sampling)

  # --- several rounds ------------------------------------------------------

  def _rounds(self, state: TrainState) -> Made:
    seconds = self._updated()
    asked, source = self.questions(state.control, state.step), self.source
    step = _Collected(state, asked.problem)
    found = self._collect(step, len(self.kinds) - 1, asked.prompts, source.root)
    given = found, source.root, self._sampling(state)
    state, metrics = self._learn_rounds(self.learner, state, *given)
    self._updating = metrics, time.monotonic()
    return Made(state, metrics, seconds | step.seconds, step.answers)

  def _collect(
    self, step: '_Collected', level: int, prompts: Prompts, root: jax.Array
  ) -> Trajectories:
    """Generates and verifies the rounds of the kind at a level, and of the
    kinds inside it.
    """
    if level < 0:
      self._start_round(step, prompts, root)
      return self._take_round(step)
    kind, control, tally = self.kinds[level], step.state.control, None
    for i in range(kind.n):
      if not self.source.started:  # otherwise it was started ahead
        carry = tally.carry if tally and kind.fixed else ()
        asked = self._ask(kind, control, carry, prompts, i)
        key = rounds.key_of_round(root, kind.name, i)
      if level > 0:
        found = self._collect(step, level - 1, asked, key)
      else:
        if not self.source.started:
          self._start_round(step, asked, key)
        follow = None
        if not kind.fixed and i + 1 < kind.n:
          follow = kind, tally, prompts, root, i + 1
        found = self._take_round(step, follow)
      tally, needed = self._add(kind, control, tally, found, i)
      if not kind.fixed and not bool(needed):
        break
    return self._finish(kind, control, tally, self.source.root, step.state.step)

  def _start_round(self, step: '_Collected', prompts: Prompts, root) -> None:
    asked, begun = Asked(prompts, step.problem), time.monotonic()
    self._start(step.state, asked, root, step.state.step, queuing_waits())
    step.seconds['rollout_s'] += time.monotonic() - begun

  def _take_round(
    self, step: '_Collected', follow: tuple | None = None
  ) -> Trajectories:
    """Verifies the round that was started.

    Args:
      follow: (kind, tally, prompts, root, i) of the round after it. That round
        is started before the last verdicts arrive, if no verdict can make it
        unnecessary.
    """
    begun = time.monotonic()
    prompts, outs = self.source.submit(step.state.control)
    generated = time.monotonic()
    needed = follow and self._is_needed(step, *follow[:2], prompts, outs)
    waited = time.monotonic() - generated
    if needed:
      kind, tally, asked, root, i = follow
      asked = self._ask(kind, step.state.control, None, asked, i)
      key = rounds.key_of_round(root, kind.name, i)
      self._start_round(step, asked, key)
      step.seconds['rounds_ahead'] += 1
    waiting = time.monotonic()
    answered = self.source.take()
    step.seconds['rollout_s'] += generated - begun
    step.seconds['verify_wait_s'] += waited + time.monotonic() - waiting
    rewards = self.to_device((answered.reward, answered.greedy, answered.demo))
    rows = sum(len(a.reward.total) for a in step.answers)
    step.answers.append(answered)
    return self._round(self.source.n_samples, prompts, outs, rewards, rows)

  def _is_needed(self, step: '_Collected', kind, tally, prompts, outs) -> bool:
    """Returns whether another round is needed for any verdicts of the last
    piece.
    """
    carry, pieces = tally and tally.carry, len(outs)
    spare = int(kind.spare(step.state.control, carry))
    for i, out in enumerate(outs[:-1]):
      asked = trees.take(prompts, slice(i, None, pieces))
      reward = self.to_device(self.source.piece(i))
      spare -= int(self._dead(kind, Trajectories(asked, out, reward)))
      if spare < 0:
        return True
    return False


@dataclasses.dataclass
class _Collected:
  """The state of an unfinished step of several rounds."""

  state: TrainState
  problem: Callable[[int], dict]
  answers: list[Answered] = dataclasses.field(default_factory=list)
  seconds: dict[str, float] = dataclasses.field(
    default_factory=lambda: dict.fromkeys(
      ('rollout_s', 'verify_wait_s', 'rounds_ahead'), 0.0
    )
  )


def queuing_waits() -> bool:
  """Returns whether the call that queues sampling waits for it: a GPU's host
  reads the condition of a loop after every token.
  """
  return sharding.platform() == 'gpu'
