"""LFM2 with experts: layers of LFM2, the first ones with an mlp and the others
with experts that are chosen by sigmoids.
"""

from jaxrl_reason.models.config import DELTA, DENSE, DENSE_DELTA, Config
from jaxrl_reason.models.families import lfm2
from jaxrl_reason.models.published import keys, tensors

ARCHITECTURE = 'Lfm2MoeForCausalLM'
DEFAULTS = keys.BASE | {
  'rope_theta': 1_000_000.0,
  'norm_eps': 1e-5,
  'num_key_value_heads': 8,
  'tie_word_embeddings': True,
  'conv_L_cache': 3,
  'conv_bias': False,
  'intermediate_size': 7168,
  'moe_intermediate_size': 1792,
  'num_dense_layers': 2,
  'num_experts': 32,
  'num_experts_per_tok': 4,
  'use_expert_bias': True,
  'routed_scaling_factor': 1.0,
  'norm_topk_prob': True,
}
EXPERTS = (
  tensors.layer('feed_forward.gate.weight', 'mlp/router'),
  tensors.vector('feed_forward.expert_bias', 'mlp/choice_bias'),
  tensors.layer('feed_forward.experts.{}.w1.weight', 'mlp/gate'),
  tensors.layer('feed_forward.experts.{}.w3.weight', 'mlp/up'),
  tensors.layer('feed_forward.experts.{}.w2.weight', 'mlp/down'),
)
IN_ATTENTION = *lfm2.ATTENTION, *lfm2.NORMS
IN_CONVOLUTION = *lfm2.CONVOLUTION, *lfm2.NORMS
TENSORS = (
  *lfm2.ENDS,
  *IN_ATTENTION,
  *EXPERTS,
  *tensors.of_stack(DELTA, *IN_CONVOLUTION, *EXPERTS),
  *tensors.of_stack(DENSE, *IN_ATTENTION, *lfm2.MLP),
  *tensors.of_stack(DENSE_DELTA, *IN_CONVOLUTION, *lfm2.MLP),
)


def read(h: dict) -> dict:
  dense = h['num_dense_layers']
  return (
    lfm2.read_layers(h)
    | keys.experts(h)
    | {
      'expert_scale': float(h['routed_scaling_factor']),
      'router': 'sigmoid',
      'choice_bias': bool(h['use_expert_bias']),
      'dense_layers': tuple(range(dense)),
      'dense_mlp': h['intermediate_size'] if dense else 0,
    }
  )


def write(c: Config) -> dict:
  return lfm2.write_layers(c) | {
    'intermediate_size': c.dense_mlp or c.mlp,
    'moe_intermediate_size': c.mlp,
    'num_dense_layers': len(c.dense_layers),
    'num_experts': c.experts,
    'num_experts_per_tok': c.experts_per_token,
    'norm_topk_prob': c.expert_norm,
    'routed_scaling_factor': c.expert_scale,
    'use_expert_bias': c.choice_bias,
  }
