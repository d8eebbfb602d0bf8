"""From one stage of a run to the next: its first weights, and what of the state
goes on.

  the stage before, or another, or the run's first weights -> params
  params -> a new state, but for what `named.<name>.keep` lists
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from etils import epath

from jaxrl_reason import trees
from jaxrl_reason.base import Model, TrainState
from jaxrl_reason.checkpoints import manager, other_run
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.run import stages, staging, states
from jaxrl_reason.run.staging import Planned
from jaxrl_reason.update import optim


@dataclasses.dataclass(frozen=True)
class Passing:
  """Makes the first state of stage `index`.

  Attributes:
    planned: all stages.
    checkpoints: of the run, in whose workdir the ends of stages are kept.
    first: makes the weights that the run began with.
  """

  planned: Sequence[Planned]
  index: int
  checkpoints: manager.Checkpoints
  workdir: epath.Path
  first: Callable[[], Any]

  def state(
    self, layout: states.Layout, before: TrainState | None, total: int
  ) -> TrainState:
    """Gives the state.

    Args:
      before: the last one of the stage before; None: there is none.
      total: steps of the run by now.
    """
    p = self.planned[self.index]
    if p.weights in ('', staging.START):
      own = p.weights == '' and before is not None
      params = before.params if own else self.first()
    else:
      params = self._at_the_end_of(p.weights, layout)
    state = layout.begin(params, total)
    fields = [staging.KEEP[what] for what in p.keep]
    kept = {k: getattr(before, k) for k in fields}
    # Means go on; the learning rate is that of this stage's own schedule.
    return state.replace(**optim.rescheduled(kept))

  def _at_the_end_of(self, name: str, layout: states.Layout) -> Any:
    """The weights with which an earlier stage ended: it is kept on disk."""
    self.checkpoints.wait()
    number = [p.name for p in self.planned].index(name)
    for step in reversed(self.checkpoints.steps()):
      record = self.checkpoints.record(step)
      if record['stage'] == number and record['finished']:
        like = layout.template.params
        where = f'{self.workdir}@{step}'
        return other_run.read(where, like, like, layout.shardings.params)
    raise ValueError(
      f'named.{self.planned[self.index].name}.weights={name!r}: '
      f'{self.workdir}/checkpoints has no end of that stage any more'
    )


def layout(p: Planned, model: Model, mesh, problems: Problems) -> states.Layout:
  """Lays the state of a stage out on the mesh."""
  learner = stages.learner(p.config, model, p.kind)
  return stages.layout(p.config, p.kind, learner, mesh, problems)


def check(
  planned: Sequence[Planned], model: Model, mesh, problems: Problems
) -> None:
  """Refuses what cannot go on from one stage to the next.

  Raises:
    ValueError: names the key, and an array that differs.
  """
  for before, p in zip(planned, planned[1:]):
    if not p.keep:
      continue
    old, new = (layout(x, model, mesh, problems).template for x in (before, p))
    for what in p.keep:
      field = staging.KEEP[what]
      _refuse_other(p, what, getattr(old, field), getattr(new, field))


def _refuse_other(p: Planned, what: str, old: Any, new: Any) -> None:
  key = f'named.{p.name}.keep={what!r}'
  if new is None:
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
