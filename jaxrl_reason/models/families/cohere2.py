"""Cohere 2 (Command R7B, Command A): attention and mlp in parallel, layer norms
without biases, windows with rotary positions and full layers without.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.families import cohere
from jaxrl_reason.models.parts.rope import NOPE
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Cohere2ForCausalLM'
DEFAULTS = keys.BASE | {
  'layer_norm_eps': 1e-5,
  'tie_word_embeddings': True,
  'logit_scale': 0.0625,
  'intermediate_size': 22_528,
  'sliding_window': 4096,
  'sliding_window_pattern': 4,
}
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  *tensors.MLP,
  tensors.vector('input_layernorm.weight', 'attn_norm'),
)


def read(h: dict) -> dict:
  every, n = h['sliding_window_pattern'], h['num_hidden_layers']
  types = [keys.SLIDING if (i + 1) % every else keys.FULL for i in range(n)]
  windows = keys.windows(h, types)
  of_layer = windows.get('windows', (0,) * n)
  return (
    cohere.parallel(h)
    | windows
    | {'rope_of_layer': tuple(0 if w else NOPE for w in of_layer)}
    | ropes.fields(h)
  )


def write(c: Config) -> dict:
  return cohere.write_parallel(c) | keys.write_windows(c)
