"""Prepares a run without weights, data or devices, to lower its programs.

  shapes(config, mesh, model) -> prepare.Prepared

The mesh may have described devices. A model on the Hub has the shape that the
zoo lists under its name. A stand-in replaces a missing data set or tokenizer;
it changes only the shape of the table of the tokens' bytes.
"""

import dataclasses
import pathlib
from typing import Any

import jax
from jax.sharding import Mesh

from jaxrl_reason import sharding
from jaxrl_reason.checkpoints import hf, pretrained
from jaxrl_reason.config import Data, Model, Run
from jaxrl_reason.data import (
  preference_pairs,
  step_labels,
  teacher_answers,
  tokenizers,
)
from jaxrl_reason.data import problems as problems_lib
from jaxrl_reason.models import families, transformer, zoo
from jaxrl_reason.planning import depth
from jaxrl_reason.run import prepare
from jaxrl_reason.run.checks import config_checks
from jaxrl_reason.run.rl import teachers
from jaxrl_reason.update.learner import SAME
from jaxrl_reason.verifiers import tasks

EXAMPLE = {
  'task': 'stand-in',
  'prompt': '',
  'solution': '',
  'answer': '1',  # Questions to a judge need an answer and a rubric.
  'rubric': ({'criterion': '1'},),
}


def shape_of(
  c: Model, model_dir: str, model: str = '', n_tokens: int = 0
) -> transformer.Config:
  """Reads the sizes of `--model`: a folder's config.json, the zoo or the
  recipe.

  Args:
    n_tokens: of the tokenizer; read if the recipe has the sizes.
  """
  runtime = {k: c[k] for k in families.RUNTIME} | {'remat': 'none'}
  if not model and not model_dir:
    return prepare.architecture(c, n_tokens, None)
  if name := zoo_name(model_dir, model):
    return dataclasses.replace(zoo.ZOO[name], **runtime)
  found = hf.read_config(pathlib.Path(model_dir))
  return families.from_hf(found, **runtime)


def zoo_name(model_dir: str, model: str = '') -> str:
  """Returns the name in the zoo of `--model`, or of the recipe's `model_dir`;
  '' if the recipe or a folder has its sizes.

  Raises:
    ValueError: there is no published size with this name.
  """
  folder = pathlib.Path(model_dir)
  if not model and (not model_dir or (folder / 'config.json').is_file()):
    return ''
  return pretrained.size_of(model or model_dir)


def texts(data: Data, seed: int) -> tuple[problems_lib.Problems, Any]:
  """Returns (problems, tokenizer), or stand-ins if files are missing."""
  problems = problems_lib.Problems([EXAMPLE], [], None, None, 'numbers', None)
  if tasks.is_known(data.name):
    problems = problems_lib.load(data, seed)
  tokenizer = tokenizers.ByteTokenizer()
  if data.tokenizer == 'char':
    tokenizer = problems_lib.make_tokenizer(data, problems, None)
  return problems, tokenizer


def sized_teacher(name: str) -> str:
  """Returns the size of the zoo that `rl.teacher.weights` names, or the weights
  themselves: a folder on this machine, or the policy's own.

  Raises:
    ValueError: names the key; there is no such published size.
  """
  if name in ('', *SAME) or pathlib.Path(name.partition('@')[0]).is_dir():
    return name
  try:
    return teachers.ZOO + pretrained.size_of(name)
  except ValueError as e:
    raise ValueError(
      f'rl.teacher.weights={name!r} is no folder on this machine and no '
      f'published size: choose one of {", ".join(zoo.ZOO)} for the plan'
    ) from e


def shapes(
  config: Run,
  mesh: Mesh,
  model: str = '',
  layers: int = 0,
) -> prepare.Prepared:
  """Prepares a run whose programs can be lowered and never executed.

  Args:
    model: a name in `zoo.ZOO` that replaces the recipe's model.
    layers: number of layers to keep; 0: all.

  Raises:
    ValueError: as in a real run, or if the model's shape is unknown.
  """
  config_checks.check(config, sharding.row_shards(mesh))
  problems, tokenizer = texts(config.data, config.seed)
  kinds = [k for k in config.stages if k in preference_pairs.KINDS]
  pair = dict.fromkeys(preference_pairs.FIELDS, '')
  spelled = (t.decode('utf-8', 'replace') for t in tokenizer.token_bytes())
  mark = next(t for t in spelled if t.strip() and '\ufffd' not in t)
  for c in (config[k] for k in kinds):
    row = step_labels.BLANK if c.labels else pair
    # Of two problems, as KTO needs.
    rows = [row, row | {'prompt': mark}]
    problems.pairs[preference_pairs.name_of(c, config.data)] = rows
  if 'sft' in config.stages and (path := config.sft.teacher):
    name = preference_pairs.name_of(config.sft, config.data)
    problems.pairs[name] = [teacher_answers.blank(path)]
  n_tokens = tokenizer.vocab_size
  shape = shape_of(config.model, config.model_dir, model, n_tokens)
  shape = depth.cut(shape, layers) if layers else shape
  parts = prepare.assemble(config, mesh, problems, tokenizer, shape)
  root, stop = jax.eval_shape(lambda: (parts.root, parts.stop))
  return parts._replace(root=root, stop=stop)
