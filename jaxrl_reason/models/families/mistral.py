"""Mistral: one window for all layers."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'MistralForCausalLM'
# A file without sliding_window has the default window.
DEFAULTS = keys.BASE | {
  'num_key_value_heads': 8,
  'sliding_window': 4096,
}
TENSORS = tensors.LLAMA


def read(h: dict) -> dict:
  return keys.windows(h) | ropes.fields(h)


def write(c: Config) -> dict:
  return keys.write_window(c)
