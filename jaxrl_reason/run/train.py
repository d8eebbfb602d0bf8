"""A run: prepare -> stages -> evaluations, checkpoints, plots.

  run(config, workdir)

A kill at any moment loses at most the steps since the last checkpoint, and the
resumed run repeats them bit for bit; SIGTERM and Ctrl-C save first.
"""

import contextlib
import time
from typing import Any

import jax
from etils import epath

from jaxrl_reason import config as config_lib
from jaxrl_reason import hosts, trees
from jaxrl_reason.base import TrainState
from jaxrl_reason.checkpoints import emergency, files, manager, pretrained
from jaxrl_reason.config import RL, Data, Run
from jaxrl_reason.config.run import Checkpoint
from jaxrl_reason.data import preference_pairs
from jaxrl_reason.data.problems import PIECES, Problems
from jaxrl_reason.hosts import reading
from jaxrl_reason.models import spec
from jaxrl_reason.reports import metrics_file, plots
from jaxrl_reason.run import loop, stage_transition, stages
from jaxrl_reason.run import solution_archives as archives
from jaxrl_reason.run import stage_list as staging
from jaxrl_reason.run.evaluator import Evaluator
from jaxrl_reason.run.prepare import Prepared, prepare
from jaxrl_reason.run.process import (
  compile_log,
  goodput,
  identity,
  logs,
  signals,
  watchdog,
)
from jaxrl_reason.run.process import workdir as workdirs
from jaxrl_reason.run.records import (
  evaluation_files,
  events,
  lines,
  metrics,
  rollout_files,
  trackers,
)
from jaxrl_reason.run.records.journal import Journal, aside, say
from jaxrl_reason.run.rl import reward_functions as rewarding
from jaxrl_reason.run.rl import reward_models, sources, teachers
from jaxrl_reason.verifiers import named_code


def run(
  config: config_lib.Config,
  workdir: epath.PathLike,
  *,
  fresh: bool = False,
) -> TrainState | None:
  """Trains through all stages, from the start or from the last checkpoint.

  Args:
    fresh: first move the files in the workdir aside, and begin at step 0.

  Returns:
    The last state; None if a signal ended the run early (it is saved).
  """
  # From here on a signal saves and ends the run.
  with signals.Stopping() as stopping, files.explained_below(workdir):
    config = config_lib.read(config)
    start = identity.of_start(config.json_values(), workdir)
    with workdirs.opened(start, workdir, fresh=fresh) as workdir:
      with logs.kept(workdir):
        state = _run(config, workdir, stopping)
        if state is None:
          how = ' without --fresh' if fresh else ''
          say(
            'Stopped by a signal; what was trained is saved. Start the same '
            f'command{how} to go on.'
          )
        return state


def _run(config: Run, workdir: epath.Path, stopping) -> TrainState | None:
  started = time.monotonic()
  with hosts.explained():
    use_compile_cache(config.compile_cache)
    if hosts.is_main() and not workdirs.may_resume(workdir):
      _forget_start(config.data.tokenizer, workdir)
    parts = prepare(config, workdir)
    problems, tokenizer = parts.problems, parts.tokenizer
    planned = staging.each(config)
    origin = identity.of_run(problems, tokenizer, [p.origin for p in planned])
    origin['named_code'] = named_code.of_named_code(config.json_values())
    checkpoints = _checkpoints(config.checkpoint, workdir, origin)
  say(
    f'{spec.n_params(parts.model.specs):,} parameters on '
    f'{parts.mesh.devices.size} x {jax.devices()[0].device_kind} of '
    f'{jax.process_count()} processes; workdir {workdir}'
  )
  for own in (p.config for p in planned if p.kind == 'rl'):
    _check_rl(own.rl, own.data, problems, tokenizer)
  compiled = compile_log.Log()
  spent = goodput.Spent(started, compiled)
  w = config.watchdog
  watch = watchdog.Watchdog(w.times, w.floor_s, compiled, w.first_s)
  told = dict(stopping=stopping, spent=spent, watchdog=watch)
  try:
    with jax.set_mesh(parts.mesh), hosts.explained(), compiled, watch:
      stage_transition.check(planned, parts)
      state = _stages(
        planned, workdir, checkpoints, told, compiled, started, parts
      )
      with spent.on('save'), watch.watched('last save'):
        checkpoints.wait()
        if checkpoints.near:
          checkpoints.near.close(max(checkpoints.steps(), default=0))
  except hosts.Lost:
    raise  # an unfinished save would wait for processes that have ended
  except BaseException as e:
    # An unfinished save is completed, so that no checkpoint is partial.
    checkpoints.close()
    if logs.begun():  # a start that is refused changes nothing
      events.note_failure(workdir, e)
    raise
  checkpoints.close()
  say(spent.told())
  events.note(workdir, 'end', how='signal' if stopping.agreed else 'finished')
  if stopping.agreed:
    return None
  if hosts.is_main():
    _show_results(workdir, int(state.step))
  return state


