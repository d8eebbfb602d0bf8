"""GLM-4.5 to 4.7: dense layers first, then experts chosen by corrected
sigmoids, and half of a head rotated. Layers for multi-token prediction are not
read.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Glm4MoeForCausalLM'
DEFAULTS = keys.BASE | {
  'rms_norm_eps': 1e-5,
  'num_key_value_heads': 8,
  'moe_intermediate_size': 1408,
  'num_experts_per_tok': 8,
  'n_shared_experts': 1,
  'n_routed_experts': 128,
  'routed_scaling_factor': 1.0,
  'n_group': 1,
  'topk_group': 1,
  'first_k_dense_replace': 1,
  'norm_topk_prob': True,
  'use_qk_norm': False,
}
TENSORS = (
  *tensors.ENDS,
  *tensors.dense_too(*tensors.QKV, *tensors.OUT, *tensors.QK_NORMS),
  *tensors.DEEP,
)
beside = keys.later_layers
UNADAPTED = tensors.EXPERT_TARGETS


def read(h: dict) -> dict:
  return (
    {'bias': bool(h.get('attention_bias')), 'qk_norm': bool(h['use_qk_norm'])}
    | keys.deep_experts(h)
    | ropes.fields(h, ropes.fraction_of(h, 0.5))
  )


def write(c: Config) -> dict:
  return (
    keys.write_biases(c)
    | keys.write_deep_experts(c)
    | {
      'use_qk_norm': c.qk_norm,
      'partial_rotary_factor': c.rope_tables[0].fraction,
    }
  )
