"""What each family says in its own way in config.json: readers give fields of
Config, writers give keys. `families` has what they share.
"""

from jaxrl_reason.models.config import NOPE, Config
from jaxrl_reason.models.families import rope_config

SLIDING, FULL = 'sliding_attention', 'full_attention'


def _windows(h: dict, types: list[str] | None) -> dict:
  """windows of layers of these types; none where none slides."""
  if types is None or SLIDING not in types or not h.get('sliding_window'):
    return {}
  window = h['sliding_window']
  return {'windows': tuple(window if t == SLIDING else 0 for t in types)}


def _types(c: Config) -> list[str]:
  return [SLIDING if c.window(i) else FULL for i in range(c.layers)]


def _write_windows(c: Config) -> dict:
  return {
    'sliding_window': max(c.windows, default=0) or None,
    'layer_types': _types(c),
  }


def _same_window(h: dict) -> dict:
  """One window for all layers, or none."""
  types = [SLIDING] * h['num_hidden_layers']
  return _windows(h, types)


def _late_windows(h: dict) -> dict:
  """Qwen: windows from max_window_layers on, if they are used at all."""
  if not h.get('use_sliding_window'):
    return {}
  first = h.get('max_window_layers', 28)
  layers = range(h['num_hidden_layers'])
  types = [SLIDING if i >= first else FULL for i in layers]
  return _windows(h, h.get('layer_types') or types)


def write_late_windows(c: Config) -> dict:
  types = _types(c)
  first = types.index(SLIDING) if SLIDING in types else c.layers
  out = {'use_sliding_window': SLIDING in types, 'max_window_layers': first}
  return out | _write_windows(c)


def _biases(h: dict) -> dict:
  """attention_bias: on all four projections."""
  both = bool(h.get('attention_bias'))
  return {'bias': both, 'o_bias': both}


def llama(h: dict) -> dict:
  return _biases(h) | rope_config.fields(h)


def qwen2(h: dict) -> dict:
  return {'bias': True} | _late_windows(h) | rope_config.fields(h)


def qwen3(h: dict) -> dict:
  return (
    {'qk_norm': True} | _biases(h) | _late_windows(h) | rope_config.fields(h)
  )


def qwen3_moe(h: dict) -> dict:
  if h.get('mlp_only_layers') or h.get('decoder_sparse_step', 1) != 1:
    raise ValueError(
      'mlp_only_layers and decoder_sparse_step: layers without experts among '
      'layers with them are not supported'
    )
  window = _same_window(h) if h.get('use_sliding_window') else {}
  return (
    {
      'qk_norm': True,
      'mlp': h['moe_intermediate_size'],
      'experts': h.get('num_experts') or h['num_local_experts'],
      'experts_per_token': h['num_experts_per_tok'],
      'expert_norm': bool(h.get('norm_topk_prob', False)),
    }
    | _biases(h)
    | window
    | rope_config.fields(h)
  )


def write_qwen3_moe(c: Config) -> dict:
  out = write_late_windows(c)
  del out['max_window_layers'], out['layer_types']
  return out | {
    'attention_bias': c.bias,
    'moe_intermediate_size': c.mlp,
    'num_experts': c.experts,
    'num_experts_per_tok': c.experts_per_token,
    'norm_topk_prob': c.expert_norm,
    'decoder_sparse_step': 1,
    'mlp_only_layers': [],
  }


def mistral(h: dict) -> dict:
  return _same_window(h) | rope_config.fields(h)


def write_window(c: Config) -> dict:
  return {'sliding_window': max(c.windows, default=0) or None}


def phi3(h: dict) -> dict:
  """Phi-3 and Phi-4-mini; 'su' and 'yarn' are its older names of longrope."""
  h = dict(h)
  raw = dict(h.get('rope_parameters') or h.get('rope_scaling') or {})
  kind = raw.get('rope_type', raw.get('type', 'default'))
  raw['rope_type'] = 'longrope' if kind in ('su', 'yarn') else kind
  h['rope_parameters'] = raw
  fraction = raw.get('partial_rotary_factor')
  fraction = fraction or h.get('partial_rotary_factor') or 1.0
  return _same_window(h) | rope_config.fields(h, fraction)


