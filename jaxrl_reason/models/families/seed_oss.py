"""Seed-OSS: a Llama with biases on q, k and v."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'SeedOssForCausalLM'
DEFAULTS = keys.BASE | {
  'num_key_value_heads': 8,
  'head_dim': 128,
  'attention_bias': True,
  'attention_out_bias': False,
}
TENSORS = tensors.LLAMA


def read(h: dict) -> dict:
  return {
    'bias': bool(h['attention_bias']),
    'o_bias': bool(h['attention_out_bias']),
    'mlp_bias': bool(h.get('mlp_bias')),
  } | ropes.fields(h)


def write(c: Config) -> dict:
  return keys.write_biases(c) | {
    'attention_out_bias': c.o_bias,
    'mlp_bias': c.mlp_bias,
  }
