"""Apertus: an mlp without gates whose activation is learned (xIELU)."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'ApertusForCausalLM'
DEFAULTS = keys.BASE | {
  'rms_norm_eps': 1e-5,
  'rope_theta': 12_000_000.0,
  'hidden_act': 'xielu',
}
# Used if a file has no rope_scaling, or null.
LLAMA3 = {
  'rope_type': 'llama3',
  'factor': 8.0,
  'original_max_position_embeddings': 8192,
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
}
ACTIVATIONS = {'xielu': 'xielu'}
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  *tensors.QK_NORMS,
  tensors.layer('mlp.up_proj.weight', 'mlp/up'),
  tensors.DOWN,
  tensors.vector('mlp.act_fn.alpha_p', 'mlp/positive'),
  tensors.vector('mlp.act_fn.alpha_n', 'mlp/negative'),
  tensors.vector('attention_layernorm.weight', 'attn_norm'),
  tensors.vector('feedforward_layernorm.weight', 'mlp_norm'),
)
# Tensors of every layer that have the same value in all models.
CONSTANTS = {
  'model.layers.{}.mlp.act_fn.beta': 0.5,
  'model.layers.{}.mlp.act_fn.eps': -1e-6,
}


def read(h: dict) -> dict:
  absent = not h.get('rope_scaling') and h.get('rope_parameters') is None
  rope = ropes.fields(h | {'rope_scaling': LLAMA3} if absent else h)
  return {'qk_norm': True} | keys.biases(h) | rope


def write(c: Config) -> dict:
  plain = {} if c.ropes else {'rope_scaling': {'rope_type': 'default'}}
  return keys.write_biases(c) | plain | {'hidden_act': 'xielu'}
