"""Weights of another run, to start from: `init_from=WORKDIR[@step]`.

One warm start then serves many runs: the parameters alone are read, so that
optimizer, data and steps begin anew.
"""

import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from jaxrl_reason import trees
from jaxrl_reason.checkpoints import files, manager


def is_run(folder: str) -> bool:
  """Tells whether a folder is the workdir of a run."""
  return (epath.Path(folder) / 'checkpoints').is_dir()


def _undescribed(text: str) -> jax.ShapeDtypeStruct:
  """Inverse of `_described`: 'float32[2, 3]'."""
  dtype, shape = text.removesuffix(']').split('[')
  return jax.ShapeDtypeStruct(tuple(map(int, shape.split(', '))), dtype)


def read_params(workdir: epath.Path, step: int | None = None) -> dict[str, Any]:
  """Returns the parameters alone of a workdir's checkpoint, as nested
  dictionaries on the default device: the optimizer's state is not read.

  Args:
    step: of the checkpoint; None: the newest.

  Raises:
    ValueError: there is no such checkpoint, or it is damaged.
  """
  workdir = files.absolute(workdir)
  checkpoints = manager.Checkpoints(workdir, keep=1)
  steps = checkpoints.steps()
  checkpoints.close()
  if not steps:
    raise ValueError(f'{workdir} has no finished checkpoint')
  step = steps[-1] if step is None else step
  if step not in steps:
    raise ValueError(f'{workdir} has no checkpoint of step {step}: {steps}')
  if damage := checkpoints.damage(step, whole=True):
    raise manager.Damaged(
      f'{workdir}/checkpoints/{step} is damaged: {damage}. Move that folder '
      'away to read the checkpoint before it'
    )
  described = checkpoints.record(step)['arrays']
  where = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
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
  path = workdir / 'checkpoints' / str(step) / manager.STATE
  found = ocp.PyTreeCheckpointer().restore(path, args=args)
  return trees.unflatten(
    {k.removeprefix('params/'): v for k, v in found.items()}
  )


def read(name: str, specs: Any, bare: Any, where: Any) -> Any:
  """Reads the parameters of `WORKDIR[@step]`, laid out on the mesh: all of
  them, or those of the bare model where that run had no adapters.

  Args:
    specs: tree of `models.spec.Spec`; where: their shardings.
    bare: the specs without adapters.

  Raises:
    ValueError: no run, no such checkpoint, or weights of another model.
  """
  workdir, _, step = name.partition('@')
  if not is_run(workdir):
    raise ValueError(
      f'init_from={name!r}: {workdir} is no workdir of a run; for a folder in '
      'Hugging Face layout set model_dir'
    )
  found = read_params(epath.Path(workdir), int(step) if step else None)
  wanted, found = trees.flatten(specs), trees.flatten(found)
  if found.keys() == trees.flatten(bare).keys():
    wanted = trees.flatten(bare)
  shapes = {k: tuple(x.shape) for k, x in found.items()}
  for path in sorted(wanted.keys() | shapes.keys()):
    asked = path in wanted and tuple(wanted[path].shape)
    if asked != shapes.get(path, False):
      raise ValueError(
        f'init_from={name!r} has another model: {path} is '
        f'{shapes.get(path, "missing")} there and {asked or "missing"} here; '
        'set the same model section and adapters'
      )
  places = trees.flatten(where)
  return trees.unflatten(
    {k: jax.device_put(x, places[k]) for k, x in found.items()}
  )


def refuse_as_model(folder: str) -> None:
  """Refuses `model_dir=WORKDIR`, which `init_from` is for."""
  if pathlib.Path(folder).is_dir() and is_run(folder):
    raise ValueError(
      f'model_dir={folder!r} is the workdir of a run: set init_from to start '
      'from its weights, or make a folder of it with python -m '
      f'jaxrl_reason.convert --from={folder} --to=DIR'
    )
