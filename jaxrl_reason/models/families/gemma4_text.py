"""Gemma 4 (text): global layers have other heads, whose values may be their
keys, and other positions. The last layers may read keys of earlier ones, and
every layer may have inputs of its own, or experts beside its mlp.
"""

from jaxrl_reason.models import config
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Gemma4ForCausalLM'
DEFAULTS = {
  'rms_norm_eps': 1e-6,
  'tie_word_embeddings': True,
  'vocab_size': 262_144,
  'hidden_size': 2304,
  'intermediate_size': 9216,
  'num_hidden_layers': 30,
  'num_attention_heads': 8,
  'num_key_value_heads': 4,
  'head_dim': 256,
  'global_head_dim': 512,
  'hidden_activation': 'gelu_pytorch_tanh',
  'sliding_window': 512,
  'attention_bias': False,
  'attention_k_eq_v': False,
  'num_kv_shared_layers': 0,
  'use_double_wide_mlp': False,
  'hidden_size_per_layer_input': 256,
  'vocab_size_per_layer_input': 262_144,
  'enable_moe_block': False,
}
ROPES = {
  keys.SLIDING: {'rope_type': 'default', 'rope_theta': 10_000.0},
  keys.FULL: {
    'rope_type': 'proportional',
    'partial_rotary_factor': 0.25,
    'rope_theta': 1_000_000.0,
  },
}
UNWRITTEN = 'rope_theta', 'rope_scaling', 'hidden_act'
EVERY = 6  # layers: the last of them is global, if the file names none
SHARED = 'k_proj', 'v_proj', 'k_norm', 'v_norm'
INPUTS = (
  tensors.Row(
    'model.embed_tokens_per_layer.weight', ('inputs_embed',), 'table'
  ),
  tensors.Row('model.per_layer_model_projection.weight', ('inputs',), 'linear'),
  tensors.Row(
    'model.per_layer_projection_norm.weight', ('inputs_norm',), 'vector'
  ),
)
OF_LAYER = (
  *tensors.QKV,
  *tensors.OUT,
  *tensors.QK_NORMS,
  *tensors.SANDWICH,
  tensors.vector('layer_scalar', 'factor'),
  tensors.layer('per_layer_input_gate.weight', 'inputs/gate'),
  tensors.layer('per_layer_projection.weight', 'inputs/up'),
  tensors.vector('post_per_layer_input_norm.weight', 'inputs_post_norm'),
)
_EXPERTS = (
  tensors.layer('router.proj.weight', 'mlp/router'),
  tensors.vector('router.scale', 'mlp/router_scale'),
  tensors.vector('router.per_expert_scale', 'mlp/expert_scale'),
  tensors.layer('experts.gate_up_proj', 'mlp/gate', 'mlp/up', layout='experts'),
  tensors.layer('experts.down_proj', 'mlp/down', layout='experts'),
  *(
    tensors.layer(f'mlp.{kind}_proj.weight', f'shared_mlp/{kind}')
    for kind in ('gate', 'up', 'down')
  ),
  tensors.vector('pre_feedforward_layernorm_2.weight', 'expert_norm'),
  tensors.vector('post_feedforward_layernorm_2.weight', 'expert_post_norm'),
  tensors.vector('post_feedforward_layernorm_1.weight', 'shared_post_norm'),
)


def rows(*mlp: tensors.Row) -> tuple[tensors.Row, ...]:
  """Returns the rows of a model with the given mlp in every layer."""
  of_layer = *OF_LAYER, *mlp
  stacks = config.WIDE, *config.READINGS
  others = [row for name in stacks for row in tensors.of_stack(name, *of_layer)]
  return *tensors.ENDS, *INPUTS, *of_layer, *others


TENSORS, WITH_EXPERTS = rows(*tensors.MLP), rows(*_EXPERTS)


def rows_of(h: dict) -> tuple[tensors.Row, ...]:
  return WITH_EXPERTS if h['enable_moe_block'] else TENSORS


def beside(h: dict) -> str:
  """Returns a regex over the names of tensors of keys and values in layers that
  read those of earlier layers.
  """
  n = h['num_hidden_layers']
  reading = range(max(n - h['num_kv_shared_layers'], 0), n)
  if not reading:
    return ''
  which, what = '|'.join(map(str, reading)), '|'.join(SHARED)
  return (
    rf'model\.(language_model\.)?layers\.({which})\.self_attn\.({what})\..*'
  )


def implied(h: dict) -> dict:
  """Returns the kinds of layers. The last one is global, as in
  `transformers`.
  """
  n = h['num_hidden_layers']
  types = h.get('layer_types') or [
    keys.FULL if (i + 1) % EVERY == 0 or i == n - 1 else keys.SLIDING
    for i in range(n)
  ]
  if types[-1] != keys.FULL:
    raise ValueError(
      f'config.json: the last of layer_types must be {keys.FULL}, as '
      f'transformers changes it, not {types[-1]!r}'
    )
  return {'layer_types': types}


def read(h: dict) -> dict:
  if h.get('use_bidirectional_attention') not in (None, 'vision'):
    raise ValueError(
      'config.json: use_bidirectional_attention='
      f'{h["use_bidirectional_attention"]!r} is not supported: text must be '
      'read in order (null or "vision")'
    )
  out = shared(h) | _heads(h) | _ropes(h)
  out |= _reading(h) | _inputs(h) | _experts(h)
  return out | {'layer_factor': True}


