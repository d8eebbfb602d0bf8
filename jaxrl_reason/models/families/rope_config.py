"""Rotary tables as config.json says them: rope_scaling (old form) or
rope_parameters (new), and back.
"""

import math

from jaxrl_reason.models.parts.rope import Rope

# A rope kind's own keys in config.json, and in Rope.
ROPE_KEYS = {
  'default': {},
  'linear': {'factor': 'factor'},
  'dynamic': {'factor': 'factor'},
  'llama3': {
    'factor': 'factor',
    'low_freq_factor': 'low',
    'high_freq_factor': 'high',
    'original_max_position_embeddings': 'original',
  },
  'yarn': {
    'factor': 'factor',
    'beta_fast': 'beta_fast',
    'beta_slow': 'beta_slow',
    'truncate': 'truncate',
    'attention_factor': 'attention',
    'original_max_position_embeddings': 'original',
  },
  'longrope': {
    'short_factor': 'short',
    'long_factor': 'long',
    'attention_factor': 'attention',
    'original_max_position_embeddings': 'original',
  },
}


def _attention_scale(raw: dict, kind: str, original: float, factor: float):
  """Factor of cos and sin that yarn and longrope ask for."""
  if raw.get('attention_factor') is not None:
    return float(raw['attention_factor'])
  if factor <= 1:
    return 1.0
  if kind == 'longrope':
    return math.sqrt(1 + math.log(factor) / math.log(original))
  scale = lambda m: 0.1 * m * math.log(factor) + 1.0
  if raw.get('mscale') and raw.get('mscale_all_dim'):
    return scale(raw['mscale']) / scale(raw['mscale_all_dim'])
  return scale(1.0)


def read(h: dict, raw: dict, theta: float, fraction: float = 1.0) -> Rope:
  """The table that `raw` (rope_scaling or rope_parameters) describes."""
  kind = raw.get('rope_type', raw.get('type', 'default'))
  if kind not in ROPE_KEYS:
    raise ValueError(
      f'rope type {kind!r} is not supported: {", ".join(ROPE_KEYS)}'
    )
  if raw.get('partial_rotary_factor') not in (None, 1.0, fraction):
    raise ValueError('partial_rotary_factor is not supported in this family')
  theta = float(raw.get('rope_theta', theta))
  out = {'kind': kind, 'theta': theta, 'fraction': fraction}
  for key, name in ROPE_KEYS[kind].items():
    if raw.get(key) is not None:
      value = raw[key]
      out[name] = tuple(map(float, value)) if isinstance(value, list) else value
  longest = h.get('max_position_embeddings', 0)
  if 'original_max_position_embeddings' in ROPE_KEYS[kind]:
    old = h.get('original_max_position_embeddings') or longest
    out.setdefault('original', old)
  if 'attention_factor' in ROPE_KEYS[kind]:
    factor = raw.get('factor') or longest / out['original']
    if kind == 'yarn':
      out['factor'] = factor
    out['attention'] = _attention_scale(raw, kind, out['original'], factor)
  if kind == 'dynamic':
    out['max_positions'] = longest
  return Rope(**out)


def fields(h: dict, fraction: float = 1.0) -> dict:
  """rope fields of a config.json with one table."""
  raw = h.get('rope_parameters') or h.get('rope_scaling') or {}
  rope = read(h, raw, h['rope_theta'], fraction)
  if rope == Rope(theta=rope.theta):
    return {'rope_theta': rope.theta}
  return {'rope_theta': rope.theta, 'ropes': (rope,)}


def write(rope: Rope) -> dict | None:
  """rope_scaling of a table; None for the default kind."""
  if rope.kind == 'default':
    return None
  out = {'rope_type': rope.kind}
  for key, name in ROPE_KEYS[rope.kind].items():
    value = getattr(rope, name)
    out[key] = list(value) if isinstance(value, tuple) else value
  return out
