"""Reads the weights of another run, or of an earlier stage of this one.

  init_from=WORKDIR[@step]      the first weights of a run
  named.<stage>.weights=STAGE   the first weights of a stage

One warm start then serves many runs. Only the parameters are read; optimizer,
data position and step count begin anew. Each array is read into the shards of
the target mesh, so that no device ever holds all weights.
"""

import hashlib
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from jaxrl_reason import hosts, trees
from jaxrl_reason.checkpoints import files, manager, sums
from jaxrl_reason.hosts import reading
from jaxrl_reason.names import program

# Where the paths of the parameters, and of a critic's, begin in a record.
PARAMS, CRITIC = 'params/', 'critic/params/'


def is_run(folder: epath.PathLike) -> bool:
  """Returns True if a folder is the workdir of a run."""
  return (epath.Path(folder) / manager.CHECKPOINTS).is_dir()


def split_step(name: str) -> tuple[str, int | None]:
  """Splits 'WORKDIR@step' to (workdir, step); other names to (name, None).

  Raises:
    ValueError: the text after a workdir is no number.
  """
  folder, at, step = name.rpartition('@')
  if not at or not begun(folder):
    return name, None
  if not step.isdecimal():
    raise ValueError(f'{name!r}: the step {step!r} is no whole number')
  return folder, int(step)


def begun(folder: str) -> bool:
  """Returns whether a folder is the workdir of a run, and not only a checkpoint
  of `convert`.
  """
  return is_run(folder) or (epath.Path(folder) / 'events.jsonl').is_file()


def _shape_of(description: str) -> jax.ShapeDtypeStruct:
  """Parses a description such as 'float32[2, 3]' (`described.shapes`)."""
  dtype, shape = description.removesuffix(']').split('[')
  sizes = tuple(map(int, shape.split(', '))) if shape else ()
  return jax.ShapeDtypeStruct(sizes, dtype)


class Weights:
  """The parameters of one checkpoint.

  Attributes:
    shapes: path -> ShapeDtypeStruct.
    arrays: the same of every array of the state.

  Raises:
    ValueError: the checkpoint does not exist.
    manager.Damaged: its files differ from the files that were saved.
  """

  def __init__(
    self, workdir: epath.PathLike, step: int | None = None, over: str = ''
  ):
    """Args:
    step: of the checkpoint; None selects the newest one.
    over: beginning of the paths of arrays that replace parameters, such as
      'critic/params/body/'; '': none.
    """
    workdir = files.absolute(workdir)
    checkpoints = manager.Checkpoints(workdir, keep=1)
    step = _existing(workdir, checkpoints.steps(), step)
    self._folder = workdir / manager.CHECKPOINTS / str(step)
    # Each process checks its share of the files.
    damages = hosts.gather(checkpoints.damage(step, whole=True))
    checkpoints.close()
    if damage := next(filter(None, damages), ''):
      raise manager.Damaged(
        f'{self._folder} is damaged: {damage}. Move that folder away to read '
        'the checkpoint before it'
      )
    arrays = checkpoints.record(step)['arrays']
    self.arrays = {path: _shape_of(text) for path, text in arrays.items()}
    self._at = {
      path.removeprefix(start): path
      for start in filter(None, (PARAMS, over))
      for path in arrays
      if path.startswith(start)
    }
    self.shapes = {path: self.arrays[at] for path, at in self._at.items()}

  def read(self, shardings: dict[str, jax.sharding.Sharding]) -> dict[str, Any]:
    """Reads parameters by path; every process must call this.

    Args:
      shardings: by path, of the parameters to read.
    """
    at = {path: x for path, x in self._at.items() if path in shardings}
    found = self.read_arrays({x: shardings[path] for path, x in at.items()})
    return {path: found[x] for path, x in at.items()}

  def read_arrays(
    self, shardings: dict[str, jax.sharding.Sharding]
  ) -> dict[str, Any]:
    """Reads arrays of the state by path; every process must call this."""
    wanted = {
      path: jax.ShapeDtypeStruct(
        self.arrays[path].shape, self.arrays[path].dtype, sharding=where
      )
      for path, where in shardings.items()
    }
    args = ocp.args.PyTreeRestore(
      item=wanted,
      restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
      partial_restore=True,
    )
    handler = ocp.PyTreeCheckpointHandler()
    return handler.restore(self._folder / manager.STATE, args=args)


