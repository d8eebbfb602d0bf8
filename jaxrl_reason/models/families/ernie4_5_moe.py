"""ERNIE 4.5, mixtures: attention as in ernie4_5, experts chosen by softmax
values with a correction, and an mlp for all tokens beside them. Tensors for
multi-token prediction are not read.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.families import ernie4_5
from jaxrl_reason.models.published import ropes, tensors

ARCHITECTURE = 'Ernie4_5_MoeForCausalLM'
DEFAULTS = ernie4_5.DEFAULTS | {
  'num_key_value_heads': 4,
  'moe_intermediate_size': 1536,
  'moe_k': 6,
  'moe_num_experts': 64,
  'moe_num_shared_experts': 2,
  'moe_layer_start_index': 1,
  'moe_layer_end_index': -1,
  'moe_layer_interval': 1,
  'moe_norm_min': 1e-12,
}
del DEFAULTS['head_dim']  # the width over the heads
TENSORS = (
  *tensors.ENDS,
  *tensors.dense_too(*tensors.QKV, *tensors.OUT),
  *(row for row in tensors.DEEP if 'choice_bias' not in row.leaves[0]),
  # [1, experts] on disk
  tensors.layer('mlp.moe_statics.e_score_correction_bias', 'mlp/choice_bias'),
)
UNADAPTED = tensors.EXPERT_TARGETS
# Sums of the chosen experts' probabilities are larger.
LEAST_SUM = 1e-9


def beside(h: dict) -> str:
  """Returns a regex over the names of tensors for multi-token prediction."""
  del h
  return r'model\.mtp_.*'


def read(h: dict) -> dict:
  if h['use_bias']:
    raise ValueError(
      'config.json: use_bias=True is not supported for ernie4_5_moe, because '
      'the output head would have a bias'
    )
  if not h['moe_norm_min'] <= LEAST_SUM:
    raise ValueError(
      f'config.json: moe_norm_min={h["moe_norm_min"]} must be at most '
      f'{LEAST_SUM}, so that it has no effect'
    )
  return (
    _experts(h)
    | {'choice_bias': True, 'expert_norm': True, 'rope_interleaved': True}
    | ropes.fields(h)
  )


def _experts(h: dict) -> dict:
  """Reads the experts and the layers that have none."""
  n, every = h['num_hidden_layers'], h['moe_layer_interval']
  first, last = h['moe_layer_start_index'], h['moe_layer_end_index']
  last = n - 1 if last == -1 else last
  if every < 1:
    raise ValueError(
      f'config.json: moe_layer_interval={every} must be 1 or more'
    )
  dense = tuple(
    i for i in range(n) if not first <= i <= last or (i + 1) % every
  )
  if len(dense) == n:
    raise ValueError(
      f'config.json: moe_layer_start_index={first}, moe_layer_end_index={last} '
      f'and moe_layer_interval={every} must leave one layer with experts'
    )
  return {
    'mlp': h['moe_intermediate_size'],
    'experts': h['moe_num_experts'],
    'experts_per_token': h['moe_k'],
    'shared_mlp': h['moe_intermediate_size'] * h['moe_num_shared_experts'],
    'dense_layers': dense,
    'dense_mlp': h['intermediate_size'] if dense else 0,
  }


def write(c: Config) -> dict:
  routed = c.routed_layers or (0,)
  first, last = routed[0], routed[-1]
  every = (last - first) // max(len(routed) - 1, 1) or 1
  return {
    'intermediate_size': c.dense_mlp or c.mlp,
    'use_bias': False,
    'moe_intermediate_size': c.mlp,
    'moe_k': c.experts_per_token,
    'moe_num_experts': c.experts,
    'moe_num_shared_experts': c.shared_mlp // c.mlp,
    'moe_layer_start_index': first,
    'moe_layer_end_index': last,
    'moe_layer_interval': every,
  }
