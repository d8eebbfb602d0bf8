"""Qwen2, Qwen2.5, R1-Distill-Qwen: biases on q, k and v."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Qwen2ForCausalLM'
DEFAULTS = keys.BASE | keys.LATE_WINDOWS | {'num_key_value_heads': 32}
TENSORS = tensors.LLAMA


def read(h: dict) -> dict:
  return {'bias': True} | keys.late_windows(h) | ropes.fields(h)


def write(c: Config) -> dict:
  return keys.write_late_windows(c)