def _existing(workdir, steps: list[int], step: int | None) -> int:
  if not steps:
    raise ValueError(f'{workdir} has no finished checkpoint')
  if step is not None and step not in steps:
    raise ValueError(f'{workdir} has no checkpoint of step {step}: {steps}')
  return steps[-1] if step is None else step


def newest_with(
  workdir: epath.PathLike, path: str, step: int | None = None
) -> int | None:
  """Returns the newest checkpoint with an array of that path, or None.

  Args:
    step: of the only checkpoint to look at; None: all.
  """
  checkpoints = manager.Checkpoints(files.absolute(workdir), keep=1)
  steps = [s for s in reversed(checkpoints.steps()) if step in (None, s)]
  found = (s for s in steps if path in checkpoints.record(s)['arrays'])
  newest = next(found, None)
  checkpoints.close()
  return newest


def fingerprint(workdir: epath.PathLike, step: int) -> str:
  """Returns a digest of the checksums of a checkpoint's arrays; '' if it is of
  a version without checksums.
  """
  folder = files.absolute(workdir) / manager.CHECKPOINTS / str(step)
  path = folder / manager.STATE / sums.NAME
  if not path.exists():
    return ''
  return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def stages_until(workdir: epath.PathLike, step: int) -> tuple[str, ...]:
  """Returns the stages of a run up to that of a checkpoint."""
  folder = files.absolute(workdir)
  checkpoints = manager.Checkpoints(folder, keep=1)
  at = checkpoints.record(step).get('stage', 0)
  checkpoints.close()
  stages = reading.json_object(folder / 'config.json')['stages']
  return tuple(stages[: at + 1])


def read_params(
  workdir: epath.Path, step: int | None = None, only: str = ''
) -> dict[str, Any]:
  """Reads the parameters of a checkpoint onto one device of this process.

  Args:
    step: of the checkpoint; None selects the newest one.
    only: beginning of the paths to read.

  Returns:
    Nested dictionaries.
  """
  weights = Weights(workdir, step)
  paths = [path for path in weights.shapes if path.startswith(only)]
  device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  return trees.unflatten(weights.read(dict.fromkeys(paths, device)))


def origin_of(name: str) -> tuple[str, int | None]:
  """Splits the value of `init_from` to (workdir, step).

  Raises:
    ValueError: the text after a workdir is no number.
  """
  try:
    return split_step(name)
  except ValueError as e:
    raise ValueError(f'init_from={e}') from e


def read(name: str, specs: Any, bare: Any, where: Any) -> Any:
  """Reads the parameters of `WORKDIR[@step]` into their shards on the mesh.

  Reads all parameters, or those of the bare model if that run had no adapters.

  Args:
    specs: tree of `models.spec.Spec`; where: their shardings.
    bare: the specs without adapters.

  Raises:
    ValueError: the folder is no run, has no such checkpoint, or the weights are
      of another model.
  """
  workdir, step = origin_of(name)
  if not is_run(workdir):
    raise ValueError(
      f'init_from={name!r}: {workdir} is no workdir of a run; for a folder in '
      'Hugging Face layout set model_dir'
    )
  weights = Weights(workdir, step)
  wanted = trees.flatten(specs)
  if weights.shapes.keys() == trees.flatten(bare).keys():
    wanted = trees.flatten(bare)
  shapes = {k: tuple(x.shape) for k, x in weights.shapes.items()}
  for path in sorted(wanted.keys() | shapes.keys()):
    here = path in wanted and tuple(wanted[path].shape)
    if here != shapes.get(path, False):
      raise ValueError(
        f'init_from={name!r} has another model: {path} is '
        f'{shapes.get(path, "missing")} there and {here or "missing"} here; '
        'set the same model section and adapters'
      )
  return trees.unflatten(weights.read(trees.flatten(where)))


def read_stage(workdir: epath.Path, step: int, shardings: Any) -> Any:
  """Reads the parameters of an earlier stage of a run into their shards.

  Args:
    step: of the checkpoint with which that stage ended.
    shardings: tree, as the parameters.
  """
  weights = Weights(workdir, step)
  return trees.unflatten(weights.read(trees.flatten(shardings)))


def refuse_as_model(folder: str) -> None:
  """Refuses `model_dir=WORKDIR`: `init_from` is the key for a workdir."""
  if is_run(folder):
    raise ValueError(
      f'model_dir={folder!r} is the workdir of a run: set init_from to start '
      f'from its weights, or make a folder of it with {program()} convert '
      f'--from={folder} --to=DIR'
    )
