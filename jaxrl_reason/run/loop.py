"""One stage of a run: dispatch, read metrics one interval late, evaluate,
save. `train.run` strings stages together.
"""

import dataclasses
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from jaxrl_reason import hosts, sharding, trees
from jaxrl_reason.base import TrainState
from jaxrl_reason.checkpoints import pretrained
from jaxrl_reason.evals import accuracy
from jaxrl_reason.models import spec
from jaxrl_reason.models.adapters import frozen
from jaxrl_reason.run import compile_log as programs
from jaxrl_reason.run import metrics as metrics_lib
from jaxrl_reason.run import samples, stages
from jaxrl_reason.update import learner as learner_lib


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a run stands: `done` steps of stage number `stage`; `total` steps
  since it began. `record` and `state` are the checkpoint's, or None.
  """

  stage: int = 0
  done: int = 0
  total: int = 0
  finished: bool = False  # the stage, by its steps or its stop_at
  record: dict | None = None
  state: TrainState | None = None


def init_params(run) -> Any:
  """Weights from the run's folder or the seed, made where they live; adapters
  are always from the seed.
  """
  specs, loaded = run.model.specs, {}
  where = sharding.shardings(specs, run.mesh, sharding.TRAIN_RULES)
  if run.config.model_dir:
    off = run.model.adapters_off or (lambda tree: tree)
    loaded = pretrained.load(run.workdir, run.shape, off(specs), off(where))
  rest = lambda tree: {k: v for k, v in tree.items() if k not in loaded}
  make = lambda key: frozen.init(rest(specs), key)
  make = programs.named('init_params', make)
  made = jax.jit(make, out_shardings=rest(where))
  return loaded | made(jax.random.fold_in(run.root, 0))


def layout(run, learner: learner_lib.Learner, total: int):
  """(how to make a stage's state from parameters, its shapes, its layout)."""
  make = lambda p: learner_lib.init_state(learner, p).replace(
    step=jnp.int32(total)
  )
  template = jax.eval_shape(make, spec.abstract(run.model.specs))
  params = sharding.shardings(run.model.specs, run.mesh, sharding.TRAIN_RULES)
  where = sharding.state_shardings(template, params, run.mesh, learner.offload)
  return make, template, where


def begin(run, learner: learner_lib.Learner, params, total: int) -> TrainState:
  """A stage's first state: given parameters (or fresh ones), new optimizer."""
  make, _, where = layout(run, learner, total)
  params = init_params(run) if params is None else params
  make = programs.named('init_state', make)
  return jax.jit(make, out_shardings=where)(params)


def restore(run) -> Place:
  """Where the newest readable checkpoint stands, its state included."""

  def read(step: int, record: dict) -> Place:
    name = run.config.stages[record['stage']]
    learner = stages.learner(run, name)
    _, template, where = layout(run, learner, step)
    state = run.checkpoints.restore(step, record, template, where)
    return Place(
      record['stage'], record['done'], step, record['finished'], record, state
    )

  found = run.checkpoints.latest(read)
  return found[1] if found else Place()


class Evaluator:
  """Evaluates the held-out and harder splits, and keeps what they said."""

  def __init__(self, run):
    c, d = run.config.eval, run.config.data
    self._run = run
    self._generate = accuracy.make_generate(
      run.model, run.stop, c.samples, d.completion_len, c.temperature
    )
    self._grade = stages.grader(run)
    make = lambda source: accuracy.make_set(
      source, c.problems, run.tokenizer, d.prompt_len
    )
    self._sets = {'heldout': make(run.problems.heldout)}
    if c.harder and run.problems.harder is not None:
      self._sets['harder'] = make(run.problems.harder)

  def __call__(self, params, total: int, stage: str) -> dict[str, float]:
    run, out, start = self._run, {}, time.monotonic()
    # The same noise at every evaluation: curves show the policy, not luck.
    key = jax.random.fold_in(run.root, 1)
    for name, problems in self._sets.items():
      values, texts = accuracy.evaluate(
        self._generate,
        params,
        problems,
        key,
        run.tokenizer,
        self._grade,
        run.mesh,
        show=run.config.eval.show,
      )
      out |= {f'eval/{name}/{k}': v for k, v in values.items()}
      if name == 'heldout' and hosts.is_main():
        samples.write(run, problems.examples, texts, total, stage)
    out['perf/eval_s'] = time.monotonic() - start
    return out


class _Lines:
  """Where there is no terminal, each state of the bar is a line of its own."""

  def write(self, text: str):
    text = text.strip()
    if text:
      print(text, file=sys.stderr, flush=True)

  def flush(self):
    sys.stderr.flush()


class Loop:
  """One stage, an interval of `log_every` steps at a time."""

  def __init__(self, run, name: str, index: int, writer, evaluator):
    self.run, self.name, self.index = run, name, index
    self.writer, self.evaluator = writer, evaluator
    self.c = run.config
    self.stage = stages.build(run, name)
    self._pending = None  # metrics of the last interval, still on the device
    self._loss = float('inf')  # of the last interval read
    self._flushed = time.monotonic()
    self._tracing = False
    self._unseen = True  # the programs of the stage, all compiled by then

  def __call__(self, params, place: Place) -> TrainState:
    """Runs the stage from `place` to its end (or to a signal)."""
    state = self._begin(params, place)
    before = place.total - place.done
    steps = self.c[self.name].steps
    owed = place.record and place.record.get('owes_evaluation')
    if place.total == 0 or owed:
      self._evaluate(state, place.total)
    terminal = sys.stderr.isatty()
    bar = tqdm.tqdm(
      total=steps,
      initial=place.done,
      desc=self.name,
      unit='step',
      mininterval=0.5 if terminal else 15,
      file=sys.stderr if terminal else _Lines(),
      disable=not hosts.is_main(),
    )
    self._bar, self._flushed = bar, time.monotonic()
    done = place.done
    self._finished = place.finished
    self.run.agree_to_stop()
    with bar:  # closed before an error is said, which comes last
      while not (self._finished or self.run.stopping):
        n = min(self.c.log_every, steps - done)
        state = self._interval(state, n, before + done)
        done += n
        self._boundary(state, done, before + done)
    if self._tracing:
      self._end_trace()
    self.stage.close()
    return state

  def _begin(self, params, place: Place) -> TrainState:
    if place.state is None:
      return begin(self.run, self.stage.learner, params, place.total)
    self.stage.data.set_state(place.record['data'])
    if self.stage.stats is not None:
      self.stage.stats.set_state(place.record['stats'])
    return place.state

  def _interval(self, state, n: int, total: int):
    """Dispatches n steps; then reads the metrics of the n before."""
    k = self.stage.steps_per_dispatch
    device, host = [], []
    ahead = next(self.stage.data)
    for i in range(total, total + n, k):
      self._profile(i)
      # None at the end: a state saved there needs nothing that is under way.
      rows, ahead = ahead, next(self.stage.data) if i + k < total + n else None
      with jax.profiler.StepTraceAnnotation(self.name, step_num=i + 1):
        state, m, h = self.stage.dispatch(state, rows, ahead)
      self._last = m
      device.append(m)
      host.append(h)
      self._flush(state)  # the device has work: now look at the last interval
    self._pending = total + n, n, device, self._over_hosts(host)
    return state

  def _over_hosts(self, host: list[dict]) -> dict[str, float]:
    """An interval's metrics of this host, and then of all hosts."""
    own = {}
    for key in {k: None for h in host for k in h}:
      seen = [h[key] for h in host if key in h]
      # Counts of the pool and the data grow; seconds are those of a step.
      own[key] = float(np.mean(seen)) if key.startswith('perf/') else seen[-1]
    return metrics_lib.over_hosts(hosts.gather(own))

  def _flush(self, state):
    """Writes the metrics of the interval before, if not yet done."""
    if self._pending is None:
      return
    total, n, device, host = self._pending
    self._pending = None
    values = metrics_lib.to_host(device)
    trained, _ = trees.split(state.params, self.stage.learner.trainable)
    metrics_lib.check_finite(values, trained, total)
    values.pop('nonfinite_leaf_max')
    now = time.monotonic()
    step_s, self._flushed = (now - self._flushed) / n, now
    out = {f'train/{k}': v for k, v in values.items()} | host
    out |= self._speed(values, step_s)
    self.writer.write(total, self.name, out)
    shown = 'reward_mean' if self.name == 'rl' else 'loss'
    self._loss = values['loss']
    self._bar.set_postfix_str(f'{shown} {values[shown]:.3f}', refresh=False)
    self._bar.update(n)
    if self._unseen and hosts.is_main():
      tqdm.tqdm.write(self.run.compiled.table(), file=sys.stderr)
    self._unseen = False

  def _speed(self, values: dict, step_s: float) -> dict[str, float]:
    out = {'perf/step_s': step_s}
    if 'tokens' in values:
      out['perf/tokens_per_s'] = values['tokens'] / step_s
    peak = metrics_lib.peak_flops()
    if peak and 'tokens' in values:
      context = self.c.data.prompt_len + values['length_mean'] / 2
      per_token = self.run.model.flops_per_token(context)
      # One forward to sample, three forwards' worth to learn.
      out['perf/mfu'] = 4 * per_token * values['tokens'] / step_s / peak
    return out

  def _boundary(self, state, done: int, total: int):
    """Evaluates and saves where due; metrics are checked before a save."""
    c, stop = self.c, self.run.agree_to_stop()
    limit = 0.0 if self.name == 'rl' else c[self.name].stop_loss
    if limit:
      self._flush(state)  # the price of the limit: a wait per interval
    reached = limit > 0 and self._loss <= limit
    self._finished = done == c[self.name].steps or reached
    save = self._finished or stop or done % c.checkpoint.every == 0
    due = self._finished or done % c.eval.every == 0
    # A signal leaves seconds: the resumed run evaluates instead.
    owed = due and stop and not self._finished
    if save or due:
      self._flush(state)
    if due and not owed:
      self._evaluate(state, total)
    if save:
      self._save(state, done, total, owed)
    if save or due:
      self._flushed = time.monotonic()

  def _evaluate(self, state, total: int):
    values = self.evaluator(state.params, total, self.name)
    self.writer.write(total, self.name, values)
    shown = {
      k.removeprefix('eval/'): round(v, 3)
      for k, v in values.items()
      if k.endswith(('pass@1', 'greedy'))
    }
    since = time.monotonic() - self.run.started
    if not hosts.is_main():
      return
    tqdm.tqdm.write(
      f'[{since:5.0f} s] {self.name} step {total}: '
      + ', '.join(f'{k} {v:.3f}' for k, v in shown.items()),
      file=sys.stderr,
    )

  def _save(self, state, done: int, total: int, owed: bool):
    record = {
      'stage': self.index,
      'done': done,
      'finished': self._finished,
      'owes_evaluation': owed,
      'data': self.stage.data.get_state(),
      'stats': self.stage.stats and self.stage.stats.get_state(),
    }
    self.writer.sync()
    self.run.checkpoints.save(total, state, record)

  def _profile(self, total: int):
    """Traces the dispatches with a profiled step among them: process 0 what
    its own devices do.
    """
    ahead = range(total + 1, total + 1 + self.stage.steps_per_dispatch)
    wanted = programs.profiled(self.c.profile.steps)
    inside = bool(set(ahead) & set(wanted)) and hosts.is_main()
    if inside and not self._tracing:
      jax.profiler.start_trace(str(self.run.workdir / 'profile'))
    if self._tracing and not inside:
      self._end_trace()
    self._tracing = inside

  def _end_trace(self):
    # What was dispatched may still be running.
    jax.block_until_ready(self._last)
    jax.profiler.stop_trace()
    self._tracing = False
