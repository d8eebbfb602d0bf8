"""One stage of a run: read data, dispatch, read the metrics of the interval
before, evaluate, save. `train` runs one stage after another.
"""

import contextlib
import dataclasses
from collections.abc import Callable

import jax

from jaxrl_reason import hosts, trees
from jaxrl_reason.base import TrainState
from jaxrl_reason.checkpoints import manager
from jaxrl_reason.config.training import Training
from jaxrl_reason.run import stage_list as staging
from jaxrl_reason.run.evaluator import Evaluator
from jaxrl_reason.run.process import compile_log, goodput
from jaxrl_reason.run.process.signals import Stopping
from jaxrl_reason.run.process.watchdog import Watchdog
from jaxrl_reason.run.records import metrics as metrics_lib
from jaxrl_reason.run.records.journal import Journal
from jaxrl_reason.run.records.rollout_files import RolloutFiles
from jaxrl_reason.run.stages import Stage


@dataclasses.dataclass(frozen=True)
class Place:
  """The position of a run.

  Attributes:
    stage: its number; done: its steps; total: those since the run began.
    ended: true if the stage was over, by its steps or its stop_loss.
    record, state: the checkpoint's, or None.
    reduced: true if the stage was not over, and its `steps` is now `done` or
      less.
  """

  stage: int = 0
  done: int = 0
  total: int = 0
  ended: bool = False
  record: dict | None = None
  state: TrainState | None = None
  reduced: bool = False

  @property
  def owes_evaluation(self) -> bool:
    """Returns True if the evaluation that is due here is not made: a signal
    prevented it, or the stage ends here because its `steps` was reduced.
    """
    owed = self.record and self.record.get('owes_evaluation')
    return self.reduced or bool(owed)


