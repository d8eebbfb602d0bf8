"""Reports a stage: metrics, a progress bar, and lines on the terminal.

The metrics of an interval are read after the next interval was dispatched, so
the device never waits for them.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import tqdm

from jaxrl_reason import hosts
from jaxrl_reason.base import Model
from jaxrl_reason.reports import line_alarms
from jaxrl_reason.run import stage_list as staging
from jaxrl_reason.run.process import goodput, logs
from jaxrl_reason.run.process.compile_log import Log, Waiting
from jaxrl_reason.run.records import metrics as metrics_lib


def say(text: str) -> None:
  """Prints a line to standard error, above any bar, on process 0; every process
  writes it to its log.
  """
  logs.note(text)
  if hosts.is_main():
    tqdm.tqdm.write(text, file=sys.stderr)


def in_notebook() -> bool:
  """Returns True if standard error is the output of a notebook cell."""
  return type(sys.stderr).__module__ == 'ipykernel.iostream'


def aside(text: str) -> None:
  """Prints a line, except in a notebook: there only the log has it."""
  if in_notebook():
    logs.note(text)
  else:
    say(text)


class _Lines:
  """Writes each state of a bar as a line, if there is no terminal."""

  def write(self, text: str):
    text = text.strip()
    if text:
      print(text, file=sys.stderr, flush=True)

  def flush(self):
    sys.stderr.flush()


def bar(name: str, steps: int, done: int, unit: str = 'step') -> tqdm.tqdm:
  """Makes the progress bar of a stage, or of `total` other units."""
  # The output of a notebook shows a bar, as a terminal does.
  terminal = sys.stderr.isatty() or in_notebook()
  return tqdm.tqdm(
    total=steps,
    initial=done,
    desc=name,
    unit=unit,
    mininterval=0.5 if terminal else 15,
    file=sys.stderr if terminal else _Lines(),
    disable=not hosts.is_main(),
  )


def evaluation(values: Mapping[str, float]) -> str:
  """Returns the main metrics of an evaluation in one line; of sources within a
  split only pass@1.
  """
  shown: list[str] = []
  sources: dict[str, list[str]] = {}
  for key, value in values.items():
    *place, metric = key.removeprefix('eval/').split('/')
    if len(place) < 2 and metric.endswith(('pass@1', 'greedy', 'preferred')):
      shown.append(f'{"/".join([*place, metric])} {value:.3f}')
    elif len(place) == 2 and metric == 'pass@1':
      sources.setdefault(place[0], []).append(f'{place[1]} {value:.3f}')
  shown += [f'{k}/*/pass@1 ({", ".join(v)})' for k, v in sources.items()]
  return ', '.join(shown)


class Journal:
  """Writes one stage's metrics.

  Attributes:
    nll: mean negative log-likelihood of the last interval read.
  """

  def __init__(
    self,
    planned: staging.Planned,
    *,
    writer: metrics_lib.Writer,
    compiled: Log,
    model: Model,
    started: float,
    spent: goodput.Spent,
    saved: Callable[[], dict[str, float]],
    earlier: Iterable[dict] = (),
  ):
    """Args:
    started: time.monotonic() of the run's start.
    spent: seconds by activity; saved: metrics of the last save.
    earlier: lines of metrics that the run wrote before it was resumed.
    """
    self._config, self._kind = planned.config, planned.kind
    self._stage, self._model = planned.name, model
    self._writer, self._compiled = writer, compiled
    self._started, self._spent, self._saved = started, spent, saved
    self._pending = None  # the last interval, still on the device
    self._flushed = self._noted = time.monotonic()
    self._cpu_s = time.process_time()
    self._unseen = True  # the programs of the stage, all compiled by then
    self._dispatched = False
    self._empty = False
    self._alarms = line_alarms.LineAlarms()
    for row in earlier:
      if row.get('stage') == self._stage and self._kind == 'rl':
        self._alarms.add(row['step'], row)
    self.nll = float('inf')

  def shown(self, done: int) -> tqdm.tqdm:
    """Shows the bar, and starts the clock. A context manager, so that the bar
    is closed before an error is printed.
    """
    section, name = self._config[self._kind], self._stage
    if limit := getattr(section, 'stop_loss', 0.0):
      name = f'{name} until nll {limit:g}'
    self._bar = bar(name, section.steps, done)
    self.paused()
    return self._bar

  def complete(self) -> None:
    """Ends the bar of a stage whose stop_loss is reached before its steps."""
    self._bar.total = self._bar.n

  def dispatching(self, other: Callable[[], str] | None):
    """Logs every ten seconds of a dispatch what it waits for: in the stage's
    first one its programs are being compiled, in each one the text of `other`.

    Args:
      other: returns a text about another reason to wait, or ''; None: never.
    """
    what = ''
    if not self._dispatched:
      self._dispatched = True
      hosts.meet()
      what = f'{self._stage}: compiling the first step'
    if not what and other is None:
      return contextlib.nullcontext()
    return Waiting(what, say, other=other)

  def note(
    self,
    total: int,
    n: int,
    begun: metrics_lib.Begun,
    device: list,
    host: list,
    trained: list[str],
  ) -> None:
    """Stores an interval that ends at step `total` of the run, for the next
    `flush`.

    Args:
      n: its steps in this run; begun: its dispatches in the previous run.
      device, host: metrics of this run's dispatches.
      trained: paths of the trained parameters, for an error to name.
    """
    device, host = begun.before(device, host)
    now = time.monotonic()
    own_s, self._noted = (now - self._noted) / n, now
    self._pending = total, n, device, _over_hosts(host, own_s), trained

  def flush(self) -> None:
    """Writes the last stored interval, if there is one; waits for the device.

    Raises:
      FloatingPointError: the loss or a gradient is not finite.
    """
    if self._pending is None:
      return
    total, n, device, host, trained = self._pending
    self._pending = None
    values = metrics_lib.to_host(device)
    metrics_lib.check_finite(values, trained, total)
    values.pop('nonfinite_leaf_max')
    now = time.monotonic()
    step_s, self._flushed = (now - self._flushed) / n, now
    out = {f'train/{k}': v for k, v in values.items()} | host
    out |= self._speed(values, step_s) | self._spent.metrics() | self._saved()
    before, self._cpu_s = self._cpu_s, time.process_time()
    out['perf/cpu_s'] = (self._cpu_s - before) / n
    self._writer.write(total, self._stage, out)
    shown = 'reward_mean' if self._kind == 'rl' else 'loss'
    self.nll = values.get('nll', float('inf'))  # not of losses of logits
    told = f'{shown} {values[shown]:.3f}'
    logs.note(f'{self._stage} step {total}: {told}, {step_s:.3g} s a step')
    self._bar.set_postfix_str(told, refresh=False)
    self._bar.update(n)
    self._explain(total, n, values)
    if self._kind == 'rl':
      self.check(total, out)
    if self._unseen:
      aside(self._compiled.table())
    self._unseen = False

  def check(self, total: int, values: Mapping[str, float]) -> None:
    """Prints the alarms that begin with numbers of step `total`."""
    for text in self._alarms.add(total, values):
      say(f'alarm at {self._stage} step {total}: {text}')

  def _explain(self, total: int, n: int, values: dict[str, float]) -> None:
    """Warns once if a filter leaves no group to train on."""
    empty = values.get('refill/filled', 1.0) == 0
    if empty and not self._empty:
      c = self._config.rl
      say(
        f'steps {total - n + 1} to {total}: rl.filter={c.filter!r} left none '
        f'of the groups of {values["refill/rounds"]:g} rounds a step, so that '
        f'nothing was learnt; reward_mean is {values["reward_mean"]:.3g}. Use '
        'easier problems, a longer warm start or more rl.samples.'
      )
    self._empty = empty

  def paused(self) -> None:
    """Excludes the time since the last `flush` from the next timing."""
    self._flushed = self._noted = time.monotonic()
    self._cpu_s = time.process_time()

  def evaluated(
    self, total: int, values: dict[str, float], text: str = ''
  ) -> None:
    """Writes the metrics of an evaluation and its texts; prints a line."""
    self._writer.write(total, self._stage, values)
    if self._kind == 'rl':
      self.check(total, values)
    if text:
      self._writer.text(total, 'samples', text)
    since = time.monotonic() - self._started
    say(f'[{since:5.0f} s] {self._stage} step {total}: {evaluation(values)}')

  def sync(self) -> None:
    """Waits until all metrics are on disk: no checkpoint may be newer than its
    metrics.
    """
    self._writer.sync()

  def _speed(self, values: dict, step_s: float) -> dict[str, float]:
    out = {'perf/step_s': step_s} | metrics_lib.memory()
    if 'tokens' not in values:
      return out
    out['perf/tokens_per_s'] = values['tokens'] / step_s
    if peak := metrics_lib.peak_flops():
      context = self._config.data.prompt_len + values['length_mean'] / 2
      per_token = self._model.flops_per_token(context)
      # One forward to sample, three forwards' worth to learn.
      out['perf/mfu'] = 4 * per_token * values['tokens'] / step_s / peak
    return out


def _over_hosts(host: list[dict], step_s: float) -> dict[str, float]:
  """Returns an interval's metrics of this host, and of all hosts.

  Args:
    step_s: of this host.
  """
  own = {}
  for key in {k: None for h in host for k in h}:
    seen = [h[key] for h in host if key in h]
    # Pool and data metrics are totals; seconds are per step.
    own[key] = float(np.mean(seen)) if key.startswith('perf/') else seen[-1]
  own['perf/step_s'] = step_s
  told = hosts.gather(own)
  return metrics_lib.over_hosts(told) | metrics_lib.stragglers(told)
