"""Makes the first state of a stage from the end of another stage.

the stage before, or another, or the run's first weights -> params
params -> a new state; fields in `named.<name>.keep` are carried over
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from etils import epath

from jaxrl_reason import trees
from jaxrl_reason.base import TrainState
from jaxrl_reason.checkpoints import manager, other_run
from jaxrl_reason.config import Run
from jaxrl_reason.run import stage_list as staging
from jaxrl_reason.run import stages, states
from jaxrl_reason.run.prepare import Prepared
from jaxrl_reason.run.rl import reward_models, teachers
from jaxrl_reason.run.stage_list import Planned
from jaxrl_reason.update import optim

# Settings that make room for a model beside the policy.
OF_TEACHER = "rl.teacher.memory='host', rl.teacher.dtype='int8'"
OF_REWARD_MODEL = 'a smaller reward model'


@contextlib.contextmanager
def _room(key: str, name: str, remedies: str) -> Iterator[None]:
  """Names the model whose weights have no room on the devices.

  Args:
    key: of the config, whose value is `name`; remedies: settings to choose.

  Raises:
    ValueError: in place of jax's error about memory.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as e:
    if not str(e).startswith('RESOURCE_EXHAUSTED'):
      raise
    raise ValueError(
      f'{key}={name!r} has no room on the devices beside the policy: choose '
      f'{remedies} or a larger fsdp axis; plan computes the memory of both '
      f'({str(e).splitlines()[0]:.120})'
    ) from e


def load_beside(
  run: Run,
  where: TrainState,
  end_of: Callable[[str], tuple[epath.Path, int]] | None = None,
) -> tuple[Any, Any]:
  """Loads the weights of a stage's teacher and of its reward model; None where
  there is none.

  Args:
    run: the config of the stage; where: shardings of its state.
    end_of: see `reward_models.load`.
  """
  c, teacher, reward = run.rl, None, None
  if where.teacher_params is not None:
    with _room(teachers.KEY, c.teacher.weights, OF_TEACHER):
      teacher = teachers.load(c.teacher, run.model, where.teacher_params)
  if where.reward_params is not None:
    name, rest = c.reward_model.weights, (where.reward_params, end_of)
    with _room(reward_models.KEY, name, OF_REWARD_MODEL):
      reward = reward_models.load(name, run.model, *rest)
  return teacher, reward


@dataclasses.dataclass(frozen=True)
class StageTransition:
  """Builds the first state of stage `index`.

  Attributes:
    planned: all stages.
    checkpoints: of the run, in whose workdir the ends of stages are kept.
    parts: of the run, for the weights that it began with.
  """

  planned: Sequence[Planned]
  index: int
  checkpoints: manager.Checkpoints
  workdir: epath.Path
  parts: Prepared

  def state(
    self, layout: states.Layout, before: TrainState | None, total: int
  ) -> TrainState:
    """Returns the first state of the stage.

    Args:
      before: the last state of the stage before, or None.
      total: steps of the run by now.
    """
    p = self.planned[self.index]
    if p.weights in ('', staging.START):
      if p.weights == '' and before is not None:
        params = before.params
      else:
        params = states.init_params(self.parts, self.workdir)
    else:
      key = f'named.{p.name}.weights={p.weights!r}'
      at = self._end_of(key, p.weights)
      params = other_run.read_stage(*at, layout.shardings.params)
    end_of = functools.partial(self._end_of, reward_models.KEY)
    beside = load_beside(p.config, layout.shardings, end_of)
    state = layout.begin(params, total, *beside)
    fields = [staging.KEEP[what] for what in p.keep]
    kept = {k: getattr(before, k) for k in fields}
    # The moments stay; the learning rate follows this stage's own schedule.
    return state.replace(**optim.rescheduled(kept))

  def _end_of(self, key: str, name: str) -> tuple[epath.Path, int]:
    """Returns the workdir and the last checkpoint of an earlier stage. It may
    be of a later step than the stage has now, if its `steps` was reduced.
    """
    self.checkpoints.wait()
    number = [p.name for p in self.planned].index(name)
    own = self.planned[number]
    for step in reversed(self.checkpoints.steps()):
      record = self.checkpoints.record(step)
      over = record['finished'] or record['done'] >= own.config[own.kind].steps
      if record['stage'] == number and over:
        return self.workdir, step
    raise ValueError(
      f'{key}: {self.workdir}/checkpoints has no end of stage {name} any more'
    )


def layout(p: Planned, parts: Prepared) -> states.Layout:
  """Lays the state of a stage out on the mesh."""
  rest = parts.model, p.kind, parts.problems, parts.tokenizer
  learner = stages.abstract_learner(p.config, *rest)
  return stages.layout(p.kind, p.config.rl, p.config.data, learner, parts)


def check(planned: Sequence[Planned], parts: Prepared) -> None:
  """Refuses fields in `keep` whose shapes differ between two stages.

  Raises:
    ValueError: names the key, and an array that differs.
  """
  for before, p in zip(planned, planned[1:]):
    if not p.keep:
      continue
    old, new = (layout(x, parts).template for x in (before, p))
    for what in p.keep:
      field = staging.KEEP[what]
      _refuse_other(p, what, getattr(old, field), getattr(new, field))


def _refuse_other(p: Planned, what: str, old: Any, new: Any) -> None:
  key = f'named.{p.name}.keep={what!r}'
  if not jax.tree.leaves(new):
    raise ValueError(f'{key}: the stage has no {what}')
  old, new = trees.flatten(old or {}), trees.flatten(new)
  for path in sorted(old.keys() | new.keys()):
    shapes = [
      jax.typeof(x[path]) if path in x else 'nothing' for x in (old, new)
    ]
    if shapes[0] != shapes[1]:
      raise ValueError(
        f'{key}: {path} is {shapes[0]} in the stage before and {shapes[1]} in '
        'this one; leave it out of keep, or change no size of it'
      )
