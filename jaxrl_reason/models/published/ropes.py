"""Conversion of rotary tables between Rope and config.json: rope_scaling (old
form) or rope_parameters (new form).
"""

import math

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.parts.rope import NOPE, PROPORTIONAL, Rope
from jaxrl_reason.models.published import values
from jaxrl_reason.models.published.keys import FULL, SLIDING

# Keys of each rope kind in config.json, and the fields of Rope.
KEYS = {
  'default': {},
  PROPORTIONAL: {
    'partial_rotary_factor': 'fraction',
    'factor': 'factor',
  },
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
# The required keys among them.
NEEDED = {
  'linear': ('factor',),
  'dynamic': ('factor',),
  'llama3': ('factor', 'low_freq_factor', 'high_freq_factor'),
  'longrope': ('short_factor', 'long_factor'),
}


def _attention_scale(raw: dict, kind: str, original: float, factor: float):
  """Returns the factor of cos and sin for yarn and longrope."""
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


def _theta(h: dict, raw: dict, theta) -> float:
  theta = raw.get('rope_theta', theta)
  if not theta:
    others = [k for k in ('rope_parameters', 'rope_local_base_freq') if k in h]
    also = f' (or {" or ".join(others)})' if others else ''
    raise ValueError(
      f'config.json: rope_theta={theta!r}{also} must be the base of the '
      'wavelengths, such as 10000.0'
    )
  return float(theta)


def _check_full_rotation(h: dict, raw: dict) -> None:
  """Raises an error for a share of rotated features that the family ignores."""
  for place in (h, raw):
    if place.get('partial_rotary_factor') not in (None, 1.0):
      raise ValueError(
        f'config.json: partial_rotary_factor={place["partial_rotary_factor"]} '
        f'is not supported: {h["model_type"]} rotates whole heads'
      )


def raw_of(h: dict) -> dict:
  """Returns the raw rotary table of a config.json, in the old or the new form.

  Raises:
    ValueError: both forms are present and differ.
  """
  old, new = h.get('rope_scaling') or {}, h.get('rope_parameters') or {}
  if old and new and old != new:
    # transformers reads only the old form, and ignores the new one's
    # rope_theta.
    raise ValueError(
      'config.json: rope_scaling and rope_parameters differ: write the whole '
      'table, including rope_theta, in rope_parameters only'
    )
  return new or old


def kind_of(raw: dict) -> str:
  """Returns the kind of a rotary table in config.json."""
  return raw.get('rope_type', raw.get('type', 'default'))


def read(h: dict, raw: dict, theta, fraction: float | None = None) -> Rope:
  """Builds the Rope that `raw` (rope_scaling or rope_parameters) describes.

  Args:
    theta: default of rope_theta.
    fraction: share of a head's features that are rotated; None: all, and the
      family has no key for it.

  Raises:
    ValueError: names the key that is missing or not supported.
  """
  kind = kind_of(raw)
  if kind not in KEYS:
    raise ValueError(
      f'config.json: rope_type={kind!r} is not supported: choose '
      f'{", ".join(KEYS)}'
    )
  if kind == PROPORTIONAL and fraction is None:
    fraction = 1.0
  if fraction is None:
    _check_full_rotation(h, raw)
    fraction = 1.0
  out = {'kind': kind, 'theta': _theta(h, raw, theta), 'fraction': fraction}
  for key in NEEDED.get(kind, ()):
    if raw.get(key) is None:
      raise ValueError(f'config.json: rope_type={kind!r} needs {key}')
  for key, name in KEYS[kind].items():
    if raw.get(key) is not None:
      value = raw[key]
      for x in value if isinstance(value, list) else [value]:
        values.check_number(key, x)
      out[name] = tuple(map(float, value)) if isinstance(value, list) else value
  if kind == PROPORTIONAL and not 0 <= out['fraction'] <= 1:
    raise ValueError(
      f'config.json: partial_rotary_factor={out["fraction"]} must be between 0 '
      'and 1'
    )
  longest = h.get('max_position_embeddings') or 0
  if 'original_max_position_embeddings' in KEYS[kind]:
    # Outside the table it has precedence, as in transformers.
    beside = h.get('original_max_position_embeddings')
    out['original'] = beside or out.get('original') or longest
    if not out['original']:
      raise ValueError(
        f'config.json: rope_type={kind!r} needs '
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
  """Reads the share of a head's features that are rotated. If the key is
  absent, returns `absent`; if it is null, 1.
  """
  key = 'partial_rotary_factor'
  fraction = raw_of(h).get(key, h.get(key, absent))
  return 1.0 if fraction is None else float(fraction)


def fields(h: dict, fraction: float | None = None) -> dict:
  """Reads the rotary fields of Config from a config.json with one table.

  Args:
    fraction: see `read`.
  """
  raw = raw_of(h)
  rope = read(h, raw, h['rope_theta'], fraction)
  if rope == Rope(theta=rope.theta):
    return {'rope_theta': rope.theta}
  return {'rope_theta': rope.theta, 'ropes': (rope,)}


def by_type(h: dict, types: list[str], full, sliding) -> dict:
  """Reads the rotary fields of Config from a config.json with a table per kind
  of layer.

  Args:
    types: kinds of the layers if the file has no `layer_types`.
    full, sliding: default rope_theta of full and of windowed layers.

  Raises:
    ValueError: rope_parameters are not per kind of layer.
  """
  types = h.get('layer_types') or types
  raw = raw_of(h)
  if not {FULL, SLIDING} & raw.keys():
    if h.get('rope_parameters'):  # transformers would ignore them
      raise ValueError(
        f'config.json: rope_parameters of {h["model_type"]} need a table per '
        f'kind of layer, under {FULL} and {SLIDING}; both are missing'
      )
    # The old form's scaling applies to full layers only.
    raw = {FULL: raw}
  for key in FULL, SLIDING:
    table = raw.get(key) or {}
    values.expect(key, table, isinstance(table, dict), 'an object')
  tables = (
    read(h, raw.get(FULL) or {}, full),
    read(h, raw.get(SLIDING) or {}, sliding),
  )
  return {
    'rope_theta': tables[0].theta,
    'ropes': tables,
    'rope_of_layer': tuple(int(t == SLIDING) for t in types),
  }


def write_by_type(c: Config, sliding: float) -> dict:
  """Writes the keys of a table per kind of layer that the old form lacks.

  Args:
    sliding: rope_theta of windowed layers in the old form, which has no other
      key for their table.
  """
  if len(c.rope_tables) != 2 or c.rope_tables[1] == Rope(theta=sliding):
    return {}
  tables = [
    {'rope_type': 'default', 'rope_theta': rope.theta} | (write(rope) or {})
    for rope in c.rope_tables
  ]
  return {
    'rope_scaling': None,
    'rope_parameters': dict(zip((FULL, SLIDING), tables)),
  }


def stretched(h: dict, c: Config, scale: float) -> dict:
  """Returns a config.json whose rotary table covers `scale` times the context,
  by YaRN or a larger factor of the existing scaling.

  Args:
    c: of h; its first table has the values of absent keys.

  Raises:
    ValueError: the table cannot be scaled, or no layer reads it.
  """
  rope, raw = c.rope_tables[0], dict(raw_of(h))
  kind = kind_of(raw)
  longest = h.get('max_position_embeddings')
  if {FULL, SLIDING} & raw.keys() or 'rope_local_base_freq' in h:
    raise ValueError(
      f'model.rope_scale={scale:g}: {h["model_type"]} has a rotary table per '
      'kind of layer: set their scaling in its config.json instead'
    )
  if {*c.layer_ropes} == {NOPE}:
    raise ValueError(
      f'model.rope_scale={scale:g}: no layer of this {h["model_type"]} has '
      'rotary positions, so its context needs no scaling: remove the key'
    )
  if kind not in ('default', 'linear', 'yarn') or not longest:
    raise ValueError(
      f'model.rope_scale={scale:g} cannot scale a rotary table of type '
      f'{kind!r} with max_position_embeddings={longest}: only default, linear '
      'and yarn tables with a known length'
    )
  if kind != rope.kind:
    raise ValueError(
      f'model.rope_scale={scale:g}: {h["model_type"]} has a rotary table of '
      f'type {rope.kind!r} if it names none: write the table to rope_scaling '
      'in its config.json'
    )
  original = rope.original
  if kind == 'default':
    raw['rope_type'], original = 'yarn', longest
  if kind != 'linear':
    raw['original_max_position_embeddings'] = original
  raw |= {'factor': rope.factor * scale, 'attention_factor': None}
  out = {k: v for k, v in h.items() if k != 'rope_parameters'}
  theta = raw.pop('rope_theta', h.get('rope_theta'))
  out |= {'rope_theta': theta} if theta else {}
  return out | {
    'rope_scaling': {k: v for k, v in raw.items() if v is not None},
    'max_position_embeddings': int(longest * scale),
  }


def write(rope: Rope) -> dict | None:
  """Returns rope_scaling of a table; None for the default kind."""
  if rope.kind == 'default':
    return None
  out = {'rope_type': rope.kind}
  # A kind without KEYS, such as 'none', is in no published config.json.
  for key, name in KEYS.get(rope.kind, {}).items():
    value = getattr(rope, name)
    out[key] = list(value) if isinstance(value, tuple) else value
  return out
