"""OLMoE: experts in every layer, norms on whole q and k."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'OlmoeForCausalLM'
DEFAULTS = keys.BASE | {
  'rms_norm_eps': 1e-5,
  'num_experts': 64,
  'num_experts_per_tok': 8,
  'norm_topk_prob': False,
}
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  *tensors.QK_NORMS,
  *tensors.EXPERTS,
  *tensors.PRE_NORMS,
)


def read(h: dict) -> dict:
  if h.get('clip_qkv') is not None:
    raise ValueError(
      f'config.json: clip_qkv={h["clip_qkv"]} is not supported: only null is'
    )
  return (
    {
      'qk_norm': True,
      'qk_norm_over': 'projection',
      'experts': h['num_experts'],
      'experts_per_token': h['num_experts_per_tok'],
      'expert_norm': h['norm_topk_prob'],
    }
    | keys.biases(h)
    | ropes.fields(h)
  )


def write(c: Config) -> dict:
  return keys.write_biases(c) | {
    'num_experts': c.experts,
    'num_experts_per_tok': c.experts_per_token,
    'norm_topk_prob': c.expert_norm,
  }
