"""Weights of another run, to start from: `init_from=WORKDIR[@step]`.

One warm start then serves many runs: the parameters alone are read, so that
optimizer, data and steps begin anew.
"""

import pathlib
from typing import Any

import jax
from etils import epath

from jaxrl_reason import trees
from jaxrl_reason.checkpoints import manager


def is_run(folder: str) -> bool:
  """Whether a folder is the workdir of a run."""
  return (epath.Path(folder) / 'checkpoints').is_dir()


def read(name: str, specs: Any, where: Any) -> Any:
  """Reads the parameters of `WORKDIR[@step]`, laid out on the mesh.

  Args:
    specs: tree of `models.spec.Spec`; where: their shardings.

  Raises:
    ValueError: no run, no such checkpoint, or weights of another model.
  """
  workdir, _, step = name.partition('@')
  if not is_run(workdir):
    raise ValueError(
      f'init_from={name!r}: {workdir} is no workdir of a run; for a folder in '
      'Hugging Face layout set model_dir'
    )
  found = manager.read_params(epath.Path(workdir), int(step) if step else None)
  wanted, found = trees.flatten(specs), trees.flatten(found)
  shapes = {k: tuple(x.shape) for k, x in found.items()}
  for path in sorted(wanted.keys() | shapes.keys()):
    asked = path in wanted and tuple(wanted[path].shape)
    if asked != shapes.get(path, False):
      raise ValueError(
        f'init_from={name!r} has another model: {path} is '
        f'{shapes.get(path, "missing")} there and {asked or "missing"} here; '
        'set the same model section and adapters'
      )
  return jax.tree.map(jax.device_put, trees.unflatten(found), where)


def refuse_as_model(folder: str) -> None:
  """Refuses `model_dir=WORKDIR`, which `init_from` is for."""
  if pathlib.Path(folder).is_dir() and is_run(folder):
    raise ValueError(
      f'model_dir={folder!r} is the workdir of a run: set init_from to start '
      'from its weights, or make a folder of it with python -m '
      f'jaxrl_reason.convert --from={folder} --to=DIR'
    )
