"""Hunyuan, dense: a Llama with norms of queries and keys after rotation."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'HunYuanDenseV1ForCausalLM'
DEFAULTS = keys.BASE | {'rms_norm_eps': 1e-5}
TENSORS = (
  *tensors.LLAMA,
  tensors.vector('self_attn.query_layernorm.weight', 'attn/q_norm'),
  tensors.vector('self_attn.key_layernorm.weight', 'attn/k_norm'),
)


def read(h: dict) -> dict:
  raw = ropes.raw_of(h)
  if ropes.kind_of(raw) == 'dynamic' and raw.get('alpha'):
    # A fixed alpha is a larger base, whatever the length of a row.
    n = h.get('head_dim') or h['hidden_size'] // h['num_attention_heads']
    theta = raw.get('rope_theta', h['rope_theta'])
    rope = {'rope_theta': theta * raw['alpha'] ** (n / (n - 2))}
  else:
    rope = ropes.fields(h)
  norms = {'qk_norm': True, 'qk_norm_over': 'rotated'}
  return norms | keys.biases(h) | rope


def write(c: Config) -> dict:
  return keys.write_biases(c)