class Loop:
  """Runs one stage, an interval of `log_every` steps at a time."""

  def __init__(
    self,
    planned: staging.Planned,
    index: int,
    stage: Stage,
    *,
    journal: Journal,
    evaluator: Evaluator,
    checkpoints: manager.Checkpoints,
    stopping: Stopping,
    spent: goodput.Spent,
    watchdog: Watchdog,
    rollouts: RolloutFiles,
    profile_dir: str,
  ):
    """Args: index: of the stage in config.stages."""
    self.spent, self.watchdog = spent, watchdog
    self.config, self.kind = planned.config, planned.kind
    self.name, self.index, self.stage = planned.name, index, stage
    self.journal, self.evaluator = journal, evaluator
    self.checkpoints, self.stopping = checkpoints, stopping
    self.rollouts = rollouts
    steps = self.config.profile.steps
    self.profiler = compile_log.Profiler(steps, profile_dir)

  def run(self, state: TrainState, place: Place) -> TrainState:
    """Runs the stage from `place` to its end, or to a signal."""
    with contextlib.closing(self.profiler):
      self.done, self.total = place.done, place.total
      # Past its end already: `steps` of the stage was reduced.
      self.ended = place.ended or place.done >= self._own.steps
      self.begun = metrics_lib.Begun.of(place.record)
      self.watchdog.forget()
      trained = self.stage.learner.trained(state)
      self._trained = list(trees.flatten(trained))
      stop = self.stopping.reached()
      if (self.total == 0 or place.owes_evaluation) and not stop:
        stop = not self.evaluate(state)
      if place.reduced and not stop:
        # A checkpoint of the workdir stays, as the end of the stage.
        self.save(state, self.checkpoints.save, reached=False)
      with self.journal.shown(self.done):
        while not (self.ended or stop):
          state = self.interval(state, self._steps_left())
          stop = self.stopping.agreed
      return state

  @property
  def _own(self) -> Training:
    """Returns the section of the stage's kind."""
    return self.config[self.kind]

  def _steps_left(self) -> int:
    """Counts the steps to the next line of metrics or the stage's end."""
    c, k = self.config, self.stage.steps_per_dispatch
    # Counted from the stage's start, since saves and evaluations are due at
    # multiples of log_every. A resume may begin between two of them.
    n = c.log_every - self.done % c.log_every
    n = min(n, self._own.steps - self.done)
    if n % k:
      raise ValueError(
        f'the checkpoint is of step {self.done} of stage {self.name}, {n} '
        f'steps before a line of metrics: {self.kind}.steps_per_dispatch={k} '
        'does not divide them; set it to what it was, or to 1'
      )
    return n

  def interval(self, state: TrainState, n: int) -> TrainState:
    """Runs the n steps up to the next line of metrics, evaluates and saves
    if due. On a signal, it saves after the steps so far.
    """
    with self.spent.on('train'):
      state, device, host = self._steps(state, n)
    k = self.stage.steps_per_dispatch
    if k * len(device) < n:
      begun = self.begun.and_then(device, host, k)
      self.cut(state, begun, self.checkpoints.save)
      return state
    begun, self.begun = self.begun, metrics_lib.Begun()
    self.journal.note(self.total, n, begun, device, host, self._trained)
    self.boundary(state, self.stopping.agreed)
    return state

  def _steps(self, state: TrainState, n: int) -> tuple:
    """Returns (state, device metrics, host metrics) of n steps, or of the steps
    before a signal.
    """
    device, host = [], []
    for last in reversed(range(0, n, self.stage.steps_per_dispatch)):
      with self.watchdog.watched('steps'):
        state, m, h = self.dispatch(state, last > 0)
        # One dispatch waits in the device's queue: enough to keep it busy, and
        # a signal waits for no more than that.
        jax.block_until_ready(device[-1:])
      device.append(m)
      host.append(h)
      stop = self.stopping.reached()
      # Unfinished rounds (`rl.staleness`) cannot be saved, so they are
      # finished.
      if self.stage.under_way():
        continue
      if stop:
        break
      if last and self.checkpoints.near_due(self.total):
        begun = self.begun.and_then(device, host, self.stage.steps_per_dispatch)
        self.cut(state, begun, self.checkpoints.save_near)
    return state, device, host

  def dispatch(self, state: TrainState, more: bool) -> tuple:
    """Dispatches the next steps; reads the last interval's metrics meanwhile.

    Args:
      more: whether another dispatch follows before the state is saved.
    """
    k, first = self.stage.steps_per_dispatch, self.total + 1
    waited, wait = self.stage.data.seconds, self.stage.wait
    verified = wait.seconds if wait else 0.0
    hosts.at(doing='training')
    self.profiler.before(range(first, first + k))
    with (
      self.journal.dispatching(wait.text if wait else None),
      jax.profiler.StepTraceAnnotation(self.name, step_num=first),
    ):
      state, device, host = self.stage.dispatch(state, more)
    if wait:
      self.spent.count('verification', wait.seconds - verified)
    self.profiler.after(device)
    # The device has work: now read the last interval. This comes before the
    # rollouts, which may wait for the new dispatch.
    self.journal.flush()
    asked = getattr(self.stage.data, 'problems', None)
    told = device.pop('rollouts', None)
    self.rollouts.note(self.total, self.name, told, asked)
    self.done, self.total = self.done + k, self.total + k
    hosts.at(step=self.total)
    waited = self.stage.data.seconds - waited
    return state, device, host | {'perf/data_s': waited / k}

  def cut(self, state: TrainState, begun: metrics_lib.Begun, keep) -> None:
    """Saves inside an interval; the resumed run writes its line.

    Args:
      keep: see `save`.
    """
    self.rollouts.flush()
    metrics_lib.check_finite(
      metrics_lib.to_host(begun.device), self._trained, self.total
    )
    self.save(state, keep, begun=begun.record())

  def boundary(self, state: TrainState, stop: bool) -> None:
    """Evaluates and saves where due; metrics are checked before a save."""
    c = self.config
    limit = 0.0 if self.kind == 'rl' else self._own.stop_loss
    if limit:
      self.flush()  # the cost of stop_loss: one wait per interval
    reached = limit > 0 and self.journal.nll <= limit
    self.ended = self.done == self._own.steps or reached
    if reached:
      self.journal.complete()
    save = self.ended or stop or self.done % c.checkpoint.every == 0
    near = not save and self.checkpoints.near_due(self.total)
    due = self.ended or self.done % c.eval.every == 0
    if save or due or near:
      self.flush()
      self.rollouts.flush()
    # After a signal only seconds remain: the resumed run evaluates instead.
    owed = due and (stop or not self.evaluate(state))
    save = save or owed
    if save or near:
      keep = self.checkpoints.save if save else self.checkpoints.save_near
      loss = {'nll': self.journal.nll} if reached else {}
      self.save(state, keep, owes_evaluation=owed, reached=reached, **loss)
    if save or due or near:
      self.journal.paused()

  def flush(self) -> None:
    """Waits for the interval, and writes its line."""
    with self.spent.on('train'), self.watchdog.watched('steps', counted=False):
      self.journal.flush()

  def evaluate(self, state: TrainState) -> bool:
    """Evaluates; returns False if a signal ended the evaluation."""
    hosts.at(step=self.total, doing='evaluating')
    with self.spent.on('evaluation'), self.watchdog.watched('evaluation'):
      hosts.meet()
      values = self.evaluator(
        state.params, self.total, self.name, self.stopping.reached
      )
      if values is not None:
        values |= self.stage.evaluate(state)
    if values is not None:
      self.journal.evaluated(self.total, values, self.evaluator.said)
    return values is not None

  def save(self, state: TrainState, keep: Callable, **facts) -> None:
    """Begins a checkpoint.

    Args:
      keep: function of (step, state, record) that saves to the workdir, or to
        the hosts' disks.
    """
    stats, invalid = self.stage.stats, self.stage.invalid
    record = {
      'stage': self.index,
      'done': self.done,
      'finished': self.ended,
      'data': self.stage.data.get_state(),
      'stats': stats and stats.get_state(),
      'invalid': invalid and invalid.get_state(),
    }
    hosts.at(doing='saving')
    kind = 'save' if keep == self.checkpoints.save else 'emergency'
    with self.spent.on('save'), self.watchdog.watched(kind):
      self.journal.sync()
      keep(self.total, state, record | facts)


def ended(planned: staging.Planned, record: dict) -> bool:
  """Returns whether the stage of a checkpoint's record is over. A stage whose
  `steps` was increased, or `stop_loss` reduced, since then continues.
  """
  if not record['finished']:
    return False
  c = planned.config[planned.kind]
  limit = getattr(c, 'stop_loss', 0.0)
  # Older records lack `reached`, or the `nll` that reached the stop_loss.
  reached = limit > 0 and record.get('reached', True)
  reached = reached and record.get('nll', limit) <= limit
  return reached or record['done'] >= c.steps
