"""Llama 4 (text): most layers have attention in chunks and rotary positions.
The others attend to all tokens, without rotary positions, and scale their
queries by the position. The input of a token's expert is multiplied by the
sigmoid of the router's score. A shared mlp is beside the experts.
"""

import dataclasses

from jaxrl_reason.models import config
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.parts.rope import NONE, Rope
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Llama4ForCausalLM'
DEFAULTS = {
  'rope_theta': 500_000.0,
  'rms_norm_eps': 1e-5,
  'hidden_act': 'silu',
  'tie_word_embeddings': False,
  'vocab_size': 202_048,
  'hidden_size': 5120,
  'intermediate_size': 8192,
  'intermediate_size_mlp': 16_384,
  'num_hidden_layers': 48,
  'num_attention_heads': 40,
  'num_key_value_heads': 8,
  'head_dim': 128,
  'max_position_embeddings': 131_072,
  'num_local_experts': 16,
  'num_experts_per_tok': 1,
  'interleave_moe_layer_step': 1,
  'use_qk_norm': True,
  'no_rope_layer_interval': 4,
  'attention_chunk_size': 8192,
  'attn_temperature_tuning': True,
  'floor_scale': 8192,
  'attn_scale': 0.1,
  'attention_bias': False,
}
_MLP, _EXPERTS = 'feed_forward', 'feed_forward.experts'
_SHARED = (*tensors.QKV, *tensors.OUT, *tensors.PRE_NORMS)
KINDS = 'gate', 'up', 'down'
NO_ROPE = Rope(kind=NONE, ahead=1)
TENSORS = (
  *tensors.ENDS,
  *tensors.dense_too(*_SHARED),
  tensors.layer(f'{_MLP}.router.weight', 'mlp/router'),
  tensors.layer(
    f'{_EXPERTS}.gate_up_proj', 'mlp/gate', 'mlp/up', layout='adjoined'
  ),
  tensors.layer(f'{_EXPERTS}.down_proj', 'mlp/down', layout='stacked'),
  *(
    tensors.layer(f'{_MLP}.shared_expert.{x}_proj.weight', f'shared_mlp/{x}')
    for x in KINDS
  ),
  *tensors.of_stack(
    config.DENSE,
    *(tensors.layer(f'{_MLP}.{x}_proj.weight', f'mlp/{x}') for x in KINDS),
  ),
)


def implied(h: dict) -> dict:
  """Returns the kinds of layers, of their attention and of their mlp."""
  layers, every = range(h['num_hidden_layers']), h['no_rope_layer_interval']
  turned = h.get('no_rope_layers') or [(i + 1) % every for i in layers]
  step, routed = h['interleave_moe_layer_step'], h.get('moe_layers')
  if routed is None:
    routed = [i for i in layers if not (i + 1) % step]
  chunked = keys.CHUNKED if h['attention_chunk_size'] else keys.FULL
  types = h.get('layer_types') or [chunked if x else keys.FULL for x in turned]
  return {
    'no_rope_layers': [int(bool(x)) for x in turned],
    'moe_layers': routed,
    'layer_types': types,
  }


def read(h: dict) -> dict:
  return (
    keys.biases(h)
    | _windows(h)
    | _ropes(h)
    | _experts(h)
    | {'rope_interleaved': True}
  )


def _windows(h: dict) -> dict:
  """Reads the chunks of attention."""
  types, size = h['layer_types'], h['attention_chunk_size']
  wrong = [t for t in types if t not in (keys.CHUNKED, keys.FULL)]
  if wrong:
    raise ValueError(
      f'config.json: layer_types has {wrong[0]!r}, which llama4_text does not '
      f'support: choose {keys.CHUNKED} or {keys.FULL}'
    )
  if keys.CHUNKED not in types:
    return {}
  if not size or size < 1:
    raise ValueError(
      f'config.json: attention_chunk_size={size} must be 1 or more tokens, as '
      f'layer_types has {keys.CHUNKED}'
    )
  return {'windows': tuple(-size if t == keys.CHUNKED else 0 for t in types)}


def _ropes(h: dict) -> dict:
  """Reads the rotary table, and that of layers without positions."""
  turned, n = h['no_rope_layers'], h['num_hidden_layers']
  if len(turned) < n:
    raise ValueError(
      f'config.json: no_rope_layers has {len(turned)} entries for '
      f'num_hidden_layers={n}'
    )
  fields = ropes.fields(h)
  (rope,) = fields.get('ropes') or (Rope(theta=fields['rope_theta']),)
  rope, still = dataclasses.replace(rope, unit=bool(h['use_qk_norm'])), NO_ROPE
  if h['attn_temperature_tuning']:
    growth, original = float(h['attn_scale']), h['floor_scale']
    still = dataclasses.replace(still, growth=growth, original=original)
  which = tuple(int(not x) for x in turned[:n])
  return fields | {'ropes': (rope, still), 'rope_of_layer': which}


def _experts(h: dict) -> dict:
  """Reads the experts and the layers that have none."""
  layers, routed = range(h['num_hidden_layers']), {*h['moe_layers']}
  dense = tuple(i for i in layers if i not in routed)
  if len(dense) == len(layers):
    raise ValueError('config.json: moe_layers must have one layer or more')
  return {
    'experts': h['num_local_experts'],
    'experts_per_token': h['num_experts_per_tok'],
    'expert_inputs': True,
    'router': 'sigmoid',
    'shared_mlp': h['intermediate_size'],
    'dense_layers': dense,
    'dense_mlp': h['intermediate_size_mlp'] if dense else 0,
  }


def write(c: Config) -> dict:
  rope, still = c.rope_tables[0], c.rope_tables[-1]
  window = -min(c.layer_windows)
  return keys.write_biases(c) | {
    'intermediate_size_mlp': c.dense_mlp or 2 * c.mlp,
    'layer_types': [keys.CHUNKED if w else keys.FULL for w in c.layer_windows],
    'attention_chunk_size': window if window > 0 else None,
    'no_rope_layers': [int(not i) for i in c.layer_ropes],
    'use_qk_norm': rope.unit,
    'attn_temperature_tuning': still.growth > 0,
    'attn_scale': still.growth or 0.1,
    'floor_scale': still.original or 8192,
    'num_local_experts': c.experts,
    'num_experts_per_tok': c.experts_per_token,
    'moe_layers': list(c.routed_layers),
    'interleave_moe_layer_step': 1,
  }
