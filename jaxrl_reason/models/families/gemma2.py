"""Gemma 2: soft caps, sandwich norms, local and global layers, 1 + w norms,
scaled embeddings.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Gemma2ForCausalLM'
DEFAULTS = keys.GEMMA | {
  'final_logit_softcapping': 30.0,
  'attn_logit_softcapping': 50.0,
}
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  *tensors.MLP,
  *tensors.SANDWICH,
)


def read(h: dict) -> dict:
  layers = range(h['num_hidden_layers'])
  types = [keys.FULL if i % 2 else keys.SLIDING for i in layers]
  return (
    keys.gemma(h)
    | keys.windows(h, types)
    | ropes.fields(h)
    | {'attention_cap': h['attn_logit_softcapping'] or 0.0}
  )


def write(c: Config) -> dict:
  return keys.write_gemma(c)