def write_phi3(c: Config) -> dict:
  rope = c.rope_tables[0]
  out = {'partial_rotary_factor': rope.fraction}
  if rope.kind == 'longrope':
    out['original_max_position_embeddings'] = rope.original
  return out | write_window(c)


def olmo2(h: dict) -> dict:
  return (
    {'norm_place': 'post', 'qk_norm': True, 'qk_norm_over': 'projection'}
    | _biases(h)
    | rope_config.fields(h)
  )


def smollm3(h: dict) -> dict:
  """Every fourth layer has no positions."""
  layers = range(h['num_hidden_layers'])
  every = h.get('no_rope_layer_interval', 4)
  has = h.get('no_rope_layers') or [int((i + 1) % every != 0) for i in layers]
  out = _biases(h) | rope_config.fields(h)
  if not all(has):
    out['rope_of_layer'] = tuple(0 if x else NOPE for x in has)
  if h.get('use_sliding_window'):
    types = [FULL if x else SLIDING for x in has]
    out |= _windows(h, h.get('layer_types') or types)
  return out


def write_smollm3(c: Config) -> dict:
  has = [int(c.rope_index(i) != NOPE) for i in range(c.layers)]
  return {
    'attention_bias': c.bias,
    'no_rope_layers': has,
    'use_sliding_window': bool(c.windows),
  } | _write_windows(c)


def _gemma(h: dict) -> dict:
  """What Gemma 2 and 3 share."""
  if h.get('use_bidirectional_attention'):
    raise ValueError('use_bidirectional_attention is not supported')
  return _biases(h) | {
    'norm_place': 'sandwich',
    'norm_offset': 1.0,
    'embed_scale': h['hidden_size'] ** 0.5,
    'query_scale': h['query_pre_attn_scalar'] ** -0.5,
    'logit_cap': h.get('final_logit_softcapping') or 0.0,
  }


def gemma2(h: dict) -> dict:
  layers = range(h['num_hidden_layers'])
  types = [FULL if i % 2 else SLIDING for i in layers]
  out = (
    _gemma(h)
    | _windows(h, h.get('layer_types') or types)
    | rope_config.fields(h)
  )
  return out | {'attention_cap': h.get('attn_logit_softcapping') or 0.0}


def gemma3(h: dict) -> dict:
  if h.get('attn_logit_softcapping'):
    raise ValueError('attn_logit_softcapping: transformers ignores it here')
  n = h['num_hidden_layers']
  every = h.get('sliding_window_pattern') or 6
  types = [FULL if (i + 1) % every == 0 else SLIDING for i in range(n)]
  types = h.get('layer_types') or types
  raw = h.get('rope_parameters') or {
    FULL: h.get('rope_scaling') or {},
    SLIDING: {},
  }
  tables = (
    rope_config.read(h, raw.get(FULL) or {}, h['rope_theta']),
    rope_config.read(h, raw.get(SLIDING) or {}, h['rope_local_base_freq']),
  )
  return (
    _gemma(h)
    | _windows(h, types)
    | {
      'qk_norm': True,
      'rope_theta': tables[0].theta,
      'ropes': tables,
      'rope_of_layer': tuple(int(t == SLIDING) for t in types),
    }
  )


def write_gemma(c: Config) -> dict:
  # An integer wherever the published files have one.
  scalar = c.score_scale**-2
  if abs(scalar - round(scalar)) < 1e-6 * scalar:
    scalar = round(scalar)
  return _write_windows(c) | {
    'attention_bias': c.bias,
    'hidden_activation': 'gelu_pytorch_tanh',
    'query_pre_attn_scalar': scalar,
    'final_logit_softcapping': c.logit_cap or None,
    'attn_logit_softcapping': c.attention_cap or None,
  }


def write_gemma3(c: Config) -> dict:
  local = c.rope_tables[-1]
  return write_gemma(c) | {'rope_local_base_freq': local.theta}


def write_bias(c: Config) -> dict:
  return {'attention_bias': c.bias}
