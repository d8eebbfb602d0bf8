"""DeepSeek V3 and R1: latent attention, dense layers first, then experts chosen
by corrected sigmoids within the best groups. Layers for multi-token prediction
are not read.
"""

import math

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'DeepseekV3ForCausalLM'
DEFAULTS = keys.BASE | {
  'kv_lora_rank': 512,
  'q_lora_rank': 1536,
  'qk_rope_head_dim': 64,
  'qk_nope_head_dim': 128,
  'v_head_dim': 128,
  'moe_intermediate_size': 2048,
  'num_experts_per_tok': 8,
  'n_shared_experts': 1,
  'n_routed_experts': 256,
  'routed_scaling_factor': 2.5,
  'n_group': 8,
  'topk_group': 4,
  'first_k_dense_replace': 3,
  'norm_topk_prob': True,
  'rope_interleave': True,
}
TENSORS = (
  *tensors.ENDS,
  *tensors.dense_too(
    tensors.layer('self_attn.q_proj.weight', 'attn/q'),
    tensors.layer('self_attn.q_a_proj.weight', 'attn/q_down'),
    tensors.vector('self_attn.q_a_proj.bias', 'attn/q_down_bias'),
    tensors.vector('self_attn.q_a_layernorm.weight', 'attn/q_down_norm'),
    tensors.layer('self_attn.q_b_proj.weight', 'attn/q_up'),
    tensors.layer('self_attn.kv_a_proj_with_mqa.weight', 'attn/kv_down'),
    tensors.vector('self_attn.kv_a_proj_with_mqa.bias', 'attn/kv_down_bias'),
    tensors.vector('self_attn.kv_a_layernorm.weight', 'attn/kv_down_norm'),
    tensors.layer('self_attn.kv_b_proj.weight', 'attn/kv_up'),
    *tensors.OUT,
  ),
  *tensors.DEEP,
)
beside = keys.later_layers
UNADAPTED = tensors.EXPERT_TARGETS
PACKED = ('fp8',)


def _stretch(factor: float, scale: float) -> float:
  """Returns YaRN's factor of the queries and of the keys."""
  return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def read(h: dict) -> dict:
  heads = h['num_attention_heads']
  width = h['qk_nope_head_dim'] + h['qk_rope_head_dim']
  out = {
    'kv_heads': heads,  # num_key_value_heads is ignored, as in transformers
    'head_dim': width,
    'kv_rank': h['kv_lora_rank'],
    'q_rank': h['q_lora_rank'] or 0,
    'rope_dim': h['qk_rope_head_dim'],
    'value_dim': h['v_head_dim'],
    'rope_interleaved': bool(h['rope_interleave']),
  }
  raw = ropes.raw_of(h)
  kind = ropes.kind_of(raw)
  if kind != 'default' and raw.get('mscale_all_dim'):
    by = _stretch(raw['factor'], raw['mscale_all_dim'])
    out['query_scale'] = width**-0.5 * by * by
  return out | keys.biases(h) | keys.deep_experts(h) | ropes.fields(h)


def write(c: Config) -> dict:
  out = {
    'num_key_value_heads': c.heads,
    'head_dim': c.rope_dim,
    'kv_lora_rank': c.kv_rank,
    'q_lora_rank': c.q_rank or None,
    'qk_rope_head_dim': c.rope_dim,
    'qk_nope_head_dim': c.head_dim - c.rope_dim,
    'v_head_dim': c.value_dim,
    'rope_interleave': c.rope_interleaved,
  }
  rope = c.rope_tables[0]
  if c.query_scale and rope.factor > 1:
    by = math.sqrt(c.query_scale * c.head_dim**0.5)
    scale = round((by - 1) / (0.1 * math.log(rope.factor)), 9)
    out['rope_scaling'] = ropes.write(rope) | {'mscale_all_dim': scale}
  return keys.write_biases(c) | keys.write_deep_experts(c) | out