def shared(h: dict) -> dict:
  """Reads the keys that Gemma 3n has as well."""
  if h['sliding_window'] is None and keys.SLIDING in h['layer_types']:
    raise ValueError('config.json: sliding_window is null, but needs a value')
  return (
    keys.biases(h)
    | keys.windows(h, h['layer_types'])
    | {
      'norm_place': 'sandwich',
      'qk_norm': True,
      'value_norm': True,
      'query_scale': 1.0,
      'embed_scale': h['hidden_size'] ** 0.5,
      'embed_rounded': True,
      'logit_cap': h.get('final_logit_softcapping') or 0.0,
    }
  )


def _ropes(h: dict) -> dict:
  """Reads a rotary table for each kind of layer."""
  if h.get('rope_scaling'):
    raise ValueError(
      'config.json: rope_scaling is not read for gemma4_text: write a table '
      'for each kind of layer in rope_parameters'
    )
  tables = h.get('rope_parameters') or ROPES
  missing = [kind for kind in {*h['layer_types']} if not tables.get(kind)]
  if missing:
    raise ValueError(f'config.json: rope_parameters needs {missing[0]}')
  tables = {**ROPES, **tables}  # of a kind that the model lacks, any
  return ropes.by_type(dict(h) | {'rope_parameters': tables}, [], None, None)


def _heads(h: dict) -> dict:
  """Reads the heads of global layers, in either form of the file."""
  layers = range(h['num_hidden_layers'])
  wide = tuple(i for i in layers if h['layer_types'][i] == keys.FULL)
  few = h.get('num_global_key_value_heads') if h['attention_k_eq_v'] else None
  own = {'head_dim': h['global_head_dim']}
  own |= {'num_key_value_heads': few} if few else {}
  if h.get('per_layer_config') is not None:
    own = _overrides(h['per_layer_config'], wide)
  return {
    'wide_layers': wide,
    'wide_head_dim': own.get('head_dim', h['head_dim']),
    'wide_kv_heads': own.get('num_key_value_heads', h['num_key_value_heads']),
    'keys_as_values': bool(h['attention_k_eq_v']),
  }


def _overrides(of_layer: dict, wide: tuple[int, ...]) -> dict:
  """Returns the keys that per_layer_config sets for global layers.

  Raises:
    ValueError: other layers or keys are set, or global layers differ.
  """
  # `transformers` writes the indices with leading zeros.
  found = {str(i).lstrip('0') or '0': x for i, x in of_layer.items()}
  own = [found.pop(str(i), {}) for i in wide]
  known, others = {'head_dim', 'num_key_value_heads'}, found
  if others or any(x != own[0] for x in own) or not {*own[0]} <= known:
    raise ValueError(
      'config.json: per_layer_config must set the same head_dim and '
      f'num_key_value_heads in all layers of {keys.FULL}, and nothing else'
    )
  return own[0]


def _reading(h: dict) -> dict:
  """Reads the layers without keys and values of their own."""
  n = h['num_kv_shared_layers']
  wide = bool(n and h['use_double_wide_mlp'])
  return {
    'reading_layers': n,
    'reading_mlp': 2 * h['intermediate_size'] if wide else 0,
  }


def _inputs(h: dict) -> dict:
  """Reads the embeddings of each layer."""
  n = h['hidden_size_per_layer_input']
  if not n:
    return {}
  vocab = h['vocab_size_per_layer_input']
  if vocab != h['vocab_size']:
    raise ValueError(
      f'config.json: vocab_size_per_layer_input={vocab} is not supported, only '
      f'that of vocab_size={h["vocab_size"]}'
    )
  return {'layer_inputs': n}


def _experts(h: dict) -> dict:
  """Reads experts beside the mlp."""
  if not h['enable_moe_block']:
    return {}
  return {
    'experts': h['num_experts'],
    'experts_per_token': h['top_k_experts'],
    'mlp': h['moe_intermediate_size'],
    'shared_mlp': h['intermediate_size'],
    'expert_norm': True,
    'expert_norms': True,
  }


def write(c: Config) -> dict:
  tied, tables = c.keys_as_values, []
  for rope in c.rope_tables:
    table = {'rope_type': 'default', 'rope_theta': rope.theta}
    table |= ropes.write(rope) or {}
    if table.get('factor') == 1:
      del table['factor']  # transformers warns of it
    tables.append(table)
  return (
    keys.write_window(c)
    | keys.write_biases(c)
    | {
      'layer_types': [
        keys.FULL if i in c.wide_layers else keys.SLIDING
        for i in range(c.layers)
      ],
      'rope_parameters': dict(zip((keys.FULL, keys.SLIDING), tables)),
      'hidden_activation': 'gelu_pytorch_tanh',
      'intermediate_size': c.shared_mlp or c.mlp,
      'global_head_dim': c.wide_head_dim,
      'num_global_key_value_heads': c.wide_kv_heads if tied else None,
      'attention_k_eq_v': tied,
      'final_logit_softcapping': c.logit_cap or None,
      'num_kv_shared_layers': c.reading_layers,
      'use_double_wide_mlp': c.reading_mlp > 0,
      'hidden_size_per_layer_input': c.layer_inputs,
      'vocab_size_per_layer_input': c.vocab,
      'enable_moe_block': c.experts > 0,
      'num_experts': c.experts or None,
      'top_k_experts': c.experts_per_token or None,
      'moe_intermediate_size': c.mlp if c.experts else None,
    }
  )
