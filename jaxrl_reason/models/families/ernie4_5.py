"""ERNIE 4.5, dense: a Llama that rotates pairs of neighbouring features."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Ernie4_5ForCausalLM'
DEFAULTS = keys.BASE | {
  'rms_norm_eps': 1e-5,
  'rope_theta': 500_000.0,
  'tie_word_embeddings': True,
  'num_key_value_heads': 2,
  'head_dim': 128,
  'use_bias': False,
}
TENSORS = tensors.LLAMA


def read(h: dict) -> dict:
  kinds = 'bias', 'o_bias', 'mlp_bias'
  return {
    **dict.fromkeys(kinds, bool(h['use_bias'])),
    'rope_interleaved': True,
    **ropes.fields(h),
  }


def write(c: Config) -> dict:
  return {'use_bias': c.bias}