def _check_rl(c: RL, d: Data, problems: Problems, tokenizer: Any) -> None:
  """Refuses an rl stage whose rewards, source, teacher or reward model do not
  fit the problems or the tokenizer.
  """
  rewarding.check(c, d, problems, tokenizer)
  sources.check(c, d, problems, tokenizer)
  if c.teacher.weights:
    teachers.check(c.teacher, d, problems, tokenizer)
  if c.reward_model.weights:
    reward_models.check(c.reward_model.weights, tokenizer)


def _show_results(workdir: epath.Path, step: int) -> None:
  """Prints completions from before and after the run, and saves its curves."""
  aside(evaluation_files.before_and_after(workdir, step))
  say(f'Curves: {plots.save(workdir)}')


def _forget_start(tokenizer: str, workdir: epath.Path) -> None:
  """Removes what `prepare` made for an earlier start that saved nothing: its
  data, its settings or its model may have been others.
  """
  if tokenizer == 'sentencepiece':
    lines.move_aside(workdir, (PIECES,))
  pretrained.forget(workdir)


def _stages(
  planned, workdir, checkpoints, told, compiled, started, parts: Prepared
) -> TrainState | None:
  """Runs the remaining stages.

  Args:
    planned: all of them.
    told: keyword arguments of a Loop.
  """
  config, problems = parts.config, parts.problems
  spent = told['spent']
  with spent.on('restore'):
    place = restore(planned, checkpoints, parts)
  logs.begin()
  near = checkpoints.near and checkpoints.near.restored
  values = config.json_values()
  writer = _begin(values, config.track, workdir, place, bool(near))
  spent.lose(*writer.lost)
  evaluator = Evaluator(parts, workdir)
  state, facts = place.state, {'compiled': compiled, 'started': started}
  facts |= {'spent': spent, 'saved': checkpoints.told}
  if place.record is not None and hosts.is_main():
    facts['earlier'] = metrics_file.read(workdir)

  for index, p in enumerate(planned[place.stage :], place.stage):
    own = _problems_of(p, problems, workdir)
    stage = stages.build(p, parts._replace(problems=own))
    # Also after an error: a study goes on in this process.
    with contextlib.closing(stage):
      if place.state is None:
        at = stage_transition.StageTransition(
          planned, index, checkpoints, workdir, parts
        )
        state = at.state(stage.layout, state, place.total)
      else:
        _restore_data(stage, place.record)
      journal = Journal(p, writer=writer, model=parts.model, **facts)
      c, grade = p.config, rewarding.second_opinion(p.config.rl, problems)
      given = c.rollouts, c.rl, workdir, problems, parts.tokenizer, place.total
      given += grade, writer.histogram, journal.check
      state = loop.Loop(
        p,
        index,
        stage,
        journal=journal,
        evaluator=evaluator,
        checkpoints=checkpoints,
        rollouts=rollout_files.RolloutFiles(*given),
        profile_dir=str(workdir / 'profile'),
        **told,
      ).run(state, place)
    if told['stopping'].agreed:
      break
    if p.archives and hosts.is_main():
      archives.write(workdir, p, state, parts.tokenizer)
    # The next stage starts from the state of this one.
    place = loop.Place(index + 1, 0, int(state.step))
  writer.close()
  return state


def _problems_of(p: staging.Planned, problems: Problems, workdir) -> Problems:
  """Returns a stage's problems: with the solutions or the pairs of an earlier
  stage, if it reads them.
  """
  if p.config.data.solutions:
    problems = archives.applied(p, problems, workdir)
  if p.kind in preference_pairs.KINDS:
    with hosts.zero_first():
      name = preference_pairs.name_of(p.config[p.kind], p.config.data)
      problems = preference_pairs.of_earlier_stage(problems, name)
  return problems


