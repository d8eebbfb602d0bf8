"""A run: mesh -> model -> data -> stages -> evaluations, checkpoints, plots.

  run(config, workdir)

Metrics are read one interval late, so the device never waits for a line. A
kill at any moment loses at most the steps since the last checkpoint, and the
resumed run repeats them bit for bit; SIGTERM and Ctrl-C save first.
"""

import contextlib
import dataclasses
import json
import signal
import sys
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
from absl import logging
from etils import epath

from jaxrl_reason import config as config_lib
from jaxrl_reason import hosts, sharding, trees
from jaxrl_reason.base import Model, TrainState
from jaxrl_reason.checkpoints import files, hf, manager, pretrained
from jaxrl_reason.data import problems as problems_lib
from jaxrl_reason.models import families, remat, spec, transformer
from jaxrl_reason.models.adapters import frozen, lora, steering
from jaxrl_reason.reports import plots
from jaxrl_reason.run import compile_log as programs
from jaxrl_reason.run import config_checks, identity, samples, stages
from jaxrl_reason.run import loop as loop_lib
from jaxrl_reason.run import metrics as metrics_lib
from jaxrl_reason.run import workdir as workdirs


@dataclasses.dataclass
class Run:
  """What the parts of a run share."""

  config: ml_collections.ConfigDict
  workdir: epath.Path
  mesh: jax.sharding.Mesh
  problems: problems_lib.Problems
  tokenizer: Any
  model: Model
  shape: transformer.Config  # of the model
  root: jax.Array  # key of the run; steps fold their number in
  stop: jax.Array  # i32 [E], stop tokens
  checkpoints: manager.Checkpoints
  compiled: programs.Log = dataclasses.field(default_factory=programs.Log)
  started: float = dataclasses.field(default_factory=time.monotonic)
  terminate: bool = False  # set by SIGTERM
  stopping: bool = False  # what all hosts agreed on

  def agree_to_stop(self) -> bool:
    """Whether any host was told to; asked between two intervals, by all."""
    self.stopping = any(hosts.gather(self.terminate))
    return self.stopping


def set_up(config: ml_collections.ConfigDict, workdir: epath.Path) -> Run:
  """Everything but the weights; refuses what cannot work."""
  _use_compile_cache(config.compile_cache)
  mesh = sharding.make_mesh(config.mesh)
  config_checks.check(config, sharding.row_shards(mesh))
  problems = problems_lib.load(config.data, config.seed)
  with hosts.zero_first():
    folder = config.model_dir and pretrained.begin(config.model_dir, workdir)
    tokenizer = problems_lib.make_tokenizer(
      config.data, problems, workdir, folder
    )
  problems = problems_lib.rendered(problems, config.data, tokenizer, folder)
  problems, dropped = problems_lib.drop_long(problems, config.data, tokenizer)
  for split, n in dropped.items():
    if n:
      logging.warning('Dropped %d examples of %s: too long.', n, split)
  shape = architecture(config.model, tokenizer.vocab_size, folder)
  shape = remat_within(config, mesh, shape)
  config_checks.check_experts(config, shape.experts)
  config_checks.check_positions(config.rl, shape)
  return Run(
    config,
    workdir,
    mesh,
    problems,
    tokenizer,
    model_of(shape, config),
    shape,
    jax.random.key(config.seed),
    jnp.asarray(tokenizer.eos_ids, jnp.int32),
    _checkpoints(config, workdir, problems, tokenizer),
  )


def _checkpoints(config, workdir, problems, tokenizer) -> manager.Checkpoints:
  origin = identity.of_run(problems, tokenizer, config.stages)
  told = hosts.gather(origin)
  for i, other in enumerate(told):
    differing = [k for k in origin if other[k] != told[0][k]]
    if differing:
      raise ValueError(
        f'process {i} has other {differing[0]} than process 0: the files '
        'behind config.data and config.model_dir must be the same on all hosts'
      )
  c = config.checkpoint
  return manager.Checkpoints(
    workdir, c.keep, verify=c.verify, origin=origin, same_data=c.same_data
  )


