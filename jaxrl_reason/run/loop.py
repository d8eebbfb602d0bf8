"""One stage of a run: draw, dispatch, read the metrics of the interval before,
evaluate, save. `train` strings stages together.
"""

import dataclasses

import jax
import ml_collections

from jaxrl_reason import trees
from jaxrl_reason.base import TrainState
from jaxrl_reason.checkpoints import manager
from jaxrl_reason.run import compile_log
from jaxrl_reason.run.evaluator import Evaluator
from jaxrl_reason.run.journal import Journal
from jaxrl_reason.run.rollout_files import RolloutFiles
from jaxrl_reason.run.signals import Stopping
from jaxrl_reason.run.stages import Stage


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a run stands.

  Attributes:
    stage: its number; done: its steps; total: those since the run began.
    ended: whether the stage was over, by its steps or its stop_loss.
    record, state: the checkpoint's, or None.
  """

  stage: int = 0
  done: int = 0
  total: int = 0
  ended: bool = False
  record: dict | None = None
  state: TrainState | None = None


class Loop:
  """Runs one stage, an interval of `log_every` steps at a time."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    name: str,
    index: int,
    stage: Stage,
    *,
    journal: Journal,
    evaluator: Evaluator,
    checkpoints: manager.Checkpoints,
    stopping: Stopping,
    rollouts: RolloutFiles,
    profile_dir: str,
  ):
    """Args: index: of the stage in config.stages."""
    self.config, self.name, self.index, self.stage = config, name, index, stage
    self.journal, self.evaluator = journal, evaluator
    self.checkpoints, self.stopping = checkpoints, stopping
    self.rollouts = rollouts
    self.profiler = compile_log.Profiler(config.profile.steps, profile_dir)

  def run(self, state: TrainState, place: Place) -> TrainState:
    """Runs the stage from `place` to its end, or to a signal."""
    done, total, self.ended = place.done, place.total, place.ended
    steps = self.config[self.name].steps
    if total == 0 or (place.record or {}).get('owes_evaluation'):
      self.evaluate(state, total)
    with self.journal.shown(done):
      self.stopping.agree()
      while not (self.ended or self.stopping.agreed):
        n = min(self.config.log_every, steps - done)
        state = self.interval(state, n, total)
        done, total = done + n, total + n
        self.boundary(state, done, total)
    self.profiler.close()
    self.stage.close()
    return state

  def interval(self, state: TrainState, n: int, total: int) -> TrainState:
    """Dispatches n steps, and reads the metrics of the n before meanwhile."""
    k, device, host = self.stage.steps_per_dispatch, [], []
    for i in range(total, total + n, k):
      self.profiler.before(range(i + 1, i + 1 + k))
      with (
        self.journal.first_dispatch(),
        jax.profiler.StepTraceAnnotation(self.name, step_num=i + 1),
      ):
        state, m, h = self.stage.dispatch(state, i + k < total + n)
      self.profiler.after(m)
      self.rollouts.note(i, self.name, m.pop('rollouts', None))
      device.append(m)
      host.append(h)
      self.journal.flush()  # the device has work: now read the last interval
    trained, _ = trees.split(state.params, self.stage.learner.trainable)
    self.journal.note(total + n, n, device, host, list(trees.flatten(trained)))
    return state

  def boundary(self, state: TrainState, done: int, total: int) -> None:
    """Evaluates and saves where due; metrics are checked before a save."""
    c, stop = self.config, self.stopping.agree()
    limit = 0.0 if self.name == 'rl' else c[self.name].stop_loss
    if limit:
      self.journal.flush()  # the price of the limit: a wait per interval
    reached = limit > 0 and self.journal.loss <= limit
    self.ended = done == c[self.name].steps or reached
    save = self.ended or stop or done % c.checkpoint.every == 0
    due = self.ended or done % c.eval.every == 0
    # A signal leaves seconds: the resumed run evaluates instead.
    owed = due and stop and not self.ended
    if save or due:
      self.journal.flush()
      self.rollouts.flush()
    if due and not owed:
      self.evaluate(state, total)
    if save:
      self.save(state, done, total, owes_evaluation=owed, reached=reached)
    if save or due:
      self.journal.paused()

  def evaluate(self, state: TrainState, total: int) -> None:
    values = self.evaluator(state.params, total, self.name)
    self.journal.evaluated(total, values)

  def save(self, state: TrainState, done: int, total: int, **facts) -> None:
    stats = self.stage.stats
    record = {
      'stage': self.index,
      'done': done,
      'finished': self.ended,
      'data': self.stage.data.get_state(),
      'stats': stats and stats.get_state(),
    }
    self.journal.sync()
    self.checkpoints.save(total, state, record | facts)


def ended(config: ml_collections.ConfigDict, record: dict) -> bool:
  """Whether the stage of a checkpoint's record is over: a stage that was given
  more steps since then goes on.
  """
  if not record['finished']:
    return False
  c = config[config.stages[record['stage']]]
  # Records from before `reached` was noted: its limit ended the stage if any.
  reached = record.get('reached', bool(c.get('stop_loss', 0.0)))
  return reached or record['done'] >= c.steps
