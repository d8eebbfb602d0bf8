"""LFM2: short convolutions with gates, and attention in a few layers."""

from jaxrl_reason.models.config import DELTA, Config
from jaxrl_reason.models.published import keys, ropes, tensors, values

ARCHITECTURE = 'Lfm2ForCausalLM'
DEFAULTS = keys.BASE | {
  'rope_theta': 1_000_000.0,
  'norm_eps': 1e-5,
  'intermediate_size': 12_288,
  'num_key_value_heads': 8,
  'tie_word_embeddings': True,
  'conv_L_cache': 3,
  'conv_bias': False,
  'block_auto_adjust_ff_dim': True,
  'block_ffn_dim_multiplier': 1.0,
  'block_multiple_of': 256,
}
CONVOLUTION = (
  tensors.layer('conv.in_proj.weight', 'attn/k', 'attn/z', 'attn/v'),
  tensors.depthwise('conv.conv.weight', 'attn/conv'),
  tensors.layer('conv.out_proj.weight', 'attn/o', layout='output'),
)
MLP = (
  tensors.layer('feed_forward.w1.weight', 'mlp/gate'),
  tensors.layer('feed_forward.w3.weight', 'mlp/up'),
  tensors.layer('feed_forward.w2.weight', 'mlp/down'),
)
NORMS = (
  tensors.vector('operator_norm.weight', 'attn_norm'),
  tensors.vector('ffn_norm.weight', 'mlp_norm'),
)
ENDS = (
  tensors.Row(tensors.EMBED, ('embed',), 'table'),
  tensors.Row('model.embedding_norm.weight', ('final_norm',), 'vector'),
  tensors.Row(tensors.HEAD, ('head',), 'linear'),
)
ATTENTION = (
  tensors.layer('self_attn.q_proj.weight', 'attn/q'),
  tensors.layer('self_attn.k_proj.weight', 'attn/k'),
  tensors.layer('self_attn.v_proj.weight', 'attn/v'),
  tensors.layer('self_attn.out_proj.weight', 'attn/o', layout='output'),
  tensors.vector('self_attn.q_layernorm.weight', 'attn/q_norm'),
  tensors.vector('self_attn.k_layernorm.weight', 'attn/k_norm'),
)
TENSORS = (
  *ENDS,
  *ATTENTION,
  *MLP,
  *NORMS,
  *tensors.of_stack(DELTA, *CONVOLUTION, *MLP, *NORMS),
)


def read(h: dict) -> dict:
  return read_layers(h) | {'mlp': _mlp(h)}


def read_layers(h: dict) -> dict:
  """Reads the layers with convolutions and with attention, without the mlp."""
  if h['conv_bias']:
    raise ValueError('config.json: conv_bias is not supported')
  shared = {
    'norm_eps': h['norm_eps'],
    # The old key replaces the new one in `transformers`.
    'tied': bool(h.get('tie_embedding', h['tie_word_embeddings'])),
    'qk_norm': True,
  }
  return shared | _convolutions(h) | ropes.fields(h)


def _mlp(h: dict) -> int:
  """Reads the width of the mlp, of which 2 / 3 are used, rounded up."""
  n = h.get('block_ff_dim', h['intermediate_size'])
  if h['block_auto_adjust_ff_dim']:
    n = int(2 * n / 3)
    if h['block_ffn_dim_multiplier'] is not None:
      of = h['block_multiple_of']
      n = -(-int(h['block_ffn_dim_multiplier'] * n) // of) * of
  if not 0 < n <= values.MOST:
    raise ValueError(
      f'config.json: the mlp has {n} features: check block_ff_dim, '
      'intermediate_size, block_multiple_of and block_ffn_dim_multiplier'
    )
  return n


def _convolutions(h: dict) -> dict:
  """Reads the layers with convolutions, whose width is that of the model."""
  n, heads, width = (
    h[k] for k in ('num_hidden_layers', 'num_attention_heads', 'hidden_size')
  )
  attention = h.get('full_attn_idxs')
  attention = range(n) if attention is None else attention
  types = h.get('layer_types') or [
    keys.FULL if i in attention else keys.CONV for i in range(n)
  ]
  which = tuple(i for i, t in enumerate(types) if t == keys.CONV)
  if not which:
    return {}
  if width % heads:
    raise ValueError(
      f'config.json: hidden_size={width} must be a multiple of '
      f'num_attention_heads={heads}'
    )
  return {
    'delta_layers': which,
    'delta_heads': heads,
    'delta_groups': 1,
    'delta_value_dim': width // heads,
    'delta_taps': h['conv_L_cache'],
  }


def write(c: Config) -> dict:
  return write_layers(c) | {'block_auto_adjust_ff_dim': False}


def write_layers(c: Config) -> dict:
  """Writes the keys of `read_layers`."""
  return {
    'layer_types': keys.types_of(c),
    'norm_eps': c.norm_eps,
    'conv_L_cache': c.delta_taps or 3,
    'conv_bias': False,
  }
