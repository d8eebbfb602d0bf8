"""Reports the metrics of runs side by side, each as if it were alone.

If the loss or a gradient of a run is not finite, the run is reported once and
has no further metrics. The other runs do not change.
"""

import contextlib
import math
import time
from collections.abc import Sequence

from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.config import Run
from jaxrl_reason.run import loop, train
from jaxrl_reason.run.process import compile_log, goodput
from jaxrl_reason.run.records import events, journal, lines
from jaxrl_reason.run.records import metrics as metrics_lib

# The recorded end of a diverged run.
DIVERGED = 'FloatingPointError'


class Telling:
  """The journal of several runs (`journal.Journal` has the meanings).

  Attributes:
    diverged: numbers of the diverged runs.
  """

  def __init__(
    self,
    configs: Sequence[Run],
    workdirs: Sequence[epath.Path],
    place: loop.Place,
    compiled: compile_log.Log,
    spent: goodput.Spent,
  ):
    """Args: place: the position from which they continue."""
    resumed = place.record is not None
    self._workdirs, self._compiled, self._spent = workdirs, compiled, spent
    self._steps = configs[0].rl.steps
    ended = [events.last_end(path) for path in workdirs]
    self.diverged = {i for i, how in enumerate(ended) if DIVERGED in how}
    for i, (config, path) in enumerate(zip(configs, workdirs)):
      if i in self.diverged:
        continue  # its recorded end stays
      if not resumed and hosts.is_main():
        lines.move_aside(path)
      values = config.json_values()
      events.write_config(values, path, resumed)
      reached = train.reached(path) if resumed else 0
      events.note(path, 'start', step=place.total, reached=reached)
    self._writers = [
      metrics_lib.Writer(
        path, place.total if resumed else None, owed=place.owes_evaluation
      )
      for path in workdirs
    ]
    self._pending = None
    self._waited, self._begun_s = False, time.monotonic()

  def shown(self, done: int):
    """Shows one bar for all runs."""
    self._bar = journal.bar(f'{len(self._writers)} runs', self._steps, done)
    self.paused()
    return self._bar

  def dispatching(self, other):
    """Reports in the first dispatch that the program is compiled."""
    waited, self._waited = self._waited, True
    if waited:
      return contextlib.nullcontext()
    what = 'compiling the step of all'
    return compile_log.Waiting(what, journal.say, other=other)

  def note(self, total, n, begun, device, host, trained) -> None:
    """Stores an interval for the next `flush`."""
    device, host = begun.before(device, host)
    self._pending = total, n, device, host, trained

  def flush(self) -> None:
    """Writes the last stored interval, a line for each run."""
    if self._pending is None:
      return
    (total, n, device, host, trained), self._pending = self._pending, None
    rewards = []
    for i in range(len(self._writers)):
      own = [{k: x[i] for k, x in m.items()} for m in device]
      values = metrics_lib.to_host(own)
      if not self._finite(i, values, trained, total):
        continue
      values.pop('nonfinite_leaf_max')
      rewards.append(values['reward_mean'])
      self._write(i, total, n, values, host)
    mean = math.fsum(rewards) / max(len(rewards), 1)
    self._bar.set_postfix_str(f'reward_mean {mean:.3f}', refresh=False)
    self._bar.update(n)
    self.paused()

  def _finite(
    self, i: int, values: dict, trained: list[str], step: int
  ) -> bool:
    """Returns whether a run is finite; reports the first time it is not."""
    if i not in self.diverged:
      try:
        metrics_lib.check_finite(values, trained, step)
        return True
      except FloatingPointError as e:
        self.diverged.add(i)
        events.note_failure(self._workdirs[i], e)
        journal.say(f'{self._workdirs[i].name}: {e}')
    return False

  def _write(self, i: int, total: int, n: int, values: dict, host) -> None:
    step_s = (time.monotonic() - self._begun_s) / n / len(self._writers)
    out = {f'train/{k}': v for k, v in values.items()}
    # Seconds per run; all runs together take this long.
    out |= {'perf/step_s': step_s} | metrics_lib.memory()
    out['perf/data_s'] = host[-1]['perf/data_s']
    self._writers[i].write(total, 'rl', out | self._spent.metrics())

  def evaluated(self, total: int, values: Sequence[dict]) -> None:
    """Writes an evaluation of each run."""
    for i, own in enumerate(values):
      if i not in self.diverged:
        self._writers[i].write(total, 'rl', own)

  def sync(self) -> None:
    """Waits until all lines are on disk."""
    for writer in self._writers:
      writer.sync()

  def paused(self) -> None:
    """Excludes the time until now from the next timing."""
    self._begun_s = time.monotonic()

  def close(self, stopped: bool) -> None:
    """Closes the files; records that a run was stopped or diverged."""
    for i, writer in enumerate(self._writers):
      writer.close()
      if stopped and i not in self.diverged:
        events.note(self._workdirs[i], 'end', how='signal')
