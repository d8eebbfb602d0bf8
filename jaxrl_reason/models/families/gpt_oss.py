"""gpt-oss: attention sinks, a window in every other layer, experts with biases
and clamped gates. Each kind of expert weight is one tensor for all experts.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'GptOssForCausalLM'
DEFAULTS = keys.BASE | {
  'rms_norm_eps': 1e-5,
  'rope_theta': 150_000.0,
  'num_key_value_heads': 8,
  'head_dim': 64,
  'num_local_experts': 128,
  'num_experts_per_tok': 4,
  'sliding_window': 128,
  'attention_bias': True,
  'swiglu_alpha': 1.702,
  'swiglu_limit': 7.0,
}
# Used if a file has no rope_scaling, or null.
YARN = {
  'rope_type': 'yarn',
  'factor': 32.0,
  'truncate': False,
  'original_max_position_embeddings': 4096,
}
ACTIVATIONS = {'silu': 'gelu_quick'}  # the file's "silu" means another function
PACKED = ('mxfp4',)
_FUSED, _DOWN = 'mlp.experts.gate_up_proj', 'mlp.experts.down_proj'
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  tensors.vector('self_attn.sinks', 'attn/sinks'),
  tensors.layer('mlp.router.weight', 'mlp/router'),
  tensors.vector('mlp.router.bias', 'mlp/router_bias'),
  tensors.layer(_FUSED, 'mlp/gate', 'mlp/up', layout='interleaved'),
  tensors.layer(
    f'{_FUSED}_bias', 'mlp/gate_bias', 'mlp/up_bias', layout='interleaved'
  ),
  tensors.layer('mlp.experts.down_proj', 'mlp/down', layout='stacked'),
  tensors.layer(
    'mlp.experts.down_proj_bias', 'mlp/down_bias', layout='stacked'
  ),
  *tensors.PRE_NORMS,
)


def read(h: dict) -> dict:
  if h['swiglu_alpha'] != DEFAULTS['swiglu_alpha']:
    raise ValueError(
      f'config.json: swiglu_alpha={h["swiglu_alpha"]} is not supported: gates '
      f'are x sigmoid({DEFAULTS["swiglu_alpha"]} x)'
    )
  absent = not h.get('rope_scaling') and h.get('rope_parameters') is None
  types = [
    keys.FULL if i % 2 else keys.SLIDING for i in range(h['num_hidden_layers'])
  ]
  return (
    {
      'sinks': True,
      'experts': h['num_local_experts'],
      'experts_per_token': h['num_experts_per_tok'],
      'expert_norm': True,
      'expert_bias': True,
      'mlp_limit': float(h['swiglu_limit']),
    }
    | keys.biases(h)
    | keys.windows(h, types)
    | ropes.fields(h | {'rope_scaling': YARN} if absent else h)
  )


def write(c: Config) -> dict:
  plain = {} if c.ropes else {'rope_scaling': {'rope_type': 'default'}}
  return (
    keys.write_biases(c)
    | keys.write_windows(c)
    | plain
    | {
      'hidden_act': 'silu',
      'num_local_experts': c.experts,
      'num_experts_per_tok': c.experts_per_token,
      'swiglu_limit': c.mlp_limit,
    }
  )
