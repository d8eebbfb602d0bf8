"""Mixtral: experts in every layer, with different tensor names."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'MixtralForCausalLM'
DEFAULTS = keys.BASE | {
  'rms_norm_eps': 1e-5,
  'rope_theta': 1_000_000.0,
  'num_key_value_heads': 8,
  'num_local_experts': 8,
  'num_experts_per_tok': 2,
}
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  tensors.layer('block_sparse_moe.gate.weight', 'mlp/router'),
  tensors.layer('block_sparse_moe.experts.{}.w1.weight', 'mlp/gate'),
  tensors.layer('block_sparse_moe.experts.{}.w3.weight', 'mlp/up'),
  tensors.layer('block_sparse_moe.experts.{}.w2.weight', 'mlp/down'),
  *tensors.PRE_NORMS,
)


def experts(h: dict) -> dict:
  """Reads the experts, which MiniMax-M2 names alike."""
  return {
    'experts': h['num_local_experts'],
    'experts_per_token': h['num_experts_per_tok'],
    'expert_norm': True,
  }


def write_experts(c: Config) -> dict:
  """Writes the keys of `experts`."""
  return {
    'num_local_experts': c.experts,
    'num_experts_per_tok': c.experts_per_token,
  }


def read(h: dict) -> dict:
  return experts(h) | keys.windows(h) | ropes.fields(h)


def write(c: Config) -> dict:
  return keys.write_window(c) | write_experts(c)
