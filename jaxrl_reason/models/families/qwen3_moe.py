"""Qwen3-MoE: Qwen3 with experts in every layer."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Qwen3MoeForCausalLM'
DEFAULTS = keys.BASE | {
  'num_key_value_heads': 4,
  'use_sliding_window': False,
  'sliding_window': 4096,
  'moe_intermediate_size': 768,
  'num_experts_per_tok': 8,
}
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  *tensors.QK_NORMS,
  *tensors.EXPERTS,
  *tensors.PRE_NORMS,
)
PACKED = ('fp8',)


def read(h: dict) -> dict:
  return (
    {'qk_norm': True}
    | keys.experts(h)
    | keys.biases(h)
    | (keys.windows(h) if h['use_sliding_window'] else {})
    | ropes.fields(h)
  )


def write(c: Config) -> dict:
  return (
    keys.write_biases(c)
    | keys.write_experts(c)
    | keys.write_window(c)
    | {'use_sliding_window': bool(c.windows)}
  )
