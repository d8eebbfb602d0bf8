"""Falcon-H1: attention and Mamba-2 in parallel in every layer, and factors of
embeddings, projections and logits.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, mamba, ropes, tensors, values

ARCHITECTURE = 'FalconH1ForCausalLM'
DEFAULTS = keys.BASE | {
  'rms_norm_eps': 1e-5,
  'num_key_value_heads': 8,
  'intermediate_size': 14_336,
  'mamba_d_ssm': 1024,
  'mamba_expand': 2,
  'mamba_n_heads': 128,
  'mamba_n_groups': 1,
  'mamba_d_state': 256,
  'mamba_d_conv': 4,
  'mamba_conv_bias': True,
  'mamba_proj_bias': False,
  'mamba_rms_norm': False,
  'mamba_norm_before_gate': True,
  'projectors_bias': False,
  'embedding_multiplier': 1.0,
  'lm_head_multiplier': 1.0,
  'key_multiplier': 1.0,
  'attention_in_multiplier': 1.0,
  'attention_out_multiplier': 1.0,
  'ssm_in_multiplier': 1.0,
  'ssm_out_multiplier': 1.0,
}
UNADAPTED = mamba.UNADAPTED
TENSORS = (
  tensors.Row(tensors.EMBED, ('embed',), 'table'),
  tensors.Row('model.final_layernorm.weight', ('final_norm',), 'vector'),
  tensors.Row(tensors.HEAD, ('head',), 'linear'),
  *tensors.QKV,
  *tensors.OUT,
  *mamba.rows('mamba', 'state'),
  *(
    row._replace(name=row.name.replace('.mlp.', '.feed_forward.'))
    for row in tensors.MLP
  ),
  tensors.vector('input_layernorm.weight', 'attn_norm'),
  tensors.vector('pre_ff_layernorm.weight', 'mlp_norm'),
)


def read(h: dict) -> dict:
  return (
    {
      'mlp_bias': bool(h.get('mlp_bias')),
      'embed_scale': float(h['embedding_multiplier']),
      'logit_divisor': _inverse(h['lm_head_multiplier']),
      'mlp_scales': _factors(h, 'mlp_multipliers', 2),
    }
    | _mixers(h)
    | _attention(h)
    | ropes.fields(h)
  )


def _factors(h: dict, key: str, n: int) -> tuple[float, ...]:
  found = h.get(key) or [1.0] * n
  if len(found) != n:
    raise ValueError(f'config.json: {key} must have {n} values, not {found}')
  return tuple(float(x) for x in found)


def _attention(h: dict) -> dict:
  """Reads attention. The factor of its input multiplies the scores twice, by
  queries and keys, and the output once.
  """
  out, of_input = keys.biases(h), h['attention_in_multiplier']
  if out['bias'] and of_input != 1:
    raise ValueError(
      f'config.json: attention_in_multiplier={of_input} is not supported with '
      'attention_bias'
    )
  head_dim = h.get('head_dim') or h['hidden_size'] // h['num_attention_heads']
  return out | {
    'query_scale': _scores(head_dim, h['key_multiplier'] * of_input**2),
    'attention_scale': float(h['attention_out_multiplier'] * of_input),
  }


def _scores(head_dim: int, factor: float) -> float:
  return head_dim**-0.5 * factor


def _mixers(h: dict) -> dict:
  """Reads Mamba-2. The factor of its input multiplies every projection."""
  width = h['mamba_d_ssm'] or h['mamba_expand'] * h['hidden_size']
  n = h['num_hidden_layers']
  out = mamba.read(h, tuple(range(n)), width)
  norm = bool(h['mamba_rms_norm'])
  mamba.check(
    h,
    {
      'mamba_conv_bias': (True,),
      'mamba_proj_bias': (False, None),
      'projectors_bias': (False, None),
      'mamba_d_head': ('auto', None, out['delta_value_dim']),
      'mamba_norm_before_gate': (False, None) if norm else (False, True, None),
      'time_step_limit': mamba.LIMITS,
    },
  )
  z, v, k, q, step = _factors(h, 'ssm_multipliers', 5)
  scales = [x * h['ssm_in_multiplier'] for x in (z, v, k, q, step)]
  return out | {
    'delta_beside': True,
    'delta_norm': norm,
    'delta_scales': (*scales, float(h['ssm_out_multiplier'])),
  }


def _inverse(x: float) -> float:
  return 1 / x


def write(c: Config) -> dict:
  *scales, of_output = c.delta_scales or (1.0,) * 6

  def score(factor: float) -> float:
    return _scores(c.head_dim, factor)

  near = c.score_scale / score(1.0)
  return (
    keys.write_biases(c)
    | mamba.write(c)
    | {
      'mamba_d_ssm': c.delta_heads * c.delta_groups * c.delta_value_dim,
      'mamba_d_head': c.delta_value_dim,
      'mamba_rms_norm': c.delta_norm,
      'mamba_norm_before_gate': False,
      'mlp_bias': c.mlp_bias,
      'mlp_multipliers': list(c.mlp_scales),
      'ssm_multipliers': scales,
      'ssm_out_multiplier': of_output,
      'embedding_multiplier': c.embed_scale,
      'lm_head_multiplier': values.inverted(
        _inverse, 1 / c.logit_divisor, c.logit_divisor
      ),
      'key_multiplier': values.inverted(score, near, c.score_scale),
      'attention_out_multiplier': c.attention_scale,
    }
  )
