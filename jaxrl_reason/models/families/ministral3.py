"""Ministral 3: a Mistral whose queries grow with the position."""

import dataclasses

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors, values

ARCHITECTURE = 'Ministral3ForCausalLM'
DEFAULTS = keys.BASE | {
  'rms_norm_eps': 1e-5,
  'num_key_value_heads': 8,
  'head_dim': 128,
}
TENSORS = tensors.LLAMA
PACKED = ('fp8',)
GROWTH = 'llama_4_scaling_beta'
ABSENT = {
  'rope_type': 'yarn',
  'rope_theta': 1_000_000.0,
  'factor': 16.0,
  'original_max_position_embeddings': 16384,
  'mscale': 1.0,
  'mscale_all_dim': 1.0,
  GROWTH: 0.1,
}


def read(h: dict) -> dict:
  raw = ropes.raw_of(h) or ABSENT
  rope = ropes.read(h, raw, h['rope_theta'])
  if rope.kind != 'yarn' or raw.get(GROWTH) is None:
    raise ValueError(
      'config.json: rope_parameters of ministral3 must be of type yarn, with '
      f'{GROWTH}'
    )
  values.check_number(GROWTH, raw[GROWTH])
  rope = dataclasses.replace(rope, growth=raw[GROWTH])
  window = keys.windows(h) if h.get('sliding_window') else {}
  return window | {'rope_theta': rope.theta, 'ropes': (rope,)}


def write(c: Config) -> dict:
  rope = c.rope_tables[0]
  table = {GROWTH: rope.growth} | (ropes.write(rope) or {})
  return keys.write_window(c) | {'rope_scaling': table}
