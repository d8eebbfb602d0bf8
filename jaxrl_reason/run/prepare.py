"""What a run is made of, from its configuration: data, tokenizer, model.

`prepare` is training's; `planning.abstract` puts stand-ins for what is not at
hand into the same `assemble`, so both refuse the same configurations.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
from absl import logging
from etils import epath

from jaxrl_reason import config as config_lib
from jaxrl_reason import hosts, sharding, trees
from jaxrl_reason.base import Model
from jaxrl_reason.checkpoints import hf, other_run, pretrained
from jaxrl_reason.data import problems as problems_lib
from jaxrl_reason.models import adapters, families, remat, transformer
from jaxrl_reason.models.adapters import lora
from jaxrl_reason.run import config_checks, fits, hosted, staging


class Prepared(NamedTuple):
  """What `prepare` gives, to be taken apart: nobody passes it on.

  Attributes:
    mesh: of all devices.
    problems: by split; tokenizer: of `data.tokenizers`.
    model: its functions, adapters attached; shape: its Config.
    root: key of the run, which steps fold their number into.
    stop: i32 [E], stop tokens.
  """

  mesh: jax.sharding.Mesh
  problems: problems_lib.Problems
  tokenizer: Any
  model: Model
  shape: transformer.Config
  root: jax.Array
  stop: jax.Array


def prepare(config: ml_collections.ConfigDict, workdir: epath.Path) -> Prepared:
  """Makes everything but the weights.

  Raises:
    ValueError: the configuration cannot work; names the key.
  """
  mesh = sharding.make_mesh(config.mesh)
  config_checks.check(config, sharding.row_shards(mesh))
  if config.model_dir:
    other_run.refuse_as_model(config.model_dir)
  problems = problems_lib.load(config.data, config.seed)
  with hosts.zero_first():
    fits.tell(config.model_dir, workdir)
    folder = config.model_dir and pretrained.begin(
      config.model_dir,
      workdir,
      config.model.rope_scale,
      functools.partial(_check_folder, config.data),
    )
    tokenizer = problems_lib.make_tokenizer(
      config.data, problems, workdir, folder
    )
  problems = problems_lib.rendered(
    problems, config.data, tokenizer, folder, hosted.schemas(config)
  )
  problems, dropped = problems_lib.drop_long(problems, config.data, tokenizer)
  for split, n in dropped.items():
    if n:
      logging.warning('Dropped %d examples of %s: too long.', n, split)
  shape = architecture(config.model, tokenizer.vocab_size, folder)
  return assemble(config, mesh, problems, tokenizer, shape)


def _check_folder(data: ml_collections.ConfigDict, folder) -> None:
  """Reads what a run needs of a model's folder beside its weights.

  Raises:
    ValueError, FileNotFoundError: names what is not there or cannot be read.
  """
  families.from_hf(hf.read_config(folder))
  if data.tokenizer == 'hf':
    problems_lib.make_tokenizer(data, None, None, folder)


def assemble(
  config: ml_collections.ConfigDict,
  mesh: jax.sharding.Mesh,
  problems: problems_lib.Problems,
  tokenizer: Any,
  shape: transformer.Config,
) -> Prepared:
  """Puts a run together from its parts, refusing what does not go together.

  Args:
    shape: of the model, nothing recomputed yet.
  """
  shape = remat_within(config, mesh, shape)
  for planned in staging.each(config):
    config_checks.check_experts(planned.config, shape.experts)
    config_checks.check_positions(planned.config.rl, shape)
  model = model_of(shape, config)
  config_checks.check_trainable(config, trees.flatten(model.specs))
  return Prepared(
    mesh,
    problems,
    tokenizer,
    model,
    shape,
    jax.random.key(config.seed),
    jnp.asarray(tokenizer.eos_ids, jnp.int32),
  )


def remat_within(config, mesh, shape: transformer.Config) -> transformer.Config:
  """Gives the model's shape the remat policy asked for; auto: that which a
  budget allows.
  """
  if config.model.remat != 'auto':
    return dataclasses.replace(shape, remat=config.model.remat)
  shards = sharding.row_shards(mesh)
  stages = staging.each(config)
  rows = max(config_lib.micro_batch(p.config, shards) for p in stages)
  length = config_lib.prompt_room(config) + config.data.completion_len
  length = -(-length // mesh.shape['context'])
  shape = remat.choose(shape, rows, length, config.remat_gib * 2**30)
  logging.info(
    'remat=%s keeps activations of %d x %d tokens on a device within '
    'remat_gib=%g.', shape.remat, rows, length, config.remat_gib,
  )  # fmt: skip
  return shape


def architecture(c, n_tokens: int, folder) -> transformer.Config:
  """Gives the model's shape, nothing recomputed yet: of config.json where it
  came from a folder, else of a `model` section.
  """
  c = c.to_dict() | {'remat': 'none'}
  if not folder:
    # A multiple of 8, so that a tensor axis divides it; ids past the
    # tokenizer's decode to nothing.
    vocab = -(-n_tokens // 8) * 8
    if c['rope_scale'] != 1:
      raise ValueError(
        f'model.rope_scale={c["rope_scale"]:g} stretches the rotary table of '
        'model_dir, which is empty: set model.rope_theta instead'
      )
    return transformer.Config(vocab=vocab, **c)
  shape = families.from_hf(
    hf.read_config(folder), **{k: c[k] for k in families.RUNTIME}
  )
  hf.check_vocab(n_tokens, shape, folder)
  return shape


def model_of(shape: transformer.Config, c) -> Model:
  """Builds the model with its adapters and its frozen weights' dtype."""
  return adapters.attach(
    transformer.build(shape),
    lora=lora.Lora(**c.lora.to_dict()) if c.lora.rank else None,
    steering=c.steering,
    frozen_dtype=c.frozen_dtype,
    trainable=config_lib.trainable(c),
  )
