"""The parts of a run, built from its config: data, tokenizer, model.

`prepare` is for training. `planning.abstract` calls the same `assemble` with
stand-ins for missing files, so both refuse the same configs.
"""

import dataclasses
import functools
from collections.abc import Sequence
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
from jaxrl_reason.config import RL, Data, Run, rules
from jaxrl_reason.config import Model as ModelSection
from jaxrl_reason.config.data import Files
from jaxrl_reason.config.rl_sections import Hidden
from jaxrl_reason.config.training import Supervised, Training
from jaxrl_reason.data import (
  lengths,
  preference_pairs,
  rendering,
  step_labels,
  teacher_answers,
)
from jaxrl_reason.data import problems as problems_lib
from jaxrl_reason.models import adapters, families, remat, transformer
from jaxrl_reason.models.adapters import lora
from jaxrl_reason.run import stage_list as staging
from jaxrl_reason.run import two_meshes
from jaxrl_reason.run.checks import config_checks, data_checks, model_memory
from jaxrl_reason.run.rl import hidden_settings, role_settings
from jaxrl_reason.verifiers.tools import toolbox


class Prepared(NamedTuple):
  """The parts of a run except its weights.

  Attributes:
    config: of all stages.
    mesh: of all devices, or of those that train.
    problems: by split; tokenizer: of `data.tokenizers`.
    model: its functions, adapters attached; shape: its Config.
    root: key of the run; steps fold their number into it.
    stop: i32 [E], stop tokens.
    sampler_mesh: of the devices that only sample; None: `mesh` does both.
  """

  config: Run
  mesh: jax.sharding.Mesh
  problems: problems_lib.Problems
  tokenizer: Any
  model: Model
  shape: transformer.Config
  root: jax.Array
  stop: jax.Array
  sampler_mesh: jax.sharding.Mesh | None = None

  @property
  def evaluated(self) -> Model:
    """Returns the model that evaluations sample from."""
    c = self.config.rl
    roles = c.role_adapters
    return role_settings.evaluated(c, self.model) if roles else self.model


def prepare(
  config: ml_collections.ConfigDict | Run, workdir: epath.Path
) -> Prepared:
  """Builds all parts of a run except its weights.

  Raises:
    ValueError: the config cannot work; names the key.
  """
  run = config_lib.read(config)
  if run.sampler_mesh:
    mesh, sampler_mesh = two_meshes.split(run.mesh, run.sampler_mesh)
  else:
    mesh, sampler_mesh = sharding.make_mesh(run.mesh), None
  config_checks.check(run, sharding.row_shards(mesh))
  if run.model_dir:
    other_run.refuse_as_model(run.model_dir)
    with hosts.zero_first():
      pretrained.look(run.model_dir, workdir)
  problems = problems_lib.load(run.data, run.seed)
  if run.data.sources or run.data.files != Files():
    rules.refuse(data_checks.heldout_rules, run.data)
  with hosts.zero_first():
    folder = run.model_dir
    if folder:
      model_memory.tell(folder, workdir)
      check = functools.partial(_check_folder, run.data)
      folder = pretrained.begin(folder, workdir, run.model.rope_scale, check)
    first = run.init_from and other_run.origin_of(run.init_from)[0]
    tokenizer = problems_lib.make_tokenizer(
      run.data, problems, workdir, folder, first
    )
  loaded = problems
  tools = toolbox.prompted(run.rl) if run.rl.turns.env == 'tools' else None
  problems = problems_lib.rendered(problems, run.data, tokenizer, folder, tools)
  stages = [p.config for p in staging.each(run)]
  solution_len = _solution_len(stages)
  problems, dropped = problems_lib.drop_long(
    problems, run.data, tokenizer, solution_len
  )
  lengths.check(problems, run.data, tokenizer, solution_len)
  kinds = preference_pairs.KINDS
  of_pairs = [c for c in stages if c.stages[0] in kinds]
  taught = [c for c in stages if c.stages == ('sft',) and c.sft.teacher]
  if of_pairs or taught:
    # The solved problems of data.shots are the first ones as loaded.
    render = rendering.common_renderer(
      run.data, loaded.train, tokenizer, folder, tools
    )
    rest = of_pairs, tokenizer, render
    problems = preference_pairs.with_pairs(problems, *rest, workdir)
    problems = step_labels.with_labels(problems, *rest)
    rest = taught, tokenizer, render
    problems = teacher_answers.with_answers(problems, *rest)
  for split, n in dropped.items():
    if n:
      logging.warning('Dropped %d examples of %s: too long.', n, split)
  shape = architecture(run.model, tokenizer.vocab_size, folder)
  parts = assemble(run, mesh, problems, tokenizer, shape)
  return parts._replace(sampler_mesh=sampler_mesh)


