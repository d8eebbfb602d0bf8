"""Parts of a training step, in a chain: what happens around the update.

A part keeps memory from step to step (`TrainState.control[part.name]`) and
changes a step: it filters the batch, adds terms to rewards, records problem
statistics, steers the temperature, moves the reference. Parts form a chain, as
gradient transformations do in optax:

  chain.sampling   before generation: changes the sampling settings
  chain.before     after the verdicts, before the update: changes the batch
  chain.after      after the update: changes the state

A part of your own is one class: docs/extending.md.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_reason import trees
from jaxrl_reason.base import Batch, Metrics, Outcomes, TrainState
from jaxrl_reason.logits import Sampling

Memory = Any


class Step(NamedTuple):
  """Everything that is known between the verdicts and the update.

  Attributes:
    learner: the `update.learner.Learner`.
    state: before the update; earlier parts of the chain have changed it.
    sampling: settings that the completions were drawn with.
    sampled: the batch as it was generated.
    batch: the batch to train on; parts may mask tokens and change rewards.
    outcomes: of every generated completion, arrays [...,N]; with several rounds
      there are more of them than rows of the batch.
  """

  learner: Any
  state: TrainState
  sampling: Sampling
  sampled: Batch
  batch: Batch
  outcomes: Outcomes


class Part:
  """One part of a step; static: another part compiles another program.

  Subclasses override what they need. A method returns its memory with the
  shapes, dtypes and weak types that `init` returned.

  Attributes:
    name: of its memory in `TrainState.control`; unique in a chain.
    columns: number of columns that it adds to rows.
  """

  name: str = ''
  columns: int = 0

  def init(self, total: jax.Array) -> Memory | None:
    """Returns the memory before the first step; None: the part has no memory.

    Args:
      total: i32 [], steps of the run before this stage.
    """

  def sampling(self, memory: Memory, sampling: Sampling) -> Sampling:
    """Returns the settings that the step's completions are drawn with."""
    return sampling

  def before(self, memory: Memory, step: Step) -> tuple[Memory, Step, Metrics]:
    """Changes a step before its update."""
    return memory, step, {}

  def after(
    self, memory: Memory, state: TrainState, metrics: Metrics
  ) -> tuple[Memory, TrainState, Metrics]:
    """Changes the state after the update.

    Args:
      metrics: of the step so far.
    """
    return memory, state, {}


@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
  """Applies parts one after the other; static.

  Attributes:
    parts: in the order in which they are applied.

  Raises:
    ValueError: two parts have one name, or a memory begins weakly typed: the
      first update would make it strongly typed, and the step would be compiled
      a second time.
  """

  parts: tuple[Part, ...] = ()

  def __post_init__(self):
    names = [part.name for part in self.parts]
    twice = sorted({n for n in names if not n or names.count(n) > 1})
    if twice:
      raise ValueError(f'parts of a step need names of their own: {twice}')
    shapes = jax.eval_shape(self.init, jax.ShapeDtypeStruct((), jnp.int32))
    for path, x in trees.flatten(shapes).items():
      if x.weak_type:
        raise ValueError(
          f'control/{path} begins weakly typed: give it a dtype in `init`'
        )

  @property
  def columns(self) -> int:
    """Counts the columns that the parts add to rows."""
    return sum(part.columns for part in self.parts)

  def init(self, total: jax.Array) -> dict[str, Memory]:
    """Returns the memories before the first step, by name."""
    memories = {part.name: part.init(total) for part in self.parts}
    return {k: memory for k, memory in memories.items() if memory is not None}

  def sampling(self, control: dict | None, sampling: Sampling) -> Sampling:
    """Returns the settings that the next step's completions are drawn with."""
    for part in self.parts:
      sampling = part.sampling((control or {}).get(part.name), sampling)
    return sampling

  def before(self, step: Step) -> tuple[Step, Metrics]:
    """Applies every part before the update."""
    metrics = {}
    for part in self.parts:
      memory, step, more = part.before(_memory(part, step.state), step)
      step = step._replace(state=_remember(part, step.state, memory))
      metrics |= more
    return step, metrics

  def after(
    self, state: TrainState, metrics: Metrics
  ) -> tuple[TrainState, Metrics]:
    """Applies every part after the update; returns the metrics they add."""
    added = {}
    for part in self.parts:
      memory = _memory(part, state)
      memory, state, more = part.after(memory, state, metrics | added)
      state = _remember(part, state, memory)
      added |= more
    return state, added


def _memory(part: Part, state: TrainState) -> Memory | None:
  return (state.control or {}).get(part.name)


def _remember(part: Part, state: TrainState, memory: Memory) -> TrainState:
  """Puts a part's memory into the state.

  Raises:
    TypeError: it has other shapes or dtypes than before, so that the next step
      would be another program.
  """
  before = _memory(part, state)
  if memory is before:
    return state
  old, new = (trees.flatten({part.name: x}) for x in (before, memory))
  for path in sorted(old.keys() | new.keys()):
    types = [jax.typeof(x[path]) if path in x else None for x in (old, new)]
    if _kind(types[0]) != _kind(types[1]):
      raise TypeError(
        f'control/{path} was {types[0]} before a step and is {types[1]} after '
        f'it: {type(part).__name__} must keep shape, dtype and weak type'
      )
  return state.replace(control=state.control | {part.name: memory})


def _kind(x: Any) -> tuple | None:
  return x and (x.shape, x.dtype, x.weak_type)
