"""Runs the cells of one program together: `several_runs.rl_seeds`.

  states [S,...], prompts [S,K,B,...], roots [S], values [S] -> states, metrics

The loop is that of a single run, with S states. Every run has the files of a
single run. Checkpoints before the end contain all states.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from jaxrl_reason import hosts, sharding, trees
from jaxrl_reason.base import Prompts, TrainState
from jaxrl_reason.checkpoints import manager
from jaxrl_reason.config import Run
from jaxrl_reason.config.run import Checkpoint
from jaxrl_reason.run import loop, stage_transition, stages, states, train
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
from jaxrl_reason.run.records import events, metrics
from jaxrl_reason.run.rl import programs, several_runs, sources
from jaxrl_reason.run.rl import reward_functions as rewarding
from jaxrl_reason.studies import traced
from jaxrl_reason.studies.telling import Telling


class Data:
  """The problems of several runs; a batch has rows [S,...]."""

  def __init__(self, each: Sequence[goodput.Timed]):
    self._each = each

  @property
  def seconds(self) -> float:
    """Returns the seconds waited for the data of all runs."""
    return sum(data.seconds for data in self._each)

  def __next__(self) -> dict:
    rows = [next(data) for data in self._each]
    return trees.stacked(rows)

  def get_state(self) -> dict[str, list]:
    """Returns the positions of all runs."""
    return {'runs': [data.get_state() for data in self._each]}

  def set_state(self, state: dict[str, list]) -> None:
    """Continues from their positions."""
    for data, own in zip(self._each, state['runs']):
      data.set_state(own)


class Stacked:
  """The layout of S states as one, their first axis on every device.

  Attributes:
    one: of a single state.
    template, shardings: of all.
  """

  def __init__(self, one: states.Layout, mesh, n: int):
    def of_all(x):
      return jax.ShapeDtypeStruct((n, *x.shape), x.dtype)

    def put(s):
      spec = PartitionSpec(None, *s.spec)
      return NamedSharding(mesh, spec, memory_kind=s.memory_kind)

    self.one, self.n = one, n
    self.template = jax.tree.map(of_all, one.template)
    self.shardings = jax.tree.map(put, one.shardings)
    self._pick = jax.jit(trees.take, out_shardings=one.shardings)

  def stack(self, each: Sequence[TrainState]) -> TrainState:
    """Stacks single states."""
    put = jax.jit(
      lambda trees: jax.tree.map(lambda *x: jnp.stack(x), *trees),
      out_shardings=self.shardings,
    )
    return put(list(each))

  def pick(self, state: TrainState, i: int) -> TrainState:
    """Returns the state of one run."""
    return self._pick(state, i)


class Evaluators:
  """Evaluates every run on its own problems."""

  said = ''

  def __init__(self, each, layout: Stacked, starts: Sequence, workdirs):
    self._each, self._layout = each, layout
    self._starts, self._workdirs = starts, workdirs

  def of(
    self,
    state: TrainState,
    total: int,
    name: str,
    stopped: Callable[[], bool],
  ) -> list[dict] | None:
    """Returns the metrics of each run; None if `stopped` ended an evaluation.

    Before the first step, runs of one seed and warm start are the same policy
    on the same problems and are evaluated once.
    """
    out, first = [], {}
    for i, evaluate in enumerate(self._each):
      start = self._starts[i]  # its seed and warm start
      if total == 0 and start in first:
        _copy_evaluation(self._workdirs[first[start]], self._workdirs[i])
        out.append(out[first[start]])
        continue
      first[start] = i
      params = self._layout.pick(state, i).params
      values = evaluate(params, total, name, stopped)
      if values is None:
        return None
      out.append(values)
    return out


def _copy_evaluation(source: epath.Path, to: epath.Path) -> None:
  """Copies the files of an evaluation at step 0."""
  if not hosts.is_main():
    return
  names = '00000000.json', 'problems.json'
  for name in ('samples/00000000.jsonl', *(f'evaluations/{n}' for n in names)):
    (to / name).parent.mkdir(exist_ok=True)
    (to / name).write_text((source / name).read_text())


class Nothing:
  """Replaces the rollout files: a program of several runs has none."""

  def note(
    self, first: int, stage: str, shown: Any, examples: Any = None
  ) -> None:
    """Does nothing."""

  def flush(self) -> None:
    """Does nothing: nothing is stored."""


class Loop(loop.Loop):
  """The loop of a stage, with evaluations of each run."""

  def evaluate(self, state: TrainState) -> bool:
    """Evaluates all runs; returns False if a signal ended the evaluation."""
    hosts.at(step=self.total, doing='evaluating')
    with self.spent.on('evaluation'), self.watchdog.watched('evaluation'):
      values = self.evaluator.of(
        state, self.total, self.name, self.stopping.reached
      )
    if values is not None:
      self.journal.evaluated(self.total, values)
    return values is not None

  def cut(self, state: TrainState, begun: metrics.Begun, keep) -> None:
    """Saves inside an interval; a diverged run does not stop the others."""
    self.save(state, keep, begun=begun.record())


def run(
  configs: Sequence[Run],
  folders: Sequence[epath.PathLike],
  folder: epath.PathLike,
) -> bool:
  """Runs the rl stage of several configurations of one program.

  Args:
    folders: workdir of each; folder: of their shared files.

  Returns:
    Whether they are done; False if a signal ended them; all are saved.
  """
  values = configs[0].json_values()
  start = identity.of_start(values, folder)
  with signals.Stopping() as stopping:
    with workdirs.opened(start, folder) as folder, logs.kept(folder):
      own = [epath.Path(f) for f in folders]
      for path in own:
        path.mkdir(parents=True, exist_ok=True)
      return _run(configs, own, folder, stopping)


def _run(configs, own, folder: epath.Path, stopping) -> bool:
  started, config = time.monotonic(), traced.richest(configs)
  train.use_compile_cache(config.compile_cache)
  made = [prepare(c, w) for c, w in zip(configs, own)]
  _refuse_other_tokens(made)
  c, d = config.rl, config.data
  rewarding.check(c, d, made[0].problems, made[0].tokenizer)
  compiled = compile_log.Log()
  spent = goodput.Spent(started, compiled)
  w = config.watchdog
  watch = watchdog.Watchdog(w.times, w.floor_s, compiled, w.first_s)
  checkpoints = _checkpoints(config.checkpoint, folder, made)
  told = dict(stopping=stopping, spent=spent, watchdog=watch)
  told |= dict(checkpoints=checkpoints, rollouts=Nothing())
  told |= dict(profile_dir=str(folder / 'profile'))
  with jax.set_mesh(made[0].mesh), hosts.explained(), compiled, watch:
    layout, stage = _stage(configs, made)
    planned = staging.Planned('rl', 'rl', config)
    place = _restore(planned, checkpoints, layout)
    logs.begin()
    told['journal'] = Telling(configs, own, place, compiled, spent)
    with _closed(told['journal'], checkpoints, stopping):
      told['evaluator'] = _evaluators(configs, own, made, layout)
      state = place.state
      if state is None:
        state = _first(configs, own, made, layout)
      else:
        stage.data.set_state(place.record['data'])
      state = Loop(planned, 0, stage, **told).run(state, place)
      checkpoints.wait()
    if not stopping.agreed:
      _finish(own, made, layout, state, stage, told['journal'].diverged)
  if not stopping.agreed:
    shutil.rmtree(folder / manager.CHECKPOINTS)
  return not stopping.agreed


def _refuse_other_tokens(made: Sequence[Prepared]) -> None:
  """Refuses runs with other tokens than the first: one program encodes and
  decodes the texts of all.
  """
  for p in made:
    if p.tokenizer.token_bytes() != made[0].tokenizer.token_bytes():
      raise ValueError(
        f'seed {p.config.seed} trained another tokenizer than seed '
        f'{made[0].config.seed}, and one program cannot read both: set '
        "--at_once=1, data.tokenizer='byte', or warm='shared', where all runs "
        'read the tokenizer of the warm start'
      )


@contextlib.contextmanager
def _closed(journal: Telling, checkpoints, stopping):
  """Closes the files of all runs at the end, and after an error."""
  try:
    yield
  except hosts.Lost:
    raise  # an unfinished save would wait for processes that have ended
  except BaseException:
    journal.close(stopped=False)
    checkpoints.close()
    raise
  checkpoints.close()
  journal.close(stopping.agreed)


def _checkpoints(c: Checkpoint, folder, made: Sequence[Prepared]):
  """Opens the checkpoints with the states of all runs."""
  origins = [_origin(p) for p in made]
  data = {str(i): identity.digest(o['data']) for i, o in enumerate(origins)}
  return manager.Checkpoints(
    folder, c.keep, verify=c.verify, origin=origins[0] | {'data': data}
  )


def _origin(p: Prepared) -> dict:
  return identity.of_run(p.problems, p.tokenizer, ('rl',))


def _stage(configs, made) -> tuple[Stacked, stages.Stage]:
  """Builds the layout of all states, and the stage that dispatches all runs."""
  config = traced.richest(configs)
  p, c, d = made[0], config.rl, config.data
  k = c.steps_per_dispatch
  program = traced.maker(config, p.model, p.problems.kernel, p.tokenizer)
  numbers = [traced.values(x.rl, x.objective) for x in configs]
  learner, _, _ = program(numbers[0])
  one = stages.layout('rl', c, d, learner, p)
  layout = Stacked(one, p.mesh, len(configs))
  _, encode, _ = stages.fused_source(
    c, d, learner, p.problems.kernel, p.tokenizer
  )
  row = stages.prompt_encoder(c, d, p.tokenizer, encode)
  data = Data([
    sources.batches(
      x.seed, m.problems.train, row, c.prompts, k, 'rl', p.mesh, c.refill_rounds
    )
    for x, m in zip(configs, made)
  ])  # fmt: skip
  steps = programs.updating(several_runs.rl_seeds, 1, layout.shardings)
  roots = jnp.stack([m.root for m in made])
  columns = {k: np.stack([n[k] for n in numbers]) for k in numbers[0]}

  def split(x):
    return x.reshape(len(configs), k, -1, *x.shape[2:])

  def dispatch(state, more):
    del more
    rows = jax.tree.map(split, next(data))
    rows = sharding.to_global(rows, p.mesh, axis=2)
    return *steps(program, state, Prompts(**rows), roots, columns, p.stop), {}

  return layout, stages.Stage(learner, one, data, dispatch, k)


def _restore(
  planned: staging.Planned, checkpoints, layout: Stacked
) -> loop.Place:
  """Restores the position of all runs."""

  def read(step: int, record: dict, restored) -> loop.Place:
    state = restored(layout.template, layout.shardings)
    ended = loop.ended(planned, record)
    return loop.Place(0, record['done'], step, ended, record, state)

  found = checkpoints.latest(read)
  return found[1] if found else loop.Place()


def _first(configs, own, made, layout: Stacked) -> TrainState:
  """Builds the states before the first step, with the same first weights."""
  p, each = made[0], []
  for config, path, m in zip(configs, own, made):
    first = p._replace(config=m.config, root=m.root)
    params = states.init_params(first, path)
    beside = stage_transition.load_beside(config, layout.one.shardings)
    each.append(layout.one.begin(params, 0, *beside))
  return layout.stack(each)


def _evaluators(configs, own, made, layout: Stacked) -> Evaluators:
  """Builds an evaluator for each run; they share one program."""
  p, shared = made[0], {}
  each = [
    Evaluator(m._replace(model=p.model, mesh=p.mesh), path, shared)
    for path, m in zip(own, made)
  ]
  starts = [(c.seed, c.init_from) for c in configs]
  return Evaluators(each, layout, starts, own)


def _finish(own, made, layout: Stacked, state, stage, diverged) -> None:
  """Writes the files of a single run to each workdir, except curves.png (1.5 s
  each; `report` draws them). Diverged runs have no checkpoint.
  """
  each, total = stage.data.get_state()['runs'], int(state.step[0])
  for i, (path, m) in enumerate(zip(own, made)):
    if i in diverged:
      continue
    saved = manager.Checkpoints(path, keep=1, origin=_origin(m))
    record = {'stage': 0, 'done': total, 'finished': True, 'stats': None}
    record |= {'data': each[i], 'owes_evaluation': False, 'reached': False}
    if total not in saved.steps():  # an earlier start may have written it
      saved.save(total, layout.pick(state, i), record)
    saved.wait()
    saved.close()
    events.note(path, 'end', how='finished')
