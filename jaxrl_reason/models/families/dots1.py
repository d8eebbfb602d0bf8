"""dots.llm1: the experts of GLM-4.5, norms on q and k, and windows in late
layers.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Dots1ForCausalLM'
DEFAULTS = keys.BASE | {
  'num_key_value_heads': 32,
  'moe_intermediate_size': 1408,
  'routed_scaling_factor': 1.0,
  'n_group': 1,
  'topk_group': 1,
  'first_k_dense_replace': 0,
  'norm_topk_prob': False,
  'sliding_window': 4096,
  'max_window_layers': 62,
}
TENSORS = (
  *tensors.ENDS,
  *tensors.dense_too(*tensors.QKV, *tensors.OUT, *tensors.QK_NORMS),
  *tensors.DEEP,
)
UNADAPTED = tensors.EXPERT_TARGETS


def read(h: dict) -> dict:
  return (
    {'qk_norm': True}
    | keys.biases(h)
    | keys.deep_experts(h)
    | keys.late_windows(h | {'use_sliding_window': True})
    | ropes.fields(h)
  )


def write(c: Config) -> dict:
  return (
    keys.write_biases(c)
    | keys.write_deep_experts(c)
    | keys.write_late_windows(c)
  )
