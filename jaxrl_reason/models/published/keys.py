"""Keys of config.json that several families share: their defaults, windows and
biases.
"""

from jaxrl_reason.models.config import Config

SLIDING, FULL = 'sliding_attention', 'full_attention'
CHUNKED = 'chunked_attention'
INDEXED = 'indexed_attention'  # to keys that an indexer chooses
LINEAR = 'linear_attention'  # the gated delta rule, or Mamba-2
# Older names of kinds of layers.
RENAMED = {'mamba': LINEAR, 'attention': FULL}
CONV = 'conv'  # a short convolution
BASE = {
  'rope_theta': 10_000.0,
  'rms_norm_eps': 1e-6,
  'hidden_act': 'silu',
  'tie_word_embeddings': False,
}
LATE_WINDOWS = {
  'use_sliding_window': False,
  'sliding_window': 4096,
  'max_window_layers': 28,
}
GEMMA = BASE | {
  'tie_word_embeddings': True,
  'hidden_activation': 'gelu_pytorch_tanh',
  'query_pre_attn_scalar': 256.0,
  'sliding_window': 4096,
  'head_dim': 256,
  'num_key_value_heads': 4,
}


def windows(h: dict, types: list[str] | None = None) -> dict:
  """Reads the windows of layers.

  Args:
    types: kinds of the layers if the file has no `layer_types`; None: the
      family has one window for all layers, or none.

  Raises:
    ValueError: the window is less than one token.
  """
  types = types and (h.get('layer_types') or types)
  types = types or [SLIDING] * h['num_hidden_layers']
  if SLIDING not in types or h.get('sliding_window') is None:
    return {}
  if h['sliding_window'] < 1:
    raise ValueError(
      f'config.json: sliding_window={h["sliding_window"]} must be 1 or more '
      'tokens, or null for no window'
    )
  return {
    'windows': tuple(h['sliding_window'] if t == SLIDING else 0 for t in types)
  }


def late_windows(h: dict) -> dict:
  """Reads Qwen's windows, which begin at layer max_window_layers, if
  enabled.
  """
  if not h['use_sliding_window']:
    return {}
  first = h['max_window_layers']
  layers = range(h['num_hidden_layers'])
  return windows(h, [SLIDING if i >= first else FULL for i in layers])


def types_of(c: Config) -> list[str]:
  """Returns the layer_types of a model."""
  out = [SLIDING if c.layer_windows[i] else FULL for i in range(c.layers)]
  other = LINEAR if c.delta_key_dim else CONV
  return [other if i in c.delta_layers else kind for i, kind in enumerate(out)]


def write_window(c: Config) -> dict:
  """Writes the keys of one window for all layers, or none."""
  return {'sliding_window': max(c.windows, default=0) or None}


def write_windows(c: Config) -> dict:
  """Writes the keys of windows that differ between layers."""
  return write_window(c) | {'layer_types': types_of(c)}


def write_late_windows(c: Config) -> dict:
  """Writes the keys of Qwen's windows."""
  types = types_of(c)
  first = types.index(SLIDING) if SLIDING in types else c.layers
  out = {'use_sliding_window': SLIDING in types, 'max_window_layers': first}
  return out | write_windows(c)


def check_layer_types(h: dict, c: Config) -> None:
  """Checks that layer_types are known and agree with the other keys.

  Raises:
    ValueError: names the layer.
  """
  types = h.get('layer_types')
  if types is None:
    return
  if len(types) != c.layers:
    raise ValueError(
      f'config.json: layer_types has {len(types)} entries for '
      f'num_hidden_layers={c.layers}'
    )
  for i, kind in enumerate(types):
    other = LINEAR if c.delta_key_dim else CONV
    window = CHUNKED if min(c.layer_windows) < 0 else SLIDING
    known = (other if c.delta_layers else window, FULL)
    known = (INDEXED,) if c.index_topk else known
    if RENAMED.get(kind, kind) not in known:
      raise ValueError(
        f'config.json: layer_types[{i}]={kind!r} is not supported: choose '
        f'{" or ".join(known)}'
      )
    if c.delta_layers or c.index_topk:
      continue
    if (kind != FULL) != bool(c.layer_windows[i]):
      raise ValueError(
        f'config.json: layer_types[{i}]={kind!r}, but the other keys of '
        f'{h["model_type"]} (sliding_window, use_sliding_window) imply '
        f'{c.layer_windows[i] or "no"} window for that layer'
      )


