"""Qwen3-VL, mixtures, as text: qwen3_vl with experts in every layer. Published
folders have the experts of a layer in one tensor, transposed.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.families import qwen3_vl
from jaxrl_reason.models.published import keys, tensors

ARCHITECTURE = 'Qwen3VLMoeForConditionalGeneration'
DEFAULTS = {
  key: value for key, value in qwen3_vl.DEFAULTS.items() if key != 'head_dim'
} | {
  'tie_word_embeddings': True,
  'num_key_value_heads': 16,
  'moe_intermediate_size': 1408,
  'num_experts_per_tok': 4,
}
EXPERTS = 60  # if neither of two keys has their number
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  *tensors.QK_NORMS,
  tensors.layer('mlp.gate.weight', 'mlp/router'),
  tensors.layer(
    'mlp.experts.gate_up_proj', 'mlp/gate', 'mlp/up', layout='adjoined'
  ),
  tensors.layer('mlp.experts.down_proj', 'mlp/down', layout='stacked'),
  *tensors.PRE_NORMS,
)
PACKED = qwen3_vl.PACKED


def read(h: dict) -> dict:
  number = h.get('num_local_experts') or h.get('num_experts') or EXPERTS
  normed = {'norm_topk_prob': True, 'num_experts': number}
  return qwen3_vl.read(h) | keys.experts(dict(h) | normed)


def write(c: Config) -> dict:
  return qwen3_vl.write(c) | keys.write_experts(c)
