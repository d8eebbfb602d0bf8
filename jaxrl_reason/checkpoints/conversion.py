"""Converts a model's folder between Hugging Face's, a run's and PEFT's layout.

`convert` is the command of that name; `read` and `read_run` return the content
of such a folder as (Config, config.json, parameters).
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
from etils import epath

from jaxrl_reason import names, sharding, trees
from jaxrl_reason.checkpoints import (
  files,
  hf,
  manager,
  other_run,
  pretrained,
)
from jaxrl_reason.hosts import reading
from jaxrl_reason.models import families, transformer, weights
from jaxrl_reason.models.adapters import frozen, lora, steering
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import tensors

HF_CONFIG = pretrained.HF_CONFIG
# Keys of a config.json that stay when its family changes.
NOT_OF_SHAPE = ('bos_token_id', 'eos_token_id', 'pad_token_id', 'torch_dtype')


def config_of_run(folder: epath.Path, vocab: int) -> tuple[Config, dict]:
  """Returns (Config, config.json) of a run's model. The settings of computation
  (`families.RUNTIME`) are the defaults, not those of its training.

  Args:
    vocab: rows of its embedding, which the run's config does not have.
  """
  kept = folder / HF_CONFIG
  if kept.is_file():
    h = reading.json_object(kept)
    return families.from_hf(h), h
  run = reading.json_object(folder / 'config.json')
  lists = {
    k: tuple(v) if isinstance(v, list) else v for k, v in run['model'].items()
  }
  unknown = lists.keys() - {f.name for f in dataclasses.fields(Config)}
  if unknown:
    raise ValueError(
      f'{folder}/config.json has model.{min(unknown)}, which this version does '
      'not know: another version of jaxrl_reason wrote it, and reads it'
    )
  c = families.architecture(Config(vocab=vocab, **lists))
  room = run['data']['prompt_len'] + run['data']['completion_len']
  return c, families.to_hf(c, room)


def lora_of_run(folder: epath.Path) -> lora.Lora:
  """Returns the settings of a run's adapters."""
  run = reading.json_object(folder / 'config.json')
  roles = 2 if run['rl'].get('role_adapters') else 1
  return lora.Lora(**run['lora'], roles=roles)


def adapters_of_run(folder: epath.Path, params: dict) -> dict:
  """Returns the parameters of a run with the adapters of one role: with
  `rl.propose` the solver, in a game the first player.
  """
  run = reading.json_object(folder / 'config.json')
  role = int(bool(run['rl'].get('propose')))
  return lora.of_role(params, role, lora_of_run(folder).roles)


def write_peft(
  source: epath.Path, target: pathlib.Path, dtype: str | None = None
) -> str:
  """Writes the adapters alone of a run, in the layout that `peft` reads.

  Args:
    dtype: a name in `hf.DTYPES`; None: that of the run's adapters.
  """
  found = other_run.Weights(source)
  parts = {path.partition('/')[0] for path in found.shapes}
  if steering.KEY in parts:
    raise ValueError(
      f'{source} was trained with steering vectors, which its adapters alone '
      'lack: leave --format=peft out, and both are part of the weights'
    )
  if lora.KEY not in parts:
    raise ValueError(f'{source} has no adapters')
  c, h = config_of_run(source, found.shapes['embed'].shape[0])
  params = other_run.read_params(source, only=f'{lora.KEY}/')
  table = families.adapted_of(h)
  kept = source / pretrained.FOLDER / pretrained.SOURCE
  name = reading.json_object(kept)['name'] if kept.is_file() else ''
  name = name.removeprefix(pretrained.HUB)
  specs = transformer.build(c).specs
  settings = lora_of_run(source)
  params = adapters_of_run(source, params)
  to = dtype and hf.DTYPES[dtype]
  lora.save_peft(target, params, settings, table, specs, name, c.stacks, to)
  return f'{trees.n_params(params[lora.KEY]):,} parameters of adapters'


