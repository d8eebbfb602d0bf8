"""Qwen3-Next: layers of the gated delta rule, attention with output gates in
every fourth layer, experts and a gated mlp for all tokens in each layer.
Tensors for multi-token prediction are not read.
"""

from jaxrl_reason.models.config import DELTA, Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Qwen3NextForCausalLM'
DELTA_DEFAULTS = keys.BASE | {
  'head_dim': 256,
  'full_attention_interval': 4,
  'linear_conv_kernel_dim': 4,
  'linear_key_head_dim': 128,
  'linear_value_head_dim': 128,
  'linear_num_key_heads': 16,
  'linear_num_value_heads': 32,
}
DEFAULTS = DELTA_DEFAULTS | {
  'num_key_value_heads': 2,
  'moe_intermediate_size': 512,
  'shared_expert_intermediate_size': 512,
  'num_experts': 512,
  'num_experts_per_tok': 10,
  'norm_topk_prob': True,
}
ACTIVATIONS = {'silu': 'silu'}  # of the mlp and the convolution
BOTH = (
  *tensors.EXPERTS,
  *tensors.shared('shared_expert'),
  tensors.layer('mlp.shared_expert_gate.weight', 'shared_mlp/part'),
  *tensors.PRE_NORMS,
)
IN = (
  tensors.layer('linear_attn.in_proj_qkvz.weight', 'attn/qkvz'),
  tensors.layer('linear_attn.in_proj_ba.weight', 'attn/ba'),
)
OF_DELTA = (
  tensors.depthwise('linear_attn.conv1d.weight', 'attn/conv'),
  tensors.vector('linear_attn.A_log', 'attn/log_decay'),
  tensors.vector('linear_attn.dt_bias', 'attn/step_bias'),
  tensors.vector('linear_attn.norm.weight', 'attn/out_norm'),
  tensors.layer('linear_attn.out_proj.weight', 'attn/o', layout='output'),
)
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  *tensors.QK_NORMS,
  *BOTH,
  *tensors.of_stack(DELTA, *IN, *OF_DELTA, *BOTH),
)
PACKED = ('fp8',)
UNADAPTED = tensors.EXPERT_TARGETS


def beside(h: dict) -> str:
  """Returns a regex over the names of tensors for multi-token prediction."""
  del h
  return r'mtp\..*'


def read_layers(h: dict) -> dict:
  """Reads the layers with attention and those of the delta rule."""
  n, every = h['num_hidden_layers'], h['full_attention_interval']
  if every < 1:
    raise ValueError(
      f'config.json: full_attention_interval={every} must be at least 1'
    )
  types = h.get('layer_types') or [
    keys.LINEAR if (i + 1) % every else keys.FULL for i in range(n)
  ]
  k, v = h['linear_num_key_heads'], h['linear_num_value_heads']
  if k < 1 or v % k:
    raise ValueError(
      f'config.json: linear_num_value_heads={v} must be a multiple of '
      f'linear_num_key_heads={k}'
    )
  return {
    'norm_offset': 1.0,
    'qk_norm': True,
    'out_gate': True,
    'delta_layers': tuple(i for i, t in enumerate(types) if t == keys.LINEAR),
    'delta_heads': k,
    'delta_groups': v // k,
    'delta_key_dim': h['linear_key_head_dim'],
    'delta_value_dim': h['linear_value_head_dim'],
    'delta_taps': h['linear_conv_kernel_dim'],
    **keys.biases(h),
    **ropes.fields(h, ropes.fraction_of(h, 0.25)),
  }


def write_layers(c: Config) -> dict:
  """Writes the keys of `read_layers`."""
  return keys.write_biases(c) | {
    'layer_types': keys.types_of(c),
    'partial_rotary_factor': c.rope_tables[0].fraction,
    'linear_num_key_heads': c.delta_heads,
    'linear_num_value_heads': c.delta_heads * c.delta_groups,
    'linear_key_head_dim': c.delta_key_dim,
    'linear_value_head_dim': c.delta_value_dim,
    'linear_conv_kernel_dim': c.delta_taps,
  }


def read_experts(h: dict) -> dict:
  """Reads the experts and the mlp beside them."""
  return keys.experts(h) | {
    'shared_mlp': h['shared_expert_intermediate_size'],
    'shared_gate': h['shared_expert_intermediate_size'] > 0,
  }


def write_experts(c: Config) -> dict:
  """Writes the keys of `read_experts`."""
  return keys.write_experts(c) | {
    'shared_expert_intermediate_size': c.shared_mlp
  }


def read(h: dict) -> dict:
  return read_layers(h) | read_experts(h)


def write(c: Config) -> dict:
  return write_layers(c) | write_experts(c)
