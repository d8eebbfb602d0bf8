"""Qwen1.5-MoE and Qwen2-MoE: experts, and a gated mlp for all tokens."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Qwen2MoeForCausalLM'
DEFAULTS = (
  keys.BASE
  | keys.LATE_WINDOWS
  | {
    'num_key_value_heads': 16,
    'qkv_bias': True,
    'moe_intermediate_size': 1408,
    'shared_expert_intermediate_size': 5632,
    'num_experts': 60,
    'num_experts_per_tok': 4,
  }
)
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  *tensors.EXPERTS,
  *tensors.shared('shared_expert'),
  tensors.layer('mlp.shared_expert_gate.weight', 'shared_mlp/part'),
  *tensors.PRE_NORMS,
)


def read(h: dict) -> dict:
  types = [
    keys.SLIDING if i % 2 == 0 and i < h['max_window_layers'] else keys.FULL
    for i in range(h['num_hidden_layers'])
  ]
  return (
    {
      'bias': bool(h['qkv_bias']),
      'shared_mlp': h['shared_expert_intermediate_size'],
      'shared_gate': h['shared_expert_intermediate_size'] > 0,
    }
    | keys.experts(h)
    | (keys.windows(h, types) if h['use_sliding_window'] else {})
    | ropes.fields(h)
  )


def write(c: Config) -> dict:
  return (
    keys.write_experts(c)
    | keys.write_windows(c)
    | {
      'qkv_bias': c.bias,
      'shared_expert_intermediate_size': c.shared_mlp,
      'use_sliding_window': bool(c.windows),
    }
  )
