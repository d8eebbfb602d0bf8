"""Published families: conversion between config.json and Config.

A family is one file with

  ARCHITECTURE  the class that `transformers` builds
  DEFAULTS      values of the keys that a config.json may omit
  TENSORS       the weight of each tensor on disk (`published.tensors`)
  read(h)       fields of Config, beyond those that all families share
  write(c)      keys of config.json, beyond those that all families share
  ACTIVATIONS   {theirs: ours}, if it differs from `ACTIVATIONS` below
  beside(h)     a regex over the names of tensors that are not read, if any
  CONSTANTS     {tensor of every layer: its value}, if there are any
  rows_of(h)    the rows of TENSORS that a file has, if not all
  implied(h)    keys that follow from the others, if a file may omit them
  UNADAPTED     ends of names of tensors that `peft` does not adapt, if any
  MODULES       (start of names of tensors, of modules), if they differ
  UNWRITTEN     shared keys that `to_hf` leaves out, as this family reads none
  PACKED        quant_methods of its weights that `checkpoints.packed` widens

and a name in `FAMILIES`, its `model_type`. `from_hf` reads the files of
`transformers` in the old form (rope_theta, rope_scaling) and the new one
(rope_parameters), with that library's default for an absent key. Features that
the transformer lacks raise an error that names them. `to_hf` writes the old
form, which old and new readers understand.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.families import (
  apertus,
  cohere,
  cohere2,
  deepseek_v3,
  deepseek_v32,
  dots1,
  ernie4_5,
  ernie4_5_moe,
  falcon_h1,
  gemma,
  gemma2,
  gemma3_text,
  gemma3n_text,
  gemma4_text,
  gemma4_unified_text,
  glm4,
  glm4_moe,
  glm4_moe_lite,
  glm_moe_dsa,
  gpt_oss,
  granite,
  granitemoehybrid,
  hunyuan_v1_dense,
  lfm2,
  lfm2_moe,
  llama,
  llama4_text,
  minimax_m2,
  ministral3,
  mistral,
  mixtral,
  nemotron_h,
  olmo2,
  olmo3,
  olmoe,
  phi3,
  qwen2,
  qwen2_moe,
  qwen3,
  qwen3_5,
  qwen3_5_moe,
  qwen3_moe,
  qwen3_next,
  qwen3_vl,
  qwen3_vl_moe,
  seed_oss,
  smollm3,
)
from jaxrl_reason.models.published import (
  keys,
  ropes,
  tensors,
  unsupported,
  values,
  within,
)

# `to_hf` writes the first family that can represent a Config.
FAMILIES = {
  'llama': llama,
  'qwen2': qwen2,
  'qwen3': qwen3,
  'qwen3_moe': qwen3_moe,
  'mistral': mistral,
  'phi3': phi3,
  'mixtral': mixtral,
  'olmo2': olmo2,
  'olmo3': olmo3,
  'olmoe': olmoe,
  'smollm3': smollm3,
  'gemma': gemma,
  'gemma2': gemma2,
  'gemma3_text': gemma3_text,
  'gemma3n_text': gemma3n_text,
  'gemma4_text': gemma4_text,
  'gemma4_unified_text': gemma4_unified_text,
  'granite': granite,
  'gpt_oss': gpt_oss,
  'qwen2_moe': qwen2_moe,
  'glm4': glm4,
  'glm4_moe': glm4_moe,
  'deepseek_v3': deepseek_v3,
  'qwen3_next': qwen3_next,
  'seed_oss': seed_oss,
  'ernie4_5': ernie4_5,
  'ernie4_5_moe': ernie4_5_moe,
  'dots1': dots1,
  'glm4_moe_lite': glm4_moe_lite,
  'minimax_m2': minimax_m2,
  'hunyuan_v1_dense': hunyuan_v1_dense,
  'ministral3': ministral3,
  'apertus': apertus,
  'lfm2': lfm2,
  'lfm2_moe': lfm2_moe,
  'granitemoehybrid': granitemoehybrid,
  'nemotron_h': nemotron_h,
  'falcon_h1': falcon_h1,
  'cohere2': cohere2,
  'cohere': cohere,
  'llama4_text': llama4_text,
  'qwen3_vl_text': qwen3_vl,
  'qwen3_vl_moe_text': qwen3_vl_moe,
  'qwen3_5_text': qwen3_5,
  'qwen3_5_moe_text': qwen3_5_moe,
  'deepseek_v32': deepseek_v32,
  'glm_moe_dsa': glm_moe_dsa,
}
# Names that published folders have for a family.
SAME = {'kimi_k2': 'deepseek_v3'}
ACTIVATIONS = {'silu': 'silu', 'gelu_pytorch_tanh': 'gelu_tanh'}
# Fields that describe how a model runs, not its architecture.
RUNTIME = (
  'dtype',
  'numerics',
  'cache_dtype',
  'prefill',
  'remat',
  'train_layers',
  'decode_layers',
  'attention',
)


def beside_of(h: dict) -> str:
  """Returns a regex over the names of tensors that are not read; '': none."""
  family, parts = FAMILIES[family_of(h)], [within.beside_of(h)]
  if hasattr(family, 'beside'):
    own = family.DEFAULTS | within.text_of(h)
    values.check(own, family.DEFAULTS)
    with values.Reading(own) as own:
      parts.append(family.beside(own))
  return '|'.join(part for part in parts if part)


def constants_of(h: dict) -> dict[str, float]:
  """Returns the values of tensors that are the same in all models."""
  family = FAMILIES[family_of(h)]
  rows = getattr(family, 'CONSTANTS', {}).items()
  own = within.text_of(h)
  values.check(own, family.DEFAULTS)
  layers = range(own.get('num_hidden_layers') or 0)
  return {
    within.name_in(h, name.format(i)): x for name, x in rows for i in layers
  }


def family_of(h: dict) -> str:
  """Returns the model_type of a config.json.

  Raises:
    ValueError: the family is not supported; gives the reason.
  """
  name = within.text_of(h).get('model_type')
  if not isinstance(name, str):
    raise ValueError(f'config.json: model_type={name!r:.60} is not a name')
  name = SAME.get(name, name)
  if name not in FAMILIES:
    why = 'no file of models/families reads its config.json and tensors'
    why = unsupported.FAMILIES.get(name, why + unsupported.signs(h))
    defaults = {k: family.DEFAULTS for k, family in FAMILIES.items()}
    raise ValueError(
      f'model_type {name!r} is not supported: {why}. '
      f'{unsupported.most_alike(h, defaults)}; supported are '
      f'{", ".join(FAMILIES)}'
    )
  packed = h.get('quantization_config')
  if packed:
    method = packed.get('quant_method') if isinstance(packed, dict) else packed
    known = getattr(FAMILIES[name], 'PACKED', ())
    if method not in known:
      raise ValueError(
        f'quantization_config: quant_method={method!r} is not supported for '
        f'{name}: use a folder of bf16 weights (frozen_dtype=int8 quantizes '
        'them)'
      )
  return name


def tensors_of(h: dict, slices: Mapping[str, Any] | None = None) -> tuple:
  """Returns the rows of `published.tensors` for a config.json's family.

  Args:
    slices: of the tensors in the folder, by name, if it exists: those of
      experts may hold all experts of a layer, in either of two orders.
  """
  family = FAMILIES[family_of(h)]
  rows, own = family.TENSORS, family.DEFAULTS | within.text_of(h)
  if hasattr(family, 'rows_of'):
    rows = family.rows_of(own)
  if any(name.endswith(tensors.WHOLE_EXPERTS) for name in slices or ()):
    rows = tensors.with_whole_experts(rows, slices, own['hidden_size'])
  return tuple(row._replace(name=within.name_in(h, row.name)) for row in rows)


def adapted_of(h: dict) -> tuple:
  """Returns the rows whose adapters `peft` reads, by the names of modules."""
  family = FAMILIES[family_of(h)]
  refused = getattr(family, 'UNADAPTED', ())
  rows = [r for r in tensors_of(h) if not r.name.endswith(refused)]
  there, module = getattr(family, 'MODULES', ('', ''))
  return tuple(r._replace(name=r.name.replace(there, module, 1)) for r in rows)


def from_hf(h: dict, **runtime: Any) -> Config:
  """Builds the Config of a config.json.

  Args:
    h: content of the file.
    runtime: the fields named in RUNTIME, which the file does not have.

  Raises:
    ValueError: names what is missing or not supported.
  """
  name = family_of(h)
  family = FAMILIES[name]
  h = family.DEFAULTS | within.text_of(h)
  values.check(h, family.DEFAULTS)
  with values.Reading(h) as h:
    h |= family.implied(h) if hasattr(family, 'implied') else {}
    fields = _read_shared(h, family) | family.read(h)
    if h.get('mlp_bias') and not fields.get('mlp_bias'):
      raise ValueError(f'config.json: mlp_bias is not supported for {name}')
    values.check_fields(fields, Config.__annotations__, h)
    with values.checking(h):
      c = Config(**(fields | runtime))
    keys.check_layer_types(h, c)
  return c


def _read_shared(h: dict, family) -> dict:
  """Reads the fields that all families have under the same keys."""
  of_key = {
    'vocab_size': 'vocab',
    'num_hidden_layers': 'layers',
    'hidden_size': 'width',
    'intermediate_size': 'mlp',
    'num_attention_heads': 'heads',
    'rms_norm_eps': 'norm_eps',
    'tie_word_embeddings': 'tied',
  }
  for key in of_key:
    if h[key] is None:
      raise ValueError(f'config.json: {key} is null, but needs a value')
    if key != 'tie_word_embeddings' and not h[key] > 0:
      raise ValueError(f'config.json: {key}={h[key]} must be more than 0')
  out = {field: h[key] for key, field in of_key.items()}
  return out | {
    'kv_heads': h.get('num_key_value_heads') or out['heads'],
    'head_dim': h.get('head_dim') or out['width'] // out['heads'],
    'activation': _activation(h, family),
  }


def _activation(h: dict, family) -> str:
  """Reads the activation, from the key that `transformers` reads."""
  names = 'mlp_hidden_act', 'hidden_activation', 'hidden_act'
  key = next(name for name in names if name in family.DEFAULTS)
  known = getattr(family, 'ACTIVATIONS', ACTIVATIONS)
  if h[key] not in [*known]:
    raise ValueError(
      f'config.json: {key}={h[key]!r} is not supported for '
      f'{h["model_type"]}: choose {" or ".join(known)}'
    )
  return known[h[key]]


def architecture(c: Config) -> Config:
  """Returns a Config with the defaults of the fields named in RUNTIME."""
  defaults = {k: Config.__dataclass_fields__[k].default for k in RUNTIME}
  return dataclasses.replace(c, **defaults)


def to_hf(c: Config, max_positions: int = 0, family: str | None = None) -> dict:
  """Converts a Config to a config.json that `from_hf` reads as c.

  Args:
    family: its model_type; None: the first family that can represent c.
    max_positions: maximum tokens of a row; 0: as the rotary table implies.

  Raises:
    ValueError: no family can represent c.
  """
  plain = architecture(c)
  for name in [family] if family else FAMILIES:
    h = _write_shared(plain, name, max_positions) | FAMILIES[name].write(plain)
    unwritten = getattr(FAMILIES[name], 'UNWRITTEN', ())
    h = {key: value for key, value in h.items() if key not in unwritten}
    if _reads_as(h, plain):
      return h
  raise ValueError(
    f'{family or "no published family"} cannot represent {plain}; families: '
    f'{", ".join(FAMILIES)}'
  )


def _reads_as(h: dict, c: Config) -> bool:
  try:
    return from_hf(h) == c
  except ValueError:  # the family does not support these keys
    return False


def _write_shared(c: Config, name: str, max_positions: int) -> dict:
  """Returns the keys that all families share."""
  rope = c.rope_tables[0]
  stretched = int(rope.original * rope.factor)
  activation = {v: k for k, v in ACTIVATIONS.items()}.get(c.activation)
  return {
    'architectures': [FAMILIES[name].ARCHITECTURE],
    'model_type': name,
    'vocab_size': c.vocab,
    'num_hidden_layers': c.layers,
    'hidden_size': c.width,
    'intermediate_size': c.mlp,
    'num_attention_heads': c.heads,
    'num_key_value_heads': c.kv_heads,
    'head_dim': c.head_dim,
    'rms_norm_eps': c.norm_eps,
    'tie_word_embeddings': c.tied,
    'hidden_act': activation,
    'rope_theta': rope.theta,
    'rope_scaling': ropes.write(rope),
    # Unknown here; the library's own defaults may be past the vocabulary.
    'bos_token_id': None,
    'eos_token_id': None,
    'pad_token_id': None,
    'max_position_embeddings': rope.max_positions
    or max_positions
    or stretched
    or 4096,
  }
