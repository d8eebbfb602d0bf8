"""Saves and restores the checkpoints of a run with orbax, asynchronously. The
newest N and the ends of stages are kept.

A checkpoint has the TrainState's arrays by path, and a JSON record: stage, step
in the stage, state of the data, statistics of prompts, the origin of the run
(`origin`) and the shapes. A checkpoint that does not fit is refused with the
reason. Orbax renames a finished folder into place, so a kill during a save
leaves the previous checkpoint. If checksums (`sums`) prove damage, a checkpoint
is renamed and the previous one is used. No other error renames a checkpoint,
and a run that has had checkpoints never starts again by itself.
"""

import contextlib
import dataclasses
import functools
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from jaxrl_reason import hosts, trees
from jaxrl_reason.checkpoints import described, emergency, files, quiet, sums
from jaxrl_reason.checkpoints import origin as origin_lib
from jaxrl_reason.checkpoints.described import Damaged, Unreadable, unreadable
from jaxrl_reason.checkpoints.emergency_note import disown

STATE, RECORD = 'state', 'record'
ASIDE = ('damaged-', 'torn-')  # damaged checkpoints
CHECKPOINTS = 'checkpoints'  # this folder of a workdir has a folder per step
NOTE = 'saved.json'  # in the workdir: the number of its newest checkpoint


class NothingLeft(ValueError):
  """A workdir whose checkpoints are all missing or damaged."""


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


def _handlers(written) -> ocp.handlers.DefaultCheckpointHandlerRegistry:
  """Returns orbax's handlers, with checksums for arrays.

  Args:
    written: called when the files of a checkpoint are written.
  """
  found = ocp.handlers.DefaultCheckpointHandlerRegistry()
  found.add(STATE, ocp.args.StandardSave, sums.Handler(written))
  found.add(RECORD, ocp.args.JsonSave, ocp.handlers.JsonCheckpointHandler())
  return found


