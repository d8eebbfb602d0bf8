"""Qwen3-VL, as text: Qwen3 without windows. The three positions of a token
differ only within images, so the rotary table is an ordinary one.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.families import qwen3
from jaxrl_reason.models.published import keys, ropes

ARCHITECTURE = 'Qwen3VLForConditionalGeneration'
DEFAULTS = keys.BASE | {
  'rope_theta': 500_000.0,
  'head_dim': 128,
  'num_key_value_heads': 32,
}
TENSORS = qwen3.TENSORS
PACKED = qwen3.PACKED


def read(h: dict) -> dict:
  return {'qk_norm': True} | keys.biases(h) | ropes.fields(h)


def write(c: Config) -> dict:
  return keys.write_biases(c)
