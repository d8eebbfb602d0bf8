"""Llama 2, 3, 3.1 and 3.2, SmolLM2, R1-Distill-Llama."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'LlamaForCausalLM'
DEFAULTS = keys.BASE
TENSORS = tensors.LLAMA


def read(h: dict) -> dict:
  return (
    keys.biases(h) | {'mlp_bias': bool(h.get('mlp_bias'))} | ropes.fields(h)
  )


def write(c: Config) -> dict:
  return keys.write_biases(c) | ({'mlp_bias': True} if c.mlp_bias else {})
