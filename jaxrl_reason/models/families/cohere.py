"""Cohere (Command R, Command R+, Aya): attention and mlp in parallel, layer
norms without biases, and optional norms on q and k with weights for each head.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'CohereForCausalLM'
DEFAULTS = keys.BASE | {
  'rope_theta': 500_000.0,
  'layer_norm_eps': 1e-5,
  'tie_word_embeddings': True,
  'logit_scale': 0.0625,
  'intermediate_size': 22_528,
  'use_qk_norm': False,
}
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  *tensors.MLP,
  *(
    tensors.layer(
      f'self_attn.{x}_norm.weight', f'attn/{x}_norm', layout='table'
    )
    for x in 'qk'
  ),
  tensors.vector('input_layernorm.weight', 'attn_norm'),
)


def parallel(h: dict) -> dict:
  """Reads the fields that Cohere 2 shares."""
  return keys.biases(h) | {
    'norm_place': 'parallel',
    'norm_centered': True,
    'norm_eps': h['layer_norm_eps'],
    'logit_divisor': 1 / h['logit_scale'],
    'rope_interleaved': True,
  }


def write_parallel(c: Config) -> dict:
  """Writes the keys of `parallel`."""
  return keys.write_biases(c) | {
    'layer_norm_eps': c.norm_eps,
    'logit_scale': 1 / c.logit_divisor,
  }


def read(h: dict) -> dict:
  norms = {'qk_norm': True, 'qk_norm_over': 'own head'}
  return parallel(h) | ropes.fields(h) | (norms if h['use_qk_norm'] else {})


def write(c: Config) -> dict:
  return write_parallel(c) | {'use_qk_norm': c.qk_norm}