def _solution_len(stages: Sequence[Run]) -> int | None:
  """Returns the most tokens of a reference solution, in the stage with the
  shortest rows; None if no stage reads solutions.
  """
  rows = [
    c.data.completion_len
    for c in stages
    if _reads_solutions(c.training(c.stages[0]))
  ]
  return min(rows, default=None)


def _reads_solutions(c: Training) -> bool:
  """Returns whether a stage reads the reference solutions of problems: not one
  with pairs, labels of steps or answers of a teacher.
  """
  if isinstance(c, RL):
    return c.reads_solutions
  return isinstance(c, Supervised) and not c.teacher


def _check_folder(data: Data, folder) -> None:
  """Reads the files of a model's folder that a run needs beside its weights.

  Raises:
    ValueError, FileNotFoundError: names the file that is missing or unreadable.
  """
  families.from_hf(hf.read_config(folder))
  if data.tokenizer == 'hf':
    problems_lib.make_tokenizer(data, None, None, folder)


def assemble(
  config: Run,
  mesh: jax.sharding.Mesh,
  problems: problems_lib.Problems,
  tokenizer: Any,
  shape: transformer.Config,
) -> Prepared:
  """Returns the parts of a run, after the checks that need the model.

  Args:
    shape: of the model, with remat='none'.
  """
  stages = [p.config for p in staging.each(config)]
  if config.model.remat == 'auto':
    rows = max(c.micro_batch(sharding.row_shards(mesh)) for c in stages)
    columns = config.prompt_columns + config.data.completion_len
    columns = -(-columns // mesh.shape['context'])
    shape = _with_remat(shape, rows, columns, config.remat_gib)
  else:
    shape = dataclasses.replace(shape, remat=config.model.remat)
  for c in stages:
    sections = {kind: c.training(kind) for kind in c.stages}
    routes = c.rl.replay_routes
    rules.refuse(config_checks.expert_rules, sections, routes, shape.experts)
    if c.rl.views.hidden != Hidden():
      rules.refuse(hidden_settings.layer_rules, c.rl, shape.layers)
    if any(r.kind == 'longrope' for r in shape.rope_tables):
      rules.refuse(config_checks.position_rules, sections)
  model = transformer.build(shape)
  if config.adapter_paths or config.frozen_dtype != 'float32':
    rl = config.rl
    roles = len(role_settings.names(rl)) if rl.role_adapters else 1
    model = adapters.attach(
      model,
      lora=lora.Lora(**config.lora.to_dict(), roles=roles)
      if config.lora.rank
      else None,
      steering=config.steering,
      frozen_dtype=config.frozen_dtype,
      trainable=config.trained_paths,
    )
  paths = trees.flatten(model.specs)
  config_checks.check_trainable(config, paths)
  root = jax.random.key(config.seed)
  stop = jnp.asarray(tokenizer.eos_ids, jnp.int32)
  return Prepared(config, mesh, problems, tokenizer, model, shape, root, stop)


def _with_remat(
  shape: transformer.Config, rows: int, columns: int, gib: float
) -> transformer.Config:
  """Returns the model's shape with as little recomputation as keeps the
  activations of the largest micro-batch of a device within `gib`.
  """
  shape = remat.choose(shape, rows, columns, gib * 2**30)
  logging.info(
    'remat=%s keeps activations of %d x %d tokens on a device within '
    'remat_gib=%g.', shape.remat, rows, columns, gib,
  )  # fmt: skip
  return shape


def architecture(c: ModelSection, n_tokens: int, folder) -> transformer.Config:
  """Returns the model's shape, with remat='none'.

  Args:
    n_tokens: of the tokenizer.
    folder: whose config.json has the sizes; empty: the section has them.
  """
  values = c.to_dict() | {'remat': 'none'}
  if not folder:
    # A multiple of 8, so that a tensor axis divides it; ids past the
    # tokenizer's decode to nothing.
    vocab = -(-n_tokens // 8) * 8
    if c.rope_scale != 1:
      raise ValueError(
        f'model.rope_scale={c.rope_scale:g} extends the rotary table of '
        'model_dir, which is empty: set model.rope_theta instead'
      )
    return transformer.Config(vocab=vocab, **values)
  shape = families.from_hf(
    hf.read_config(folder), **{k: values[k] for k in families.RUNTIME}
  )
  hf.check_vocab(n_tokens, shape, folder)
  return shape