class Checkpoints:
  """The checkpoints of one workdir.

  Args:
    keep: number of newest checkpoints to keep, in addition to ends of stages.
    verify: compute the checksums of a checkpoint before it is used. Otherwise
      compare sizes, and compute checksums only if it cannot be read.
    origin: of the run (`origin.of_run`), stored in each and compared.
    same_data: refuse a checkpoint of other data.
    near: the emergency checkpoints, or None.
  """

  def __init__(
    self,
    workdir: epath.Path,
    keep: int | None,
    *,
    verify: bool = True,
    origin: dict | None = None,
    same_data: bool = True,
    near: emergency.Emergency | None = None,
  ):
    self._workdir = files.absolute(workdir)
    self._dir = self._workdir / CHECKPOINTS
    self.near = near
    self._kept = Kept(keep)
    self._verify, self._same_data = verify, same_data
    self._origin = origin or {}
    # The last save: start and GB; `told` has its metrics when it is written.
    self._begun, self._gb, self._told = 0.0, 0.0, {}
    options = ocp.CheckpointManagerOptions(
      preservation_policy=self._kept,
      enable_async_checkpointing=True,
      # Else, where a folder cannot be made, the threads that would write in it
      # wait ten minutes for it, and the process for them.
      async_options=ocp.options.AsyncOptions(
        create_directories_asynchronously=False
      ),
      create=True,
      # Otherwise orbax reads its own file of each, which may be damaged.
      lightweight_initialize=True,
    )
    self._manager = ocp.CheckpointManager(
      self._dir, options=options, handler_registry=_handlers(self._written)
    )

  def _written(self) -> None:
    took = time.monotonic() - self._begun
    self._told = {'perf/save_s': took, 'perf/save_gb': self._gb}

  def told(self) -> dict[str, float]:
    """Returns seconds and GB of the last save, to its last byte, or of the last
    restore.
    """
    return self._told | (self.near.told if self.near else {})

  def _complete(self, record: dict, arrays: dict[str, Any]) -> dict:
    """Returns a record with the keys that every record has."""
    ends = sorted(self._kept.ends)
    record = record | {'arrays': described.shapes(arrays), 'ends': ends}
    return record | {'origin': self._origin}

  def begin(self, step: int) -> None:
    """Records that the run continues from a step, after all checks."""
    if self.near:
      self.near.begin(step)
    else:
      disown(self._workdir)

  def near_due(self, step: int) -> bool:
    """Returns True if an emergency checkpoint of a step is due."""
    return self.near is not None and self.near.due(step)

  def save_near(self, step: int, state: Any, record: dict) -> None:
    """Begins an emergency checkpoint; the arrays may then be donated."""
    arrays = trees.flatten(state)
    self.near.save(step, arrays, self._complete(record, arrays))

  def save(self, step: int, state: Any, record: dict) -> None:
    """Begins a save; the arrays may be donated as soon as this returns.

    Raises:
      OSError: this or the previous save could not be written; lists the
        remaining checkpoints.
    """
    arrays = trees.flatten(state)
    if jax.default_backend() == 'cpu':
      # There the writer thread would read the live buffers themselves, which
      # the next step overwrites.
      arrays = jax.tree.map(jnp.copy, arrays)
    if record.get('finished'):
      self._kept.ends.add(step)
    record = self._complete(record, arrays)
    record |= {'sum': sums.of_json(record)}
    args = ocp.args.Composite(
      state=ocp.args.StandardSave(arrays), record=ocp.args.JsonSave(record)
    )
    if self.near:
      self.near.passed(step)
    self.wait()  # for the previous save, as orbax would
    self._begun, self._gb = time.monotonic(), described.gb(arrays)
    with self._explained():
      self._manager.save(step, args=args)
    if self.near and record.get('finished'):
      self.wait()  # a start from a later emergency checkpoint never saves it

  def steps(self) -> list[int]:
    """Lists the steps with a finished checkpoint, oldest first."""
    return sorted(self._manager.all_steps())

  def record(self, step: int) -> dict:
    """Returns the record of a step.

    Raises:
      Damaged: it differs from the saved record.
      Unreadable: the file system cannot read it.
    """
    path = self._dir / str(step) / RECORD / 'metadata'
    try:
      found = files.retried(str(path), lambda: json.loads(path.read_text()))
    except FileNotFoundError as e:
      raise Damaged(f'{RECORD}/metadata is missing') from e
    except OSError as e:
      raise unreadable(path, e) from e
    except ValueError as e:
      raise Damaged(f'{RECORD}/metadata is no JSON: {e!s:.100}') from e
    if not isinstance(found, dict) or 'arrays' not in found:
      raise Damaged(f'{RECORD}/metadata lacks what every record has')
    # Records of older versions have no checksum.
    if 'sum' in found:
      rest = {k: v for k, v in found.items() if k != 'sum'}
      if sums.of_json(rest) != found['sum']:
        raise Damaged(f'{RECORD}/metadata has another checksum')
    return found

  def damage(self, step: int, *, whole: bool) -> str:
    """Describes proven damage in this process's share of a checkpoint's files;
    '' if there is none, or if the checkpoint has no checksums.

    Raises:
      Unreadable: the file system cannot read them.
    """
    try:
      if 'sum' not in self.record(step):
        return ''
      me, n = jax.process_index(), jax.process_count()
      folder = self._dir / str(step) / STATE
      found = sums.damage(folder, whole=whole, part=me, parts=n)
      return found and f'{STATE}/{found}'
    except Damaged as e:
      return str(e)
    except Unreadable:
      raise
    except OSError as e:
      raise unreadable(self._dir / str(step), e) from e

  def restore(
    self, step: int, record: dict, template: Any, shardings: Any
  ) -> Any:
    """Returns the state saved at `step`, with these shardings.

    Args:
      record: of the step.
      template: tree of ShapeDtypeStruct, as from `jax.eval_shape`.

    Raises:
      described.Incompatible: names the arrays that differ.
      Damaged: it cannot be read, and its checksums prove damage.
      Unreadable: it cannot be read, and they prove no damage.
    """
    flat = trees.flatten(template)
    at = self._dir / str(step)
    described.refuse_other(at, record['arrays'], described.shapes(flat))
    wanted = {
      k: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=s)
      for (k, v), s in zip(flat.items(), jax.tree.leaves(shardings))
    }
    args = ocp.args.StandardRestore(wanted)

    begun = time.monotonic()

    def read():
      return sums.Handler().restore(at / STATE, args=args)

    try:
      # Any error of orbax and tensorstore in a read.
      found = files.retried(str(at), read, kinds=(Exception,))
    except Exception as e:
      if damage := self.damage(step, whole=True):
        raise Damaged(damage) from e
      raise unreadable(at, e) from e
    took = time.monotonic() - begun
    self._told = {
      'perf/restore_s': took,
      'perf/restore_gb': described.gb(found),
    }
    treedef = jax.tree.structure(template)
    return treedef.unflatten([found[k] for k in flat])

  def latest(self, read) -> tuple[int, Any] | None:
    """Returns (step, read(step, record, restore)) of the newest undamaged
    checkpoint; `restore(template, shardings)` returns its state. Returns None
    if the workdir has never had a checkpoint.

    Damaged checkpoints are renamed to `damaged-<step>` and skipped with a
    warning. Errors of `read` are passed on, except `Damaged`.

    Raises:
      NothingLeft: there were checkpoints, and none can be used.
      Unreadable: a checkpoint cannot be read, and no damage is proven.
      origin.Other: it is of another run.
    """
    for step in reversed(self._common_steps()):
      if near := self._nearer(step, read):
        return near
      found, damage = None, self.damage(step, whole=self._verify)
      # One process may have found damage in a part that the others do not read.
      damage = next((d for d in hosts.gather(damage) if d), '')
      if not damage:
        try:
          found = self._read(step, read)
        except Damaged as e:
          damage = str(e)
        damage = next((d for d in hosts.gather(damage) if d), '')
      if not damage:
        self._note(step)
        return step, found
      self._set_aside(step, damage)
    if near := self._nearer(0, read):
      return near
    self._refuse_to_begin_again()
    return None

  def _common_steps(self) -> list[int]:
    """Returns `steps`, which must be the same on all processes."""
    lists = hosts.gather(self.steps())
    for i, other in enumerate(lists):
      if other != lists[0]:
        raise Unreadable(
          f'process {i} lists {other}, and process 0 {lists[0]}, as the steps '
          f'in {self._dir}. Nothing was changed: start the same command again '
          "when that host's file system shows the newest files"
        )
    return lists[0]

  def _read(self, step: int, read) -> Any:
    record, at = self.record(step), self._dir / str(step)
    self._check(at, record)
    return read(step, record, functools.partial(self.restore, step, record))

  def _check(self, at, record: dict) -> None:
    origin_lib.check(at, record, self._origin, same_data=self._same_data)
    self._kept.ends = set(record.get('ends', ()))

  def _nearer(self, than: int, read) -> tuple[int, Any] | None:
    """Returns `latest` of the emergency checkpoints after a step."""
    found = self.near and self.near.latest(than, self._check, read)
    if found:
      self._told = self.near.restored
    return found

  def _refuse_to_begin_again(self) -> None:
    # Not a glob, which takes a folder that cannot be read for an empty one.
    aside = [p for p in self._dir.iterdir() if p.name.startswith(ASIDE)]
    note = self._workdir / NOTE
    had = note.read_text().strip() if note.exists() else ''
    if not (aside or had):
      return
    what = ', '.join(sorted(p.name for p in aside)) or 'nothing'
    raise NothingLeft(
      f'{self._dir} holds no checkpoint that can be used, but has had some '
      f'({NOTE}: {had or "missing"}; set aside: {what}). Put one back, or '
      'start with --fresh: it moves all of the workdir aside and begins at '
      'step 0'
    )

  def _set_aside(self, step: int, damage: str) -> None:
    here, aside = self._dir / str(step), self._dir / f'damaged-{step}'
    with hosts.zero_first():
      if hosts.is_main():
        n = 1
        while aside.exists():
          n, aside = n + 1, self._dir / f'damaged-{step}-{n}'
        logging.warning(
          'Checkpoint %s is damaged: %s. Set aside as %s; trying the one '
          'before.',
          here,
          damage,
          aside,
        )
        here.rename(aside)
    self._manager.reload()

  def _note(self, step: int) -> None:
    """Records in the workdir that it has had a checkpoint."""
    if hosts.is_main():
      files.write_whole(self._workdir / NOTE, json.dumps({'newest': step}))

  def wait(self) -> None:
    """Waits until the current save is on disk.

    Raises:
      OSError: it could not be written; lists the remaining checkpoints.
    """
    with self._explained():
      self._manager.wait_until_finished()
      steps = self.steps()
      if steps:
        self._note(steps[-1])

  @contextlib.contextmanager
  def _explained(self):
    """Raises an error of the writer thread with the reason and a remedy."""
    try:
      yield
    except Exception as e:
      reason = files.refusal(e)
      if reason is None:
        raise
      kept = ocp.utils.checkpoint_steps(self._dir)
      quiet.explained_once.set()
      raise OSError(
        f'a checkpoint could not be written to {self._dir}: {reason}. '
        f'Kept: {", ".join(map(str, sorted(kept))) or "none"}. Make room and '
        'start the same command again to go on from the newest.'
      ) from e

  def close(self) -> None:
    """Finishes the current save."""
    with self._explained():
      self._manager.close()
