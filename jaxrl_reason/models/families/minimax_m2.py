"""MiniMax-M2: experts chosen by corrected sigmoids in every layer, and norms
over all heads at once.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.families import mixtral
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'MiniMaxM2ForCausalLM'
DEFAULTS = keys.BASE | {
  'rope_theta': 5_000_000.0,
  'num_key_value_heads': 8,
  'head_dim': 128,
  'num_local_experts': 256,
  'num_experts_per_tok': 8,
}
TENSORS = (
  *mixtral.TENSORS,
  *tensors.QK_NORMS,
  tensors.vector('block_sparse_moe.e_score_correction_bias', 'mlp/choice_bias'),
)
PACKED = ('fp8',)


def read(h: dict) -> dict:
  rotated = h.get('rotary_dim') or h['head_dim']
  others = {
    'router': 'sigmoid',
    'choice_bias': True,
    'qk_norm': True,
    'qk_norm_over': 'projection',
  }
  return (
    mixtral.experts(h)
    | others
    | ropes.fields(h, ropes.fraction_of(h, rotated / h['head_dim']))
  )


def write(c: Config) -> dict:
  fraction = c.rope_tables[0].fraction
  return mixtral.write_experts(c) | {'partial_rotary_factor': fraction}
