"""Qwen3: norms on q and k."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Qwen3ForCausalLM'
DEFAULTS = (
  keys.BASE
  | keys.LATE_WINDOWS
  | {
    'head_dim': 128,
    'num_key_value_heads': 32,
  }
)
TENSORS = (*tensors.LLAMA, *tensors.QK_NORMS)
PACKED = ('fp8',)


def read(h: dict) -> dict:
  return (
    {'qk_norm': True} | keys.biases(h) | keys.late_windows(h) | ropes.fields(h)
  )


def write(c: Config) -> dict:
  return keys.write_late_windows(c) | keys.write_biases(c)
