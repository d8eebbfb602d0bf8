"""Gemma 3 (text): norms on q and k instead of soft caps on scores, and a rotary
table per kind of layer.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Gemma3ForCausalLM'
DEFAULTS = keys.GEMMA | {
  # Absent in the published folders of 4B and more.
  'vocab_size': 262_208,
  'num_attention_heads': 8,
  'rope_theta': 1_000_000.0,
  'rope_local_base_freq': 10_000.0,
  'sliding_window_pattern': 6,
}
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  *tensors.QK_NORMS,
  *tensors.MLP,
  *tensors.SANDWICH,
)


def read(h: dict) -> dict:
  if h.get('attn_logit_softcapping'):
    raise ValueError(
      'config.json: attn_logit_softcapping is ignored by transformers for '
      'gemma3_text: remove it'
    )
  every = h['sliding_window_pattern']
  layers = range(h['num_hidden_layers'])
  types = [keys.SLIDING if (i + 1) % every else keys.FULL for i in layers]
  bases = h['rope_theta'], h['rope_local_base_freq']
  return (
    keys.gemma(h)
    | {'qk_norm': True}
    | keys.windows(h, types)
    | ropes.by_type(h, types, *bases)
  )


def write(c: Config) -> dict:
  local = c.rope_tables[-1].theta
  return (
    keys.write_gemma(c)
    | {'rope_local_base_freq': local}
    | ropes.write_by_type(c, local)
  )
