"""Checkpoints of a run, by orbax: asynchronous, the newest N and the ends of
stages kept.

A checkpoint holds the TrainState's arrays by path, and a JSON record: stage,
step in it, data iterator state, per-prompt statistics, and the shapes, so that
one that does not fit is refused with the reason. Orbax renames a finished
folder into place, so a kill during a save leaves the one before; one whose
files are damaged later is set aside with a warning.
"""

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from jaxrl_reason import hosts, trees


class Incompatible(ValueError):
  """A checkpoint of another model, optimizer or loss than the config's."""


def _described(arrays: dict[str, Any]) -> dict[str, str]:
  return {k: f'{v.dtype}{list(v.shape)}' for k, v in arrays.items()}


def _refuse_if_other(path, saved: dict[str, str], wanted: dict[str, str]):
  if saved == wanted:
    return
  lines = [
    f'{k}: saved {saved.get(k, "nothing")}, config wants '
    f'{wanted.get(k, "nothing")}'
    for k in sorted(saved.keys() | wanted.keys())
    if saved.get(k) != wanted.get(k)
  ]
  more = f' (and {len(lines) - 3} more)' if len(lines) > 3 else ''
  raise Incompatible(
    f'{path} does not fit this config. {"; ".join(lines[:3])}{more}. Use the '
    'config it was made with, or another --workdir.'
  )


@dataclasses.dataclass
class Kept(ocp.checkpoint_managers.PreservationPolicy):
  """The newest n, and the end of every stage: what comes after it can then be
  tried again without it.
  """

  n: int
  ends: set[int] = dataclasses.field(default_factory=set)

  def should_preserve(self, checkpoints, *, context):
    del context
    old = len(checkpoints) - self.n
    return [i >= old or c.step in self.ends for i, c in enumerate(checkpoints)]


def _undescribed(text: str) -> jax.ShapeDtypeStruct:
  """Inverse of `_described`: 'float32[2, 3]'."""
  dtype, shape = text.removesuffix(']').split('[')
  return jax.ShapeDtypeStruct(tuple(map(int, shape.split(', '))), dtype)


def read_params(workdir: epath.Path, step: int | None = None) -> dict[str, Any]:
  """The parameters alone of a workdir's checkpoint, as nested dictionaries on
  the default device: the optimizer's state is not read.

  Args:
    step: of the checkpoint; None: the newest.

  Raises:
    ValueError: the workdir has no such checkpoint.
  """
  checkpoints = Checkpoints(workdir, keep=1)
  steps = checkpoints.steps()
  if not steps:
    raise ValueError(f'{workdir} has no finished checkpoint')
  step = steps[-1] if step is None else step
  if step not in steps:
    raise ValueError(f'{workdir} has no checkpoint of step {step}: {steps}')
  described = checkpoints.record(step)['arrays']
  checkpoints.close()
  where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  wanted = {
    k: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
    for k, text in described.items()
    if k.startswith('params/')
    for x in [_undescribed(text)]
  }
  args = ocp.args.PyTreeRestore(
    item=wanted,
    restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
    partial_restore=True,
  )
  path = workdir / 'checkpoints' / str(step) / 'state'
  found = ocp.PyTreeCheckpointer().restore(path, args=args)
  return trees.unflatten(
    {k.removeprefix('params/'): v for k, v in found.items()}
  )


class Checkpoints:
  """The checkpoints of one workdir."""

  def __init__(self, workdir: epath.Path, keep: int | None):
    self._dir = workdir / 'checkpoints'
    self._kept = Kept(keep)
    options = ocp.CheckpointManagerOptions(
      preservation_policy=self._kept,
      enable_async_checkpointing=True,
      create=True,
    )
    self._manager = ocp.CheckpointManager(self._dir, options=options)

  def save(self, step: int, state: Any, record: dict) -> None:
    """Begins a save; the arrays may be donated as soon as this returns."""
    arrays = trees.flatten(state)
    if jax.default_backend() == 'cpu':
      # There the writer thread would read the live buffers themselves, which
      # the next step overwrites.
      arrays = jax.tree.map(jnp.copy, arrays)
    if record.get('finished'):
      self._kept.ends.add(step)
    ends = sorted(self._kept.ends)
    record = record | {'arrays': _described(arrays), 'ends': ends}
    args = ocp.args.Composite(
      state=ocp.args.StandardSave(arrays), record=ocp.args.JsonSave(record)
    )
    with self._explained():
      self._manager.save(step, args=args)

  def steps(self) -> list[int]:
    """Steps with a finished checkpoint, oldest first."""
    return sorted(self._manager.all_steps())

  def record(self, step: int) -> dict:
    args = ocp.args.Composite(record=ocp.args.JsonRestore())
    return self._manager.restore(step, args=args)['record']

  def restore(
    self, step: int, record: dict, template: Any, shardings: Any
  ) -> Any:
    """The state saved at `step`, laid out as `shardings` say.

    Args:
      record: of the step.
      template: tree of ShapeDtypeStruct, as `jax.eval_shape` gives.

    Raises:
      Incompatible: names the arrays that differ.
    """
    flat = trees.flatten(template)
    at = self._dir / str(step)
    _refuse_if_other(at, record['arrays'], _described(flat))
    wanted = {
      k: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=s)
      for (k, v), s in zip(flat.items(), jax.tree.leaves(shardings))
    }
    args = ocp.args.Composite(state=ocp.args.StandardRestore(wanted))
    found = self._manager.restore(step, args=args)['state']
    treedef = jax.tree.structure(template)
    return treedef.unflatten([found[k] for k in flat])

  def latest(self, read) -> tuple[int, Any] | None:
    """(step, read(step, record)) of the newest checkpoint that can be read.

    Damaged ones are renamed to `torn-<step>` and skipped with a warning; what
    `read` raises as Incompatible is passed on.
    """
    for step in reversed(self.steps()):
      try:
        record = self.record(step)
        found, damage = read(step, record), ''
      except Incompatible:
        raise
      # Whatever orbax, tensorstore or json raise on a damaged file.
      except Exception as e:
        damage = f'{type(e).__name__}: {e!s:.300}'
      # One process may have met what the others did not have to read.
      damages = [d for d in hosts.gather(damage) if d]
      if not damages:
        self._kept.ends = set(record.get('ends', ()))
        return step, found
      self._set_aside(step, damages[0])
    return None

  def _set_aside(self, step: int, damage: str) -> None:
    here, aside = self._dir / str(step), self._dir / f'torn-{step}'
    with hosts.zero_first():
      if hosts.is_main():
        logging.warning(
          'Checkpoint %s cannot be read (%s). Set aside as %s; trying the one '
          'before.',
          here,
          damage,
          aside,
        )
        here.rename(aside)
    self._manager.reload()

  def wait(self) -> None:
    """Until what was begun is on disk; raises what went wrong there."""
    with self._explained():
      self._manager.wait_until_finished()

  @contextlib.contextmanager
  def _explained(self):
    """What the writer thread failed with, said so that a user can act."""
    try:
      yield
    except (OSError, ValueError) as e:
      # A full disk is a ValueError of tensorstore; others are ours.
      if isinstance(e, ValueError) and 'RESOURCE_EXHAUSTED' not in str(e):
        raise
      reason = 'no space left' if 'No space left' in str(e) else str(e)[:300]
      kept = self.steps()
      raise OSError(
        f'a checkpoint could not be written to {self._dir}: {reason}. '
        f'Kept: {", ".join(map(str, kept)) or "none"}. Make room and start '
        'the same command again to go on from the newest.'
      ) from e

  def close(self) -> None:
    self._manager.close()
