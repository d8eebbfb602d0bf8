"""A run: prepare -> stages -> evaluations, checkpoints, plots.

  run(config, workdir)

A kill at any moment loses at most the steps since the last checkpoint, and the
resumed run repeats them bit for bit; SIGTERM and Ctrl-C save first.
"""

import json
import time

import jax
import ml_collections
from absl import logging
from etils import epath

from jaxrl_reason import hosts, trees
from jaxrl_reason.base import TrainState
from jaxrl_reason.checkpoints import emergency, files, manager
from jaxrl_reason.hosts import reading
from jaxrl_reason.models import spec
from jaxrl_reason.reports import metrics_file, plots
from jaxrl_reason.run import (
  archives,
  compile_log,
  events,
  goodput,
  identity,
  logs,
  loop,
  metrics,
  passing,
  rewarding,
  rollout_files,
  samples,
  signals,
  sources,
  stages,
  staging,
  states,
  trackers,
  watchdog,
)
from jaxrl_reason.run import workdir as workdirs
from jaxrl_reason.run.evaluator import Evaluator
from jaxrl_reason.run.journal import Journal, aside, say
from jaxrl_reason.run.prepare import prepare


def run(
  config: ml_collections.ConfigDict, workdir, *, fresh: bool = False
) -> TrainState | None:
  """Trains through all stages, from the start or from the last checkpoint.

  Args:
    fresh: move what the workdir holds aside first, and begin at step 0.

  Returns:
    The last state; None when a signal ended the run early (it is saved).
  """
  # From here on a signal ends the run well, however early it comes.
  with signals.Stopping() as stopping, files.explained_below(workdir):
    with workdirs.opened(config, workdir, fresh=fresh) as workdir:
      with logs.kept(workdir):
        return _run(config, workdir, stopping)


def _run(config, workdir: epath.Path, stopping) -> TrainState | None:
  started = time.monotonic()
  with hosts.explained():
    use_compile_cache(config.compile_cache)
    mesh, problems, tokenizer, model, shape, root, stop = prepare(
      config, workdir
    )
    checkpoints = _checkpoints(config, workdir, problems, tokenizer)
  say(
    f'{spec.n_params(model.specs):,} parameters on '
    f'{mesh.devices.size} x {jax.devices()[0].device_kind} of '
    f'{jax.process_count()} processes; workdir {workdir}'
  )
  planned = staging.each(config)
  for p in planned:
    rewarding.check(p.config, problems, tokenizer)
    sources.check(p.config, problems)
  parts = dict(model=model, mesh=mesh, problems=problems, tokenizer=tokenizer)
  parts |= dict(root=root, stop=stop)
  compiled = compile_log.Log()
  spent = goodput.Spent(started, compiled)
  w = config.watchdog
  watch = watchdog.Watchdog(w.times, w.floor_s, compiled, w.first_s)
  told = dict(stopping=stopping, spent=spent, watchdog=watch)
  try:
    with jax.set_mesh(mesh), hosts.explained(), compiled, watch:
      passing.check(planned, model, mesh, problems)
      state = _stages(
        planned, config, workdir, checkpoints, told, compiled, started, shape,
        parts,
      )  # fmt: skip
      with spent.on('save'), watch.watched('save', counted=False):
        checkpoints.wait()
        if checkpoints.near:
          checkpoints.near.close()
  except hosts.Lost:
    raise  # a save under way would wait for those who are gone
  except BaseException as e:
    # A save under way is finished, never torn.
    checkpoints.close()
    if logs.begun():  # a start that is refused changes nothing
      events.note_failure(workdir, e)
    raise
  checkpoints.close()
  say(spent.told())
  events.note(workdir, 'end', how='signal' if stopping.agreed else 'finished')
  if stopping.agreed:
    say('Stopped by a signal; what was trained is saved. Start again to go on.')
    return None
  if hosts.is_main():
    aside(samples.before_and_after(workdir))
    say(f'Curves: {plots.save(workdir)}')
  return state


