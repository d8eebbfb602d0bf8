"""Rotary tables as config.json says them: rope_scaling (old form) or
rope_parameters (new), and back.
"""

import math

from jaxrl_reason.models.parts.rope import Rope
from jaxrl_reason.models.published.keys import FULL, SLIDING

# A rope kind's own keys in config.json, and in Rope.
KEYS = {
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
# Of those, the ones without which a table says nothing.
NEEDED = {
  'linear': ('factor',),
  'dynamic': ('factor',),
  'llama3': ('factor', 'low_freq_factor', 'high_freq_factor'),
  'longrope': ('short_factor', 'long_factor'),
}


def _attention_scale(raw: dict, kind: str, original: float, factor: float):
  """Factor of cos and sin that yarn and longrope ask for."""
  if raw.get('attention_factor') is not None:
    return float(raw['attention_factor'])
  if factor <= 1:
    return 1.0
  if kind == 'longrope':
    return math.sqrt(1 + math.log(factor) / math.log(original))

  def scale(m: float) -> float:
    return 0.1 * m * math.log(factor) + 1.0

  if raw.get('mscale') and raw.get('mscale_all_dim'):
    return scale(raw['mscale']) / scale(raw['mscale_all_dim'])
  return scale(1.0)


def _theta(raw: dict, theta) -> float:
  theta = raw.get('rope_theta', theta)
  if not theta:
    raise ValueError(
      f'config.json: rope_theta is {theta!r}; give the base of the wavelengths'
    )
  return float(theta)


def _whole_heads(h: dict, raw: dict) -> None:
  """Refuses a share of rotated features, which the family does not read."""
  for place in (h, raw):
    if place.get('partial_rotary_factor') not in (None, 1.0):
      raise ValueError(
        f'config.json: partial_rotary_factor={place["partial_rotary_factor"]}: '
        f'{h["model_type"]} rotates whole heads'
      )


def raw_of(h: dict) -> dict:
  """Finds what a config.json says of its table, in its old or its new form.

  Raises:
    ValueError: it says two things.
  """
  old, new = h.get('rope_scaling') or {}, h.get('rope_parameters') or {}
  if old and new and old != new:
    # transformers takes the old form alone, and forgets the other's rope_theta.
    raise ValueError(
      'config.json: rope_scaling and rope_parameters say different things; '
      'write all of the table, rope_theta too, in rope_parameters alone'
    )
  return new or old


def read(h: dict, raw: dict, theta, fraction: float | None = None) -> Rope:
  """Reads the table that `raw` (rope_scaling or rope_parameters) describes.

  Args:
    theta: where `raw` has no rope_theta.
    fraction: of a head's features that are rotated; None: all, as the family
      always does.

  Raises:
    ValueError: names the key that is missing or not understood.
  """
  kind = raw.get('rope_type', raw.get('type', 'default'))
  if kind not in KEYS:
    raise ValueError(
      f'config.json: rotary tables of rope type {kind!r} are not there; there '
      f'are {", ".join(KEYS)}'
    )
  if fraction is None:
    _whole_heads(h, raw)
    fraction = 1.0
  out = {'kind': kind, 'theta': _theta(raw, theta), 'fraction': fraction}
  for key in NEEDED.get(kind, ()):
    if raw.get(key) is None:
      raise ValueError(f'config.json: rope type {kind!r} needs {key}')
  for key, name in KEYS[kind].items():
    if raw.get(key) is not None:
      value = raw[key]
      out[name] = tuple(map(float, value)) if isinstance(value, list) else value
  longest = h.get('max_position_embeddings') or 0
  if 'original_max_position_embeddings' in KEYS[kind]:
    # Beside the table it counts more than inside, as in transformers.
    beside = h.get('original_max_position_embeddings')
    out['original'] = beside or out.get('original') or longest
    if not out['original']:
      raise ValueError(
        f'config.json: rope type {kind!r} needs '
        'original_max_position_embeddings'
      )
  if 'attention_factor' in KEYS[kind]:
    factor = raw.get('factor') or longest / out['original']
    if kind == 'yarn':
      out['factor'] = factor
    out['attention'] = _attention_scale(raw, kind, out['original'], factor)
  if kind == 'dynamic':
    out['max_positions'] = longest
  return Rope(**out)


def fraction_of(h: dict, absent: float = 1.0) -> float:
  """Reads the share of a head's features that are rotated: absent, the
  family's; null, all.
  """
  key = 'partial_rotary_factor'
  found = raw_of(h).get(key, h.get(key, absent))
  return 1.0 if found is None else float(found)


def fields(h: dict, fraction: float | None = None) -> dict:
  """Reads the fields of Config of a config.json with one table.

  Args:
    fraction: as `read` takes it.
  """
  raw = raw_of(h)
  rope = read(h, raw, h['rope_theta'], fraction)
  if rope == Rope(theta=rope.theta):
    return {'rope_theta': rope.theta}
  return {'rope_theta': rope.theta, 'ropes': (rope,)}


def by_type(h: dict, types: list[str], full, sliding) -> dict:
  """Reads the fields of Config of a config.json with a table per kind of layer.

  Args:
    types: of the layers, where the file does not give `layer_types`.
    full, sliding: rope_theta of full and windowed layers, where it gives none.

  Raises:
    ValueError: the table is not per kind of layer.
  """
  types = h.get('layer_types') or types
  raw = raw_of(h)
  if not {FULL, SLIDING} & raw.keys():
    if h.get('rope_parameters'):  # which transformers would not look at
      raise ValueError(
        f'config.json: rope_parameters of {h["model_type"]} are a table per '
        f'kind of layer, {FULL} and {SLIDING}; neither is there'
      )
    # The old form: what there is stretches the full layers alone.
    raw = {FULL: raw}
  tables = (
    read(h, raw.get(FULL) or {}, full),
    read(h, raw.get(SLIDING) or {}, sliding),
  )
  return {
    'rope_theta': tables[0].theta,
    'ropes': tables,
    'rope_of_layer': tuple(int(t == SLIDING) for t in types),
  }


def stretched(h: dict, scale: float) -> dict:
  """Returns a config.json whose rotary table reaches `scale` times as far: by
  YaRN, or more of what stretches it already.

  Raises:
    ValueError: names what the table is, where it cannot be stretched so.
  """
  raw = dict(raw_of(h))
  kind = raw.get('rope_type', raw.get('type', 'default'))
  longest = h.get('max_position_embeddings')
  if {FULL, SLIDING} & raw.keys() or 'rope_local_base_freq' in h:
    raise ValueError(
      f'model.rope_scale={scale:g}: {h["model_type"]} has a rotary table per '
      'kind of layer; stretch them in its config.json'
    )
  if kind not in ('default', 'linear', 'yarn') or not longest:
    raise ValueError(
      f'model.rope_scale={scale:g}: a rotary table of type {kind!r} and '
      f'max_position_embeddings={longest} is not stretched further; default, '
      'linear and yarn are'
    )
  if kind == 'default':
    raw |= {'rope_type': 'yarn', 'original_max_position_embeddings': longest}
  raw |= {'factor': raw.get('factor', 1.0) * scale, 'attention_factor': None}
  out = {k: v for k, v in h.items() if k != 'rope_parameters'}
  theta = raw.pop('rope_theta', h.get('rope_theta'))
  out |= {'rope_theta': theta} if theta else {}
  return out | {
    'rope_scaling': {k: v for k, v in raw.items() if v is not None},
    'max_position_embeddings': int(longest * scale),
  }


def write(rope: Rope) -> dict | None:
  """Writes rope_scaling of a table; None for the default kind."""
  if rope.kind == 'default':
    return None
  out = {'rope_type': rope.kind}
  for key, name in KEYS[rope.kind].items():
    value = getattr(rope, name)
    out[key] = list(value) if isinstance(value, tuple) else value
  return out
