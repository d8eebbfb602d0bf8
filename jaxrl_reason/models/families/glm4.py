"""GLM-4-0414, GLM-Z1: norms on both sides, half of a head rotated by pairs."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Glm4ForCausalLM'
DEFAULTS = keys.BASE | {
  'rms_norm_eps': 1.5625e-07,
  'num_key_value_heads': 2,
  'head_dim': 128,
  'attention_bias': True,
}
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  tensors.GATE_UP,
  tensors.DOWN,
  *tensors.PRE_NORMS,
  tensors.vector('post_self_attn_layernorm.weight', 'attn_post_norm'),
  tensors.vector('post_mlp_layernorm.weight', 'mlp_post_norm'),
)


def read(h: dict) -> dict:
  return {
    'bias': bool(h['attention_bias']),
    'norm_place': 'sandwich',
    'rope_interleaved': True,
  } | ropes.fields(h, ropes.fraction_of(h, 0.5))


def write(c: Config) -> dict:
  return keys.write_biases(c) | {
    'partial_rotary_factor': c.rope_tables[0].fraction
  }
