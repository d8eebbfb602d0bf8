"""Phi-3 and Phi-4-mini: fused projections, partial rotation, longrope."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Phi3ForCausalLM'
DEFAULTS = keys.BASE | {
  'rms_norm_eps': 1e-5,
  'original_max_position_embeddings': 4096,
}
TENSORS = (*tensors.ENDS, *tensors.FUSED, *tensors.OUT, *tensors.PRE_NORMS)


def read(h: dict) -> dict:
  raw = dict(ropes.raw_of(h))
  kind = ropes.kind_of(raw)
  # 'su' and 'yarn' are older names of longrope here.
  raw['rope_type'] = 'longrope' if kind in ('su', 'yarn') else kind
  fraction = ropes.fraction_of(h)
  h = h | {'rope_parameters': raw, 'rope_scaling': None}
  return keys.windows(h) | ropes.fields(h, fraction)


def write(c: Config) -> dict:
  rope = c.rope_tables[0]
  out = {'partial_rotary_factor': rope.fraction}
  if rope.kind == 'longrope':
    out['original_max_position_embeddings'] = rope.original
  return out | keys.write_window(c)