def remat_within(config, mesh, shape: transformer.Config) -> transformer.Config:
  """The model's shape with the remat policy asked for; auto: that a budget
  allows.
  """
  if config.model.remat != 'auto':
    return dataclasses.replace(shape, remat=config.model.remat)
  rows = config_lib.micro_batch(config, sharding.row_shards(mesh))
  length = config.data.prompt_len + config.data.completion_len
  length = -(-length // mesh.shape['context'])
  shape = remat.choose(shape, rows, length, config.remat_gib * 2**30)
  logging.info(
    'remat=%s keeps activations of %d x %d tokens on a device within '
    'remat_gib=%g.', shape.remat, rows, length, config.remat_gib,
  )  # fmt: skip
  return shape


def architecture(c, n_tokens: int, folder) -> transformer.Config:
  """The model's shape, nothing recomputed yet: of config.json where it came
  from a folder, else of a `model` section.
  """
  c = c.to_dict() | {'remat': 'none'}
  if not folder:
    # A multiple of 8, so that a tensor axis divides it; ids past the
    # tokenizer's decode to nothing.
    vocab = -(-n_tokens // 8) * 8
    return transformer.Config(vocab=vocab, **c)
  shape = families.from_hf(
    hf.read_config(folder), **{k: c[k] for k in families.RUNTIME}
  )
  if n_tokens > shape.vocab:
    raise ValueError(
      f'the tokenizer has {n_tokens} tokens and the model embeds {shape.vocab}'
    )
  return shape


def model_of(shape: transformer.Config, c) -> Model:
  """The model with its adapters, frozen weights in the dtype asked for."""
  model = transformer.build(shape)
  if c.lora.rank:
    model = lora.attach(model, lora.Lora(**c.lora.to_dict()))
  if c.steering:
    model = steering.attach(model, shape)
  if c.frozen_dtype != 'float32':
    trained = config_lib.trainable(c)
    model = frozen.attach(model, c.frozen_dtype, trained)
  return model


def _use_compile_cache(folder: str) -> None:
  """Keeps compiled programs between runs."""
  if not folder:
    return
  if folder == 'auto':
    folder = problems_lib.cache_dir() / 'xla'
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.2)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


def _write_config(run: Run, resuming: bool) -> None:
  """Keeps the config; on resuming says what has changed."""
  if not hosts.is_main():
    return
  path = run.workdir / 'config.json'
  now = json.loads(run.config.to_json_best_effort())
  if resuming and path.exists():
    before = trees.flatten(json.loads(path.read_text()))
    after = trees.flatten(now)
    for key in sorted(before.keys() | after.keys()):
      if before.get(key) != after.get(key):
        logging.warning(
          'config.%s was %s when this run began and is %s now.',
          key.replace('/', '.'),
          before.get(key),
          after.get(key),
        )
  files.write_whole(path, json.dumps(now, indent=1))


def run(
  config: ml_collections.ConfigDict, workdir, *, fresh: bool = False
) -> TrainState | None:
  """Trains through all stages, from the start or from the last checkpoint.

  Args:
    fresh: move what the workdir holds aside first, and begin at step 0.

  Returns:
    The last state; None when a signal ended the run early (it is saved).
  """
  with workdirs.opened(config, workdir, fresh=fresh) as workdir:
    return _run(config, workdir)


def _run(config, workdir: epath.Path) -> TrainState | None:
  with hosts.explained():
    run = set_up(config, workdir)
  say = lambda text: hosts.is_main() and print(text, file=sys.stderr)
  say(
    f'{trees.n_params(spec.abstract(run.model.specs)):,} parameters on '
    f'{run.mesh.devices.size} x {jax.devices()[0].device_kind} of '
    f'{jax.process_count()} processes; workdir {run.workdir}'
  )
  stages.check_rewards(run)
  try:
    with (
      _signals_stop(run),
      jax.set_mesh(run.mesh),
      hosts.explained(),
      run.compiled,
    ):
      state = _stages(run, say)
      run.checkpoints.wait()
  except hosts.Lost:
    raise  # a save under way would wait for those who are gone
  except BaseException:
    # A save under way is finished, never torn.
    run.checkpoints.close()
    raise
  run.checkpoints.close()
  if run.stopping:
    say('Stopped by a signal; saved. Start again to go on.')
    return None
  if hosts.is_main():
    _finish(run, say)
  return state


def _finish(run: Run, say) -> None:
  say(samples.before_and_after(run.workdir))
  say(f'Curves: {plots.save(run.workdir)}')


def _stages(run: Run, say) -> TrainState | None:
  place = loop_lib.restore(run)
  resuming = place.record is not None
  if resuming:
    say(f'Resuming at step {place.total}.')
  _write_config(run, resuming)
  writer = metrics_lib.Writer(run.workdir, place.total if resuming else None)
  evaluator, state = loop_lib.Evaluator(run), place.state
  for index, name in enumerate(run.config.stages):
    if index < place.stage:
      continue
    loop = loop_lib.Loop(run, name, index, writer, evaluator)
    state = loop(state and state.params, place)
    if run.stopping:
      break
    # The next stage starts where this one's state stands.
    place = loop_lib.Place(index + 1, 0, int(state.step))
  writer.close()
  return state


@contextlib.contextmanager
def _signals_stop(run: Run):
  """SIGTERM and Ctrl-C end the run at the next interval, saved."""

  def stop(signum, frame):
    del frame
    if run.terminate:
      raise KeyboardInterrupt  # the second time: at once
    run.terminate = True
    print(
      f'{signal.Signals(signum).name}: saving at the end of this interval; '
      'once more to stop at once.',
      file=sys.stderr,
    )

  if threading.current_thread() is not threading.main_thread():
    yield  # Python delivers signals to the main thread only
    return
  before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
  try:
    yield
  finally:
    for s, handler in before.items():
      signal.signal(s, handler)
