"""Published families: config.json -> Config, and back.

`from_hf` reads what `transformers` wrote, in its old form (rope_theta,
rope_scaling) or its new one (rope_parameters), with that library's default
for a key that is absent. What the transformer cannot do is refused by name.
`to_hf` writes the old form, which old and new readers understand.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.families import fields, rope_config

MLP_BIAS = ('llama', 'smollm3')  # families that know the key mlp_bias
ACTIVATIONS = {'silu': 'silu', 'gelu_pytorch_tanh': 'gelu_tanh'}
# Not of the architecture: how we run it.
RUNTIME = (
  'dtype',
  'cache_dtype',
  'prompt_buckets',
  'prefill_chunk',
  'remat',
  'scan',
  'attention',
)


@dataclasses.dataclass(frozen=True)
class Family:
  """How one `model_type` is written in config.json.

  Attributes:
    architecture: the class `transformers` builds.
    defaults: values of keys that a config.json may leave out.
    read: config.json -> Config fields, beyond those all families share.
    write: Config -> keys, beyond those all families share.
  """

  architecture: str
  defaults: dict[str, Any]
  read: Callable[[dict], dict]
  write: Callable[[Config], dict]


BASE = {
  'rope_theta': 10_000.0,
  'rms_norm_eps': 1e-6,
  'hidden_act': 'silu',
  'tie_word_embeddings': False,
}
GEMMA = BASE | {
  'tie_word_embeddings': True,
  'hidden_activation': 'gelu_pytorch_tanh',
  'query_pre_attn_scalar': 256,
  'sliding_window': 4096,
  'head_dim': 256,
}
FAMILIES = {
  'llama': Family('LlamaForCausalLM', BASE, fields.llama, fields.write_bias),
  'qwen2': Family(
    'Qwen2ForCausalLM', BASE, fields.qwen2, fields.write_late_windows
  ),
  'qwen3': Family(
    'Qwen3ForCausalLM',
    BASE | {'head_dim': 128},
    fields.qwen3,
    lambda c: fields.write_late_windows(c) | fields.write_bias(c),
  ),
  'qwen3_moe': Family(
    'Qwen3MoeForCausalLM', BASE, fields.qwen3_moe, fields.write_qwen3_moe
  ),
  'mistral': Family(
    'MistralForCausalLM', BASE, fields.mistral, fields.write_window
  ),
  'phi3': Family(
    'Phi3ForCausalLM',
    BASE | {'rms_norm_eps': 1e-5},
    fields.phi3,
    fields.write_phi3,
  ),
  'olmo2': Family(
    'Olmo2ForCausalLM',
    BASE | {'rms_norm_eps': 1e-5},
    fields.olmo2,
    fields.write_bias,
  ),
  'smollm3': Family(
    'SmolLM3ForCausalLM',
    BASE | {'rope_theta': 2_000_000.0, 'tie_word_embeddings': True},
    fields.smollm3,
    fields.write_smollm3,
  ),
  'gemma2': Family(
    'Gemma2ForCausalLM',
    GEMMA | {'final_logit_softcapping': 30.0, 'attn_logit_softcapping': 50.0},
    fields.gemma2,
    fields.write_gemma,
  ),
  'gemma3_text': Family(
    'Gemma3ForCausalLM',
    GEMMA | {'rope_theta': 1_000_000.0, 'rope_local_base_freq': 10_000.0},
    fields.gemma3,
    fields.write_gemma3,
  ),
}


def family_of(h: dict) -> str:
  """model_type of a config.json; refuses those that are not supported."""
  name = h.get('model_type')
  if name not in FAMILIES:
    raise ValueError(
      f'model_type {name!r} is not supported: {", ".join(FAMILIES)}'
    )
  if h.get('quantization_config'):
    raise ValueError('quantization_config: quantized weights are not supported')
  if h.get('mlp_bias') and name not in MLP_BIAS:
    raise ValueError(f'mlp_bias is not supported in {name}')
  return name


def from_hf(h: dict, **runtime: Any) -> Config:
  """The Config of a config.json.

  Args:
    h: its content.
    runtime: the fields named in RUNTIME, which it does not say.

  Raises:
    ValueError: names what is missing or not supported.
  """
  family = FAMILIES[family_of(h)]
  h = family.defaults | h
  name = h.get('hidden_activation') or h['hidden_act']
  if name not in ACTIVATIONS:
    raise ValueError(f'activation {name!r}: {", ".join(ACTIVATIONS)}')
  try:
    heads = h['num_attention_heads']
    shared = {
      'vocab': h['vocab_size'],
      'layers': h['num_hidden_layers'],
      'width': h['hidden_size'],
      'mlp': h['intermediate_size'],
      'heads': heads,
      'kv_heads': h.get('num_key_value_heads') or heads,
      'head_dim': h.get('head_dim') or h['hidden_size'] // heads,
      'norm_eps': h['rms_norm_eps'],
      'tied': h['tie_word_embeddings'],
      'activation': ACTIVATIONS[name],
      'mlp_bias': bool(h.get('mlp_bias')),
    }
    return Config(**(shared | family.read(h) | runtime))
  except KeyError as e:
    raise ValueError(f'config.json lacks {e}') from e


def to_hf(c: Config, max_positions: int = 0, family: str | None = None) -> dict:
  """A config.json that `from_hf` reads as c.

  Args:
    family: its model_type; None: the first that can say c.
    max_positions: tokens a row may have; 0: as many as the rotary table says.

  Raises:
    ValueError: no family has this combination.
  """
  plain = dataclasses.replace(
    c, **{k: Config.__dataclass_fields__[k].default for k in RUNTIME}
  )
  for name in [family] if family else FAMILIES:
    shared = _shared(plain, name, max_positions)
    h = shared | FAMILIES[name].write(plain)
    if _reads_as(h, plain):
      return h
  raise ValueError(
    f'{family or "no published family"} is not {plain}; families: '
    f'{", ".join(FAMILIES)}'
  )


def _reads_as(h: dict, c: Config) -> bool:
  try:
    return from_hf(h) == c
  except ValueError:  # the family refuses what another one's keys say
    return False


def _shared(c: Config, name: str, max_positions: int) -> dict:
  """Keys of all families."""
  rope = c.rope_tables[0]
  stretched = int(rope.original * rope.factor)
  activation = {v: k for k, v in ACTIVATIONS.items()}[c.activation]
  return {
    'architectures': [FAMILIES[name].architecture],
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
    'rope_scaling': rope_config.write(rope),
    **({'mlp_bias': True} if c.mlp_bias else {}),
    # Not ours to know; the library's own defaults may lie past the vocabulary.
    'bos_token_id': None,
    'eos_token_id': None,
    'pad_token_id': None,
    'max_position_embeddings': rope.max_positions
    or max_positions
    or stretched
    or 4096,
  }
