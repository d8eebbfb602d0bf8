"""Gemma 3n (text): several residual streams, a low-rank residual of attention
and sparse gates in the first layers; inputs of each layer, and last layers
without keys, as in Gemma 4.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.families import gemma4_text
from jaxrl_reason.models.published import keys, ropes, tensors, values

ARCHITECTURE = 'Gemma3nForCausalLM'
DEFAULTS = {
  'rms_norm_eps': 1e-6,
  'tie_word_embeddings': True,
  'vocab_size': 262_400,
  'hidden_size': 2048,
  'intermediate_size': (16_384,),  # one number, or one of each layer
  'num_hidden_layers': 35,
  'num_attention_heads': 8,
  'num_key_value_heads': 2,
  'head_dim': 256,
  'hidden_activation': 'gelu_pytorch_tanh',
  'sliding_window': 512,
  'attention_bias': False,
  'rope_theta': 1_000_000.0,
  'rope_local_base_freq': 10_000.0,
  'final_logit_softcapping': 30.0,
  'num_kv_shared_layers': 15,
  'hidden_size_per_layer_input': 256,
  'vocab_size_per_layer_input': 262_144,
  'altup_num_inputs': 4,
  'altup_active_idx': 0,
  'altup_correct_scale': True,
  'laurel_rank': 64,
}
UNWRITTEN = ('hidden_act',)
EVERY = 5  # layers: the last of them is global, if the file names none
SPARSE, SHARE = 10, 0.95  # first layers with sparse gates, by default
LEAST = {
  'altup_num_inputs': 2,
  'laurel_rank': 1,
  'hidden_size_per_layer_input': 1,
  'vocab_size_per_layer_input': 1,
}
OF_LAYER = (
  *tensors.MLP,
  tensors.layer('laurel.linear_left.weight', 'low_rank/down'),
  tensors.layer('laurel.linear_right.weight', 'low_rank/up'),
  tensors.vector('laurel.post_laurel_norm.weight', 'low_rank_norm'),
  tensors.layer('altup.modality_router.weight', 'streams/router'),
  tensors.vector('altup.router_norm.weight', 'streams/router_norm'),
  tensors.layer('altup.prediction_coefs.weight', 'streams/predict'),
  tensors.layer('altup.correction_coefs.weight', 'streams/correct'),
  tensors.vector('altup.correct_output_scale', 'streams/active_scale'),
)
IN = 'model.altup_projections.{}.weight'
OUT = 'model.altup_unembed_projections.{}.weight'
TENSORS = (
  *gemma4_text.rows(*OF_LAYER),
  tensors.Row(IN, ('streams_in',), 'linear'),
  tensors.Row(OUT, ('streams_out',), 'linear'),
)
beside = gemma4_text.beside


def implied(h: dict) -> dict:
  """Returns the kinds of layers and the width of every mlp."""
  n = h['num_hidden_layers']
  types = [keys.SLIDING if (i + 1) % EVERY else keys.FULL for i in range(n)]
  widths = h['intermediate_size']
  if isinstance(widths, list) and (len(widths) != n or len({*widths}) > 1):
    raise ValueError(
      f'config.json: intermediate_size={widths!r:.60} is not supported: all '
      f'num_hidden_layers={n} layers must have the same number'
    )
  several = isinstance(widths, list | tuple)
  return {
    'layer_types': h.get('layer_types') or types,
    'intermediate_size': widths[0] if several else widths,
  }


def read(h: dict) -> dict:
  for key, least in LEAST.items():
    if h[key] is None or h[key] < least:
      raise ValueError(f'config.json: {key}={h[key]} must be {least} or more')
  for key, only in ('altup_active_idx', 0), ('altup_correct_scale', True):
    if h[key] != only:
      raise ValueError(
        f'config.json: {key}={h[key]} is not supported, only {only}'
      )
  bases = h['rope_theta'], h['rope_local_base_freq']
  vocab = h['vocab_size_per_layer_input']
  return (
    gemma4_text.shared(h)
    | ropes.by_type(h, h['layer_types'], *bases)
    | _global(h)
    | {
      'reading_layers': h['num_kv_shared_layers'],
      'layer_inputs': h['hidden_size_per_layer_input'],
      'layer_inputs_vocab': vocab if vocab != h['vocab_size'] else 0,
      'streams': h['altup_num_inputs'],
      'low_rank': h['laurel_rank'],
      'mlp_sparsity': _sparsity(h),
    }
  )


def _global(h: dict) -> dict:
  """Returns the stack of global layers. Their heads are as wide as those of the
  others, but layers without keys read those of their kind.
  """
  layers = range(h['num_hidden_layers'])
  wide = tuple(i for i in layers if h['layer_types'][i] == keys.FULL)
  if not wide:
    return {}
  heads = {'head_dim': h['head_dim'], 'kv_heads': h['num_key_value_heads']}
  return {'wide_layers': wide} | {f'wide_{k}': n for k, n in heads.items()}


def _sparsity(h: dict) -> tuple[float, ...]:
  """Reads the share of gates that is zero in each layer."""
  n, key = h['num_hidden_layers'], 'activation_sparsity_pattern'
  shares = h.get(key)
  if shares is None:
    shares = [SHARE if n > SPARSE and i < SPARSE else 0.0 for i in range(n)]
  if not isinstance(shares, list) or len(shares) != n:
    raise ValueError(
      f'config.json: {key}={shares!r:.60} is not a list of '
      f'num_hidden_layers={n} numbers'
    )
  for share in shares:
    values.check_number(key, share)
  return tuple(map(float, shares)) if any(shares) else ()


def write(c: Config) -> dict:
  local = c.rope_tables[-1].theta
  return (
    keys.write_windows(c)
    | keys.write_biases(c)
    | {'rope_local_base_freq': local}
    | ropes.write_by_type(c, local)
    | {
      'hidden_activation': 'gelu_pytorch_tanh',
      'final_logit_softcapping': c.logit_cap or None,
      'num_kv_shared_layers': c.reading_layers,
      'hidden_size_per_layer_input': c.layer_inputs,
      'vocab_size_per_layer_input': c.layer_inputs_vocab or c.vocab,
      'altup_num_inputs': c.streams,
      'laurel_rank': c.low_rank,
      'activation_sparsity_pattern': [*c.mlp_sparsity] or [0.0] * c.layers,
    }
  )
