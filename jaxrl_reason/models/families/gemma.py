"""Gemma: 1 + w norms, scaled embeddings."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'GemmaForCausalLM'
DEFAULTS = keys.BASE | {
  'tie_word_embeddings': True,
  'hidden_act': 'gelu_pytorch_tanh',
  'head_dim': 256,
  'num_key_value_heads': 16,
}
# The first files' "gelu" means the tanh approximation too.
ACTIVATIONS = {'gelu_pytorch_tanh': 'gelu_tanh', 'gelu': 'gelu_tanh'}
TENSORS = tensors.LLAMA


def read(h: dict) -> dict:
  if h.get('use_bidirectional_attention'):
    raise ValueError('use_bidirectional_attention is not supported')
  return (
    {
      'norm_offset': 1.0,
      'embed_scale': h['hidden_size'] ** 0.5,
      'embed_rounded': True,
    }
    | keys.biases(h)
    | ropes.fields(h)
  )


def write(c: Config) -> dict:
  return keys.write_biases(c)
