"""A run: mesh -> model -> data -> stages -> evaluations, checkpoints, plots.

  run(config, workdir)

Metrics are read one interval late, so the device never waits for a line. A
kill at any moment loses at most the steps since the last checkpoint, and the
resumed run repeats them bit for bit; SIGTERM and Ctrl-C save first.
"""

import dataclasses
import json
import signal
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import tqdm
from absl import logging
from etils import epath

from jaxrl_reason import config as config_lib
from jaxrl_reason import metrics as metrics_lib
from jaxrl_reason import plots, samples, sharding, stages, trees
from jaxrl_reason import step as step_lib
from jaxrl_reason.base import Model, TrainState
from jaxrl_reason.checkpoints import manager
from jaxrl_reason.data import problems as problems_lib
from jaxrl_reason.evals import accuracy
from jaxrl_reason.models import spec, transformer


@dataclasses.dataclass
class Run:
  """What the parts of a run share."""

  config: ml_collections.ConfigDict
  workdir: epath.Path
  mesh: jax.sharding.Mesh
  problems: problems_lib.Problems
  tokenizer: Any
  model: Model
  root: jax.Array  # key of the run; steps fold their number in
  stop: jax.Array  # i32 [E], stop tokens
  checkpoints: manager.Checkpoints
  place: 'Place'
  started: float = dataclasses.field(default_factory=time.monotonic)
  terminate: bool = False  # set by SIGTERM


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a run stands: `done` steps of stage number `stage`; `total` steps
  since it began. `record` is the checkpoint's, or None.
  """

  stage: int = 0
  done: int = 0
  total: int = 0
  record: dict | None = None


def set_up(config: ml_collections.ConfigDict, workdir) -> Run:
  """Everything but the weights; refuses what cannot work."""
  workdir = epath.Path(workdir)
  _make_workdir(workdir)
  _use_compile_cache(config.compile_cache)
  mesh = sharding.make_mesh(config.mesh)
  config_lib.check(config, mesh.shape['data'] * mesh.shape['fsdp'])
  problems = problems_lib.load(config.data, config.seed)
  tokenizer = problems_lib.make_tokenizer(config.data, problems, workdir)
  problems, dropped = problems_lib.drop_long(problems, config.data, tokenizer)
  for split, n in dropped.items():
    if n:
      logging.warning('Dropped %d examples of %s: too long.', n, split)
  model = transformer.build(
    transformer.Config(vocab=tokenizer.vocab_size, **config.model.to_dict())
  )
  checkpoints = manager.Checkpoints(workdir, config.checkpoint.keep)
  found = checkpoints.latest(checkpoints.record)
  place = Place()
  if found:
    step, record = found
    place = Place(record['stage'], record['done'], step, record)
  return Run(
    config,
    workdir,
    mesh,
    problems,
    tokenizer,
    model,
    jax.random.key(config.seed),
    jnp.asarray(tokenizer.eos_ids, jnp.int32),
    checkpoints,
    place,
  )


def _make_workdir(workdir: epath.Path) -> None:
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    probe = workdir / '.writable'
    probe.write_text('')
    probe.unlink()
  except OSError as e:
    raise OSError(f'--workdir={workdir} cannot be written to: {e}') from e


def _use_compile_cache(folder: str) -> None:
  """Keeps compiled programs between runs."""
  if not folder:
    return
  if folder == 'auto':
    folder = problems_lib.cache_dir() / 'xla'
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.2)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


def init_params(run: Run) -> Any:
  """Weights from the seed, made where they live."""
  where = sharding.shardings(run.model.specs, run.mesh, sharding.TRAIN_RULES)
  make = lambda key: spec.init(run.model.specs, key)
  return jax.jit(make, out_shardings=where)(jax.random.fold_in(run.root, 0))


def begin_stage(run: Run, stage: stages.Stage, params, place: Place):
  """The stage's state: restored when the run stands inside it, else from the
  parameters of the stage before, with a fresh optimizer.
  """
  make = lambda p: step_lib.init_state(stage.learner, p).replace(
    step=jnp.int32(place.total)
  )
  abstract = spec.abstract(run.model.specs)
  template = jax.eval_shape(make, abstract)
  where = sharding.state_shardings(
    template,
    sharding.shardings(run.model.specs, run.mesh, sharding.TRAIN_RULES),
    run.mesh,
  )
  if place.record is None:
    if params is None:
      params = init_params(run)
    return jax.jit(make, out_shardings=where)(params)
  state = run.checkpoints.restore(place.total, template, where)
  stage.data.set_state(place.record['data'])
  if stage.stats is not None:
    stage.stats.set_state(place.record['stats'])
  return state


class Evaluator:
  """Evaluates the held-out and harder splits, and keeps what they said."""

  def __init__(self, run: Run):
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
        self._generate, params, problems, key, run.tokenizer, self._grade
      )
      out |= {f'eval/{name}/{k}': v for k, v in values.items()}
      if name == 'heldout':
        samples.write(run, problems.examples, texts, total, stage)
    out['perf/eval_s'] = time.monotonic() - start
    return out


class Loop:
  """One stage, an interval of `log_every` steps at a time."""

  def __init__(self, run: Run, name: str, index: int, writer, evaluator):
    self.run, self.name, self.index = run, name, index
    self.writer, self.evaluator = writer, evaluator
    self.c = run.config
    self.stage = stages.build(run, name)
    self._pending = None
    self._flushed = time.monotonic()

  def __call__(self, params, place: Place) -> TrainState:
    """Runs the stage from `place` to its end (or to SIGTERM)."""
    state = begin_stage(self.run, self.stage, params, place)
    before = place.total - place.done
    steps = self.c[self.name].steps
    if place.total == 0:
      self._evaluate(state, 0)
    bar = tqdm.tqdm(
      total=steps,
      initial=place.done,
      desc=self.name,
      unit='step',
      mininterval=0.5 if sys.stderr.isatty() else 15,
      disable=jax.process_index() > 0,
    )
    self._bar, self._flushed = bar, time.monotonic()
    done = place.done
    while done < steps and not self.run.terminate:
      n = min(self.c.log_every, steps - done)
      state = self._interval(state, n, before + done)
      done += n
      self._boundary(state, done, before + done, last=done == steps)
    bar.close()
    self.stage.close()
    return state

  def _interval(self, state, n: int, total: int):
    """Dispatches n steps; then reads the metrics of the n before."""
    k = self.stage.steps_per_dispatch
    device, host = [], []
    for i in range(total, total + n, k):
      self._profile(i - total + 1, total)
      state, m, h = self.stage.dispatch(state, next(self.stage.data))
      device.append(m)
      host.append(h)
    self._flush(state)
    self._pending = total + n, n, device, host
    return state

  def _flush(self, state):
    """Writes the metrics of the interval before."""
    if self._pending is None:
      return
    total, n, device, host = self._pending
    self._pending = None
    values = metrics_lib.to_host(device)
    metrics_lib.check_finite(values, state.params, total)
    values.pop('nonfinite_leaf_max')
    now = time.monotonic()
    step_s, self._flushed = (now - self._flushed) / n, now
    out = {f'train/{k}': v for k, v in values.items()}
    for key in {k for h in host for k in h}:
      out[key] = float(np.mean([h[key] for h in host if key in h]))
    out |= self._speed(values, step_s)
    self.writer.write(total, self.name, out)
    shown = 'reward_mean' if self.name == 'rl' else 'loss'
    self._bar.set_postfix_str(f'{shown} {values[shown]:.3f}', refresh=False)
    self._bar.update(n)

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

  def _boundary(self, state, done: int, total: int, last: bool):
    """Evaluates and saves where due; metrics are checked before a save."""
    stop = self.run.terminate
    save = last or stop or done % self.c.checkpoint.every == 0
    evaluate = last or (done % self.c.eval.every == 0 and not stop)
    if save or evaluate:
      self._flush(state)
    if evaluate:
      self._evaluate(state, total)
    if save:
      self._save(state, done, total)
    if save or evaluate:
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
    tqdm.tqdm.write(
      f'[{since:5.0f} s] {self.name} step {total}: '
      + ', '.join(f'{k} {v:.3f}' for k, v in shown.items()),
      file=sys.stderr,
    )

  def _save(self, state, done: int, total: int):
    record = {
      'stage': self.index,
      'done': done,
      'data': self.stage.data.get_state(),
      'stats': self.stage.stats and self.stage.stats.get_state(),
    }
    try:
      self.run.checkpoints.save(total, state, record)
    except OSError as e:
      raise OSError(
        f'checkpoint {total} could not be written to {self.run.workdir}: {e}. '
        'The one before is kept; make room and start again to go on from it.'
      ) from e

  def _profile(self, step: int, total: int):
    c = self.c.profile
    if c.first and total + step == c.first:
      jax.profiler.start_trace(str(self.run.workdir / 'profile'))
    if c.first and total + step == c.first + c.steps:
      jax.profiler.stop_trace()


def _write_config(run: Run) -> None:
  """Keeps the config; on resuming says what has changed."""
  path = run.workdir / 'config.json'
  now = json.loads(run.config.to_json_best_effort())
  if run.place.record is not None and path.exists():
    before = trees.flatten(json.loads(path.read_text()))
    after = trees.flatten(now)
    for key in sorted(before.keys() | after.keys()):
      if before.get(key) != after.get(key):
        logging.warning(
          'config.%s was %s when this run began and is %s now.',
          key.replace('/', '.'), before.get(key), after.get(key),
        )
  path.write_text(json.dumps(now, indent=1))


def run(config: ml_collections.ConfigDict, workdir) -> TrainState | None:
  """Trains through all stages, from the start or from the last checkpoint.

  Returns:
    The last state; None when SIGTERM ended the run early (it is saved).
  """
  run = set_up(config, workdir)
  print(f'{trees.n_params(spec.abstract(run.model.specs)):,} parameters on '
        f'{len(run.mesh.devices.flat)} x {jax.devices()[0].device_kind}; '
        f'workdir {run.workdir}', file=sys.stderr)
  _write_config(run)
  resume = run.place.total if run.place.record else None
  if resume is not None:
    print(f'Resuming at step {resume}.', file=sys.stderr)
  writer = metrics_lib.Writer(run.workdir, resume)
  _catch_sigterm(run)
  with jax.set_mesh(run.mesh):
    state = _stages(run, writer)
  run.checkpoints.wait()
  run.checkpoints.close()
  writer.close()
  if run.terminate:
    print('Stopped by a signal; saved. Start again to go on.', file=sys.stderr)
    return None
  print(samples.before_and_after(run.workdir), file=sys.stderr)
  print(f'Curves: {plots.save(run.workdir)}', file=sys.stderr)
  return state


def _stages(run: Run, writer) -> TrainState | None:
  evaluator, place, state = Evaluator(run), run.place, None
  for index, name in enumerate(run.config.stages):
    if index < place.stage:
      continue
    loop = Loop(run, name, index, writer, evaluator)
    state = loop(state and state.params, place)
    if run.terminate:
      return state
    # The next stage starts where this one's state stands.
    place = Place(index + 1, 0, int(state.step))
  return state


def _catch_sigterm(run: Run) -> None:
  """SIGTERM and Ctrl-C end the run at the next interval, saved."""

  def stop(signum, frame):
    del frame
    if run.terminate:
      raise KeyboardInterrupt  # the second time: at once
    run.terminate = True
    print(f'{signal.Signals(signum).name}: saving at the end of this interval; '
          'once more to stop at once.', file=sys.stderr)

  for s in (signal.SIGTERM, signal.SIGINT):
    signal.signal(s, stop)