def _begin(
  values: dict, track: str, workdir, place: loop.Place, is_near: bool
) -> metrics.Writer:
  """Records the start, or the resumption; returns the writer of metrics."""
  resuming = place.record is not None
  if resuming:
    kind = ', of an emergency checkpoint' if is_near else ''
    say(f'Resuming at step {place.total}{kind}.')
  events.write_config(values, workdir, resuming)
  events.note(workdir, 'start', step=place.total, reached=reached(workdir))
  writer = _writer(values, track, workdir, place)
  if resuming:
    begun = metrics.Begun.of(place.record)
    writer.warn_of_gap(place.total - begun.steps)
  return writer


def _writer(
  values: dict, track: str, workdir, place: loop.Place
) -> metrics.Writer:
  """Returns the writer of metrics, after it wrote the config at the start."""
  tracked, flat = [], trees.flatten(values)
  flat = {key.replace('/', '.'): value for key, value in flat.items()}
  resume_step = None if place.record is None else place.total
  if hosts.is_main():
    if resume_step is None:
      lines.move_aside(workdir)
    tracked = trackers.start(workdir, flat, track)
  writer = metrics.Writer(workdir, resume_step, tracked, place.owes_evaluation)
  if resume_step is None:
    writer.hyper_parameters(flat)
  return writer


def reached(workdir: epath.Path) -> int:
  """Returns the last step for which the previous run wrote metrics."""
  told = hosts.is_main() and metrics_file.exists(workdir)
  steps = [r['step'] for r in metrics_file.read(workdir)] if told else []
  return max(steps, default=0)


def restore(planned, checkpoints, parts: Prepared) -> loop.Place:
  """Reads the newest readable checkpoint: its position and its state.

  Args:
    planned: the stages of the run.
  """

  def read(step: int, record: dict, restored) -> loop.Place:
    p = planned[record['stage']]
    where = stage_transition.layout(p, parts)
    state = restored(where.template, where.shardings)
    done, ended = record['done'], loop.ended(p, record)
    reduced = not ended and done >= p.config[p.kind].steps
    return loop.Place(
      record['stage'], done, step, ended, record, state, reduced
    )

  found = checkpoints.latest(read)
  place = found[1] if found else loop.Place()
  checkpoints.begin(place.total)
  return place


def _restore_data(stage: stages.Stage, record: dict) -> None:
  stage.data.set_state(record['data'])
  if stage.stats is not None:
    if stage.stats.fits(record['stats']):
      stage.stats.set_state(record['stats'])
    else:
      say(
        'data/seen, data/never_solved and data/always_solved begin anew: the '
        'checkpoint has no counts of these prompts.'
      )
  if stage.invalid is not None and record.get('invalid'):
    stage.invalid.set_state(record['invalid'])


def _checkpoints(
  c: Checkpoint, workdir: epath.Path, origin: dict
) -> manager.Checkpoints:
  """Opens the checkpoints of the workdir, after comparing the run's origin on
  all processes.
  """
  told = hosts.gather(origin)
  for i, other in enumerate(told):
    differing = [k for k in origin if other[k] != told[0][k]]
    if differing:
      raise ValueError(
        f'process {i} has other {differing[0]} than process 0: the files '
        'behind config.data and config.model_dir must be the same on all hosts'
      )
  near = None
  if c.emergency_every:
    near = emergency.Emergency(workdir, c.emergency_every, c.emergency_dir)
  return manager.Checkpoints(
    workdir,
    c.keep,
    verify=c.verify,
    origin=origin,
    same_data=c.same_data,
    near=near,
  )


def use_compile_cache(folder: str) -> None:
  """Enables the cache of compiled programs between runs.

  Args:
    folder: of the cache; 'auto' is the folder in JAX_COMPILATION_CACHE_DIR, or
      the user's cache; '' disables it.
  """
  if not folder or (folder == 'auto' and jax.config.jax_compilation_cache_dir):
    return
  if folder == 'auto':
    folder = reading.cache_dir() / 'xla'
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.2)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