def biases(h: dict) -> dict:
  """Reads attention_bias, which applies to all four projections."""
  both = bool(h.get('attention_bias'))
  return {'bias': both, 'o_bias': both}


def write_biases(c: Config) -> dict:
  """Writes the keys of biases on all four projections."""
  return {'attention_bias': c.bias}


def experts(h: dict) -> dict:
  """Reads a mixture of experts in every layer.

  Raises:
    ValueError: some layers have no experts.
  """
  if h.get('mlp_only_layers') or h.get('decoder_sparse_step', 1) != 1:
    raise ValueError(
      'config.json: mlp_only_layers and decoder_sparse_step are not supported: '
      'all layers must have experts'
    )
  return {
    'mlp': h['moe_intermediate_size'],
    'experts': h.get('num_experts') or h.get('num_local_experts') or 128,
    'experts_per_token': h['num_experts_per_tok'],
    'expert_norm': bool(h.get('norm_topk_prob', False)),
  }


def write_experts(c: Config) -> dict:
  """Writes the keys of a mixture of experts in every layer."""
  return {
    'moe_intermediate_size': c.mlp,
    'num_experts': c.experts,
    'num_experts_per_tok': c.experts_per_token,
    'norm_topk_prob': c.expert_norm,
    'decoder_sparse_step': 1,
    'mlp_only_layers': [],
  }


def gemma(h: dict) -> dict:
  """Reads the keys that Gemma 2 and 3 share."""
  if h.get('use_bidirectional_attention'):
    raise ValueError(
      'config.json: use_bidirectional_attention is not supported'
    )
  return biases(h) | {
    'norm_place': 'sandwich',
    'norm_offset': 1.0,
    'embed_scale': h['hidden_size'] ** 0.5,
    'embed_rounded': True,
    'query_scale': h['query_pre_attn_scalar'] ** -0.5,
    'logit_cap': h.get('final_logit_softcapping') or 0.0,
  }


def write_gemma(c: Config) -> dict:
  """Writes the keys that Gemma 2 and 3 share."""
  # An integer wherever the published files have one.
  scalar = c.score_scale**-2
  if abs(scalar - round(scalar)) < 1e-6 * scalar:
    scalar = round(scalar)
  return (
    write_windows(c)
    | write_biases(c)
    | {
      'hidden_activation': 'gelu_pytorch_tanh',
      'query_pre_attn_scalar': scalar,
      'final_logit_softcapping': c.logit_cap or None,
      'attn_logit_softcapping': c.attention_cap or None,
    }
  )


def deep_experts(h: dict) -> dict:
  """Reads experts that follow dense layers and are chosen by corrected sigmoids
  in groups, and the mlp for all tokens beside them.
  """
  dense = h['first_k_dense_replace']
  return {
    'mlp': h['moe_intermediate_size'],
    'experts': h.get('num_local_experts') or h['n_routed_experts'],
    'experts_per_token': h['num_experts_per_tok'],
    'expert_norm': bool(h['norm_topk_prob']),
    'expert_scale': float(h['routed_scaling_factor']),
    'router': 'sigmoid',
    'choice_bias': True,
    'expert_groups': h['n_group'] or 1,
    'groups_per_token': h['topk_group'] or 1,
    'shared_mlp': h['moe_intermediate_size'] * h['n_shared_experts'],
    'dense_layers': tuple(range(dense)),
    'dense_mlp': h['intermediate_size'] if dense else 0,
  }


def write_deep_experts(c: Config) -> dict:
  """Writes the keys of `deep_experts`."""
  return {
    'intermediate_size': c.dense_mlp or c.mlp,
    'moe_intermediate_size': c.mlp,
    'n_routed_experts': c.experts,
    'num_experts_per_tok': c.experts_per_token,
    'norm_topk_prob': c.expert_norm,
    'routed_scaling_factor': c.expert_scale,
    'n_group': c.expert_groups,
    'topk_group': c.groups_per_token,
    'n_shared_experts': c.shared_mlp // c.mlp,
    'first_k_dense_replace': len(c.dense_layers),
    'num_mtp_layers': 0,
    'num_nextn_predict_layers': 0,
  }


def later_layers(h: dict) -> str:
  """Returns a regex over the names of tensors of layers for multi-token
  prediction, which follow the model's layers and are not read.
  """
  own = '|'.join(map(str, range(h['num_hidden_layers'])))
  return rf'model\.layers\.(?!(?:{own})\.)\d+\..*'