def read_run(
  folder: epath.Path,
  step: int | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> tuple[Config, dict, Any]:
  """Returns (Config, config.json, parameters) of a run, see `read_weights`.

  Args:
    step: of the checkpoint; None selects the newest one.
  """
  found = other_run.Weights(folder, step)
  c, h = config_of_run(folder, found.shapes['embed'].shape[0])
  return c, h, read_weights(found, folder, weights.specs(c), mesh)


def read_weights(
  found: other_run.Weights,
  folder: epath.Path,
  specs: Any,
  mesh: jax.sharding.Mesh | None = None,
  finish: Callable[[Any], Any] | None = None,
  where: Any = None,
) -> Any:
  """Reads the weights of a run into their shards, with int8 dequantized and
  adapters merged; steering vectors are separate.

  Args:
    folder: the run's workdir.
    specs: of its model, without adapters.
    mesh: over which the weights are laid out; None: one device.
    finish: applied to the result, in the program that merges.
    where: shardings of the result of `finish`.
  """
  by_path = {}
  rest = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  if mesh is not None:
    laid = sharding.shardings(specs, mesh, sharding.TRAIN_RULES)
    by_path, rest = trees.flatten(laid), sharding.replicated(mesh)

  def place(path):
    return by_path.get(path.removesuffix(f'/{frozen.INT8}'), rest)

  params = trees.unflatten(found.read({p: place(p) for p in found.shapes}))
  if bad := hf.nonfinite(params):
    raise ValueError(f'{folder}: {bad} has values that are not finite')

  def whole(params):
    params = frozen.restored(params, specs)
    if lora.KEY in params:
      params = adapters_of_run(folder, params)
      params = lora.merged(params, lora_of_run(folder).scale)
    return params

  if finish is not None:
    return jax.jit(lambda p: finish(whole(p)), out_shardings=where)(params)
  paths = trees.flatten(jax.eval_shape(whole, params))
  if paths.keys() == found.shapes.keys():
    return params
  where = trees.unflatten({path: place(path) for path in paths})
  return jax.jit(whole, out_shardings=where)(params)


def _fold_steering(folder, c: Config, h: dict, params: Any):
  """Converts steering vectors to biases. config.json is then of a family with
  such biases: a Qwen2 becomes a Llama, which differs only in its keys.
  """
  try:
    params, c = steering.folded(params, c)
    made = families.to_hf(c, h.get('max_position_embeddings', 0))
  except ValueError as e:
    raise ValueError(
      f'{folder} was trained with steering vectors, which could only be biases '
      f'of its mlps: {h["model_type"]} has none, and no family that has them '
      '(llama, smollm3, granite) is this model. jaxrl generate reads it '
      'as it is; its checkpoint has the vectors as params/steering'
    ) from e
  return c, made | {k: h[k] for k in NOT_OF_SHAPE if k in h}, params


def read(folder: epath.Path, dtype: str | None) -> tuple[Config, dict, Any]:
  """Returns (Config, config.json, parameters) of a folder of either kind.

  Raises:
    ValueError: the folder is neither, or its weights do not fit its config.
  """
  if other_run.is_run(folder):
    c, h, params = read_run(folder)
    if steering.KEY in params:
      return _fold_steering(folder, c, h, params)
    return c, h, params
  h = hf.read_config(folder)
  c = families.from_hf(h)
  return c, h, hf.load(folder, c, dtype=dtype or hf.dtype_of(folder))


def cast(params: Any, dtype: str) -> Any:
  """Casts weights to a dtype, except those that `tensors.FLOAT32` names."""
  return trees.map_with_path(
    lambda path, x: x.astype(tensors.dtype_at(path, dtype)), params
  )


def _write_checkpoint(target: pathlib.Path, h: dict, params: Any) -> None:
  target.mkdir(parents=True, exist_ok=True)
  (target / HF_CONFIG).write_text(json.dumps(h, indent=2))
  checkpoints = manager.Checkpoints(epath.Path(target), keep=1)
  checkpoints.save(0, {'params': params}, {'stage': 0, 'done': 0})
  checkpoints.wait()
  checkpoints.close()


def dtype_of(h: dict, params: Any, int8: bool) -> str:
  """Returns the dtype in which a run's weights are exported.

  This is the dtype of the model that the run began from. It is float32 if that
  is not known, or if weights were kept as int8: the dequantized weights fit no
  narrower type, and rounding would lose what the adapters learnt.
  """
  kept = {str(x.dtype) for x in jax.tree.leaves(params)}
  default = kept.pop() if len(kept) == 1 else 'float32'
  dtype = str(h.get('dtype') or h.get('torch_dtype') or default)
  return 'float32' if int8 or dtype not in hf.DTYPES else dtype


def _beside(source: epath.Path, h: dict) -> pathlib.Path | None:
  """Returns the folder of the tensors outside the text model."""
  if not families.beside_of(h):
    return None
  if not other_run.is_run(source):
    return pathlib.Path(source)
  kept = source / pretrained.FOLDER / pretrained.SOURCE
  if not kept.is_file():
    return None
  begun = reading.json_object(kept)
  return pretrained.resolve(begun['name'], begun['revision'])[0]


def convert(
  source,
  target,
  *,
  dtype: str | None = None,
  form: str = 'hf',
  finish: Callable[[pathlib.Path], None] | None = None,
) -> str:
  """Converts a folder; returns a line that describes the result.

  The target appears when it is complete, or not at all. The source may be in an
  object store; the target is a folder on this machine.

  Args:
    dtype: of the weights on disk: a name in `hf.DTYPES`; None: the source's
      (`dtype_of`, of a run).
    form: 'hf' or 'orbax'; 'peft': of a run, its adapters alone.
    finish: adds the tokenizer to the folder of a run from scratch.

  Raises:
    ValueError: names what does not fit.
    FileExistsError: the target is not empty.
  """
  source = epath.Path(source)
  if not source.is_dir():
    hint = names.hub_hint(str(source))
    raise ValueError(f'--from={source} is no folder{hint and f".{hint}"}')
  with files.new_folder('--to', target) as folder:
    line = _convert(source, folder, dtype, form)
    if form == 'hf' and finish and is_from_scratch(source):
      finish(folder)
  return f'{line}: {target}'


def _convert(source: epath.Path, target, dtype: str | None, form: str) -> str:
  if form == 'peft':
    return write_peft(source, target, dtype)
  c, h, params = read(source, dtype)
  flat = trees.flatten(params)
  ours = other_run.is_run(source)
  if dtype is None and ours:
    dtype = dtype_of(h, params, is_int8(source))
  dtype = dtype or str(flat['embed'].dtype)
  # For a run: the small files of the model that it began from.
  rest = source / pretrained.FOLDER if ours else source
  if form == 'orbax':
    _write_checkpoint(target, h, cast(flat, dtype))
    pretrained.copy_small(rest, target / pretrained.FOLDER)
  else:
    beside = _beside(source, h)
    hf.save(target, params, c, dtype=dtype, config_json=h, beside=beside)
    own = ('config.json', pretrained.SOURCE)
    pretrained.copy_small(rest, target, without=own)
  line = f'{h["model_type"]}, {trees.n_params(flat):,} parameters, {dtype}'
  less = ours and dtype != 'float32' and str(flat['final_norm'].dtype) != dtype
  note = ', as the model it began from (--dtype=float32 rounds nothing)'
  return f'{line}{note if less else ""}'


def is_from_scratch(source) -> bool:
  """Returns True for the workdir of a run that began from no model."""
  source = epath.Path(source)
  has = other_run.is_run(source) and (source / 'config.json').is_file()
  return has and not (source / HF_CONFIG).is_file()


def is_int8(source: epath.Path) -> bool:
  """Returns True if a run kept weights as int8."""
  path = source / 'config.json'
  if not path.is_file():  # a checkpoint made by `convert`
    return False
  return reading.json_object(path).get('frozen_dtype') == frozen.INT8