def _stages(
  planned, config, workdir, checkpoints, told, compiled, started, shape, parts
) -> TrainState | None:
  """Runs the stages that are left.

  Args:
    planned: all of them.
    told: what a Loop is told by and tells.
    parts: what `stages.build` takes.
  """
  model, mesh, root = parts['model'], parts['mesh'], parts['root']
  spent = told['spent']
  with spent.on('restore'):
    place = restore(planned, checkpoints, model, mesh, parts['problems'])
  logs.begin()
  resuming = place.record is not None
  if resuming:
    near = checkpoints.near and checkpoints.near.restored
    kind = ', of an emergency checkpoint' if near else ''
    say(f'Resuming at step {place.total}{kind}.')
  write_config(config, workdir, resuming)
  events.note(workdir, 'start', step=place.total, reached=reached(workdir))
  writer = _writer(config, workdir, place.total if resuming else None)
  spent.lose(*writer.lost)
  grade = rewarding.grader(config, parts['problems'])
  evaluator = Evaluator(config, workdir, grade=grade, **parts)
  state, facts = place.state, {'compiled': compiled, 'started': started}
  facts |= {'spent': spent, 'saved': checkpoints.told}

  def first():
    return states.init_params(config, model, shape, mesh, root, workdir)

  for index, p in enumerate(planned):
    if index < place.stage:
      continue
    own = archives.applied(p, parts['problems'], workdir)
    stage = stages.build(p, **parts | {'problems': own})
    if place.state is None:
      at = passing.Passing(planned, index, checkpoints, workdir, first)
      state = at.state(stage.layout, state, place.total)
    else:
      _restore_data(stage, place.record)
    kept = rollout_files.RolloutFiles(
      p.config,
      workdir,
      parts['problems'],
      parts['tokenizer'],
      place.total if resuming or index else None,
      rewarding.second_opinion(p.config, parts['problems']),
      writer.histogram,
    )
    journal = Journal(p, writer=writer, model=model, **facts)
    state = loop.Loop(
      p,
      index,
      stage,
      journal=journal,
      evaluator=evaluator,
      checkpoints=checkpoints,
      rollouts=kept,
      profile_dir=str(workdir / 'profile'),
      **told,
    ).run(state, place)
    if not told['stopping'].agreed:
      archives.write(workdir, p, state, parts['tokenizer'])
    if told['stopping'].agreed:
      break
    # The next stage starts where this one's state stands.
    place = loop.Place(index + 1, 0, int(state.step))
  writer.close()
  return state


def _writer(config, workdir, resume_step: int | None) -> metrics.Writer:
  """What metrics are written with, the configuration told at the start."""
  tracked = []
  flat = trees.flatten(json.loads(config.to_json_best_effort()))
  flat = {key.replace('/', '.'): value for key, value in flat.items()}
  if hosts.is_main():
    tracked = trackers.start(workdir, flat, config.track)
  writer = metrics.Writer(workdir, resume_step, tracked)
  if resume_step is None:
    writer.hyper_parameters(flat)
  return writer


def reached(workdir: epath.Path) -> int:
  """Returns the last step that the run before this one has told metrics of."""
  told = hosts.is_main() and metrics_file.exists(workdir)
  steps = [r['step'] for r in metrics_file.read(workdir)] if told else []
  return max(steps, default=0)


def restore(planned, checkpoints, model, mesh, problems) -> loop.Place:
  """Finds where the newest readable checkpoint stands, its state included.

  Args:
    planned: the stages of the run.
  """

  def read(step: int, record: dict, restored) -> loop.Place:
    p = planned[record['stage']]
    where = passing.layout(p, model, mesh, problems)
    state = restored(where.template, where.shardings)
    ended = loop.ended(p, record)
    return loop.Place(
      record['stage'], record['done'], step, ended, record, state
    )

  found = checkpoints.latest(read)
  place = found[1] if found else loop.Place()
  if checkpoints.near:
    checkpoints.near.begin(place.total)
  return place


def _restore_data(stage: stages.Stage, record: dict) -> None:
  stage.data.set_state(record['data'])
  if stage.stats is not None:
    stage.stats.set_state(record['stats'])


def _checkpoints(config, workdir, problems, tokenizer) -> manager.Checkpoints:
  """The workdir's checkpoints, of a run that is the same on every process."""
  names = [p.origin for p in staging.each(config)]
  origin = identity.of_run(problems, tokenizer, names)
  told = hosts.gather(origin)
  for i, other in enumerate(told):
    differing = [k for k in origin if other[k] != told[0][k]]
    if differing:
      raise ValueError(
        f'process {i} has other {differing[0]} than process 0: the files '
        'behind config.data and config.model_dir must be the same on all hosts'
      )
  c, near = config.checkpoint, None
  if c.emergency_every:
    near = emergency.Emergency(workdir, c.emergency_every, c.emergency_dir)
  else:
    emergency.disown(workdir)
  return manager.Checkpoints(
    workdir,
    c.keep,
    verify=c.verify,
    origin=origin,
    same_data=c.same_data,
    near=near,
  )


def use_compile_cache(folder: str) -> None:
  """Keeps compiled programs between runs.

  Args:
    folder: for them; auto: the one that JAX_COMPILATION_CACHE_DIR names, or the
      user's cache; '': nothing is kept.
  """
  if not folder or (folder == 'auto' and jax.config.jax_compilation_cache_dir):
    return
  if folder == 'auto':
    folder = reading.cache_dir() / 'xla'
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.2)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


def write_config(config, workdir: epath.Path, resuming: bool) -> None:
  """Keeps the config; on resuming says what has changed."""
  if not hosts.is_main():
    return
  path = workdir / 'config.json'
  now = json.loads(config.to_json_best_effort())
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
