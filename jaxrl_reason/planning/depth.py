"""Extrapolates the plan of a deep model from a few of its layers.

  figure(L) = figure(b) + (L - b) * (figure(b) - figure(a)) / (b - a)

Layers are alike, so memory, FLOPs, bytes, exchanges and seconds are linear in
their number; embedding and head are the same at every depth. Three depths are
compiled. The line through the last two gives the figures, and the distance of
the first from this line is an error estimate.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxrl_reason.config.rules import is_number
from jaxrl_reason.models.config import Config

# Depths compiled, in periods of the layers' pattern.
PERIODS = 2, 3, 4
SPECIAL = (
  'dense_layers',
  'delta_layers',
  'mlp_layers',
  'wide_layers',
  'indexless_layers',
)
# The figures of a phase whose error is reported.
CHECKED = 'needs_gib', 'flops', 'step_seconds'
# Figures that do not depend on the depth.
LIKE_THE_LAST = 'dims', 'calls_per_step', 'trips'


def cut(shape: Config, layers: int) -> Config:
  """Keeps the first layers of a model."""
  return dataclasses.replace(
    shape,
    layers=layers,
    windows=shape.windows[:layers],
    rope_of_layer=shape.rope_of_layer[:layers],
    mlp_sparsity=shape.mlp_sparsity[:layers],
    **{
      name: tuple(i for i in getattr(shape, name) if i < layers)
      for name in SPECIAL
    },
  )


def _first(shape: Config) -> int:
  """Returns the number of layers without experts if all of them are before the
  layers with experts, else 0.
  """
  n = len(shape.dense_layers)
  return n if shape.dense_layers == tuple(range(n)) else 0


def period(shape: Config) -> int:
  """Returns the number of layers after which their kinds repeat, behind the
  first ones without experts.
  """
  special = [getattr(shape, name) for name in SPECIAL]
  if _first(shape):
    special.remove(shape.dense_layers)
  which = [tuple(i in x for x in special) for i in range(shape.layers)]
  sparsity = shape.mlp_sparsity or (0.0,) * shape.layers
  kinds = list(zip(shape.layer_windows, shape.layer_ropes, sparsity, which))
  kinds = kinds[_first(shape) :]
  n = len(kinds)
  return next(p for p in range(1, n + 1) if kinds[p:] == kinds[: n - p])


def depths(shape: Config) -> tuple[int, ...]:
  """Returns the depths to compile: three, or only the model's own depth if
  three would cost as much.
  """
  if shape.reading_layers:  # they are the last ones, with other costs
    return (shape.layers,)
  p = period(shape)
  first = _first(shape)  # exist at any depth
  rest = first + (shape.layers - first) % p
  found = tuple(rest + p * n for n in PERIODS)
  return found if sum(found) < shape.layers else (shape.layers,)


def extended(seen: Sequence[dict], at: Sequence[int], layers: int) -> dict:
  """Extends the facts of one phase (`report.phase_facts`) to another depth.

  Args:
    seen: facts by depth; at: the depths, rising.

  Returns:
    Facts of the same form, with `depth_error`: the distance of CHECKED at the
    first depth from the line, relative to the extrapolated figures.
  """
  missing = [facts for facts in seen if 'flops' not in facts]
  if missing or len(at) == 1:
    return dict((missing or seen)[0])
  first, a, b = seen
  out = _line(a, b, (layers - at[2]) / (at[2] - at[1]))
  back = _line(a, b, (at[0] - at[2]) / (at[2] - at[1]))
  out['depth_error'] = max(
    abs(back[key] - first[key]) / out[key] for key in CHECKED if out[key]
  )
  out['bound_by'] = max(
    out['seconds_by_bound'], key=out['seconds_by_bound'].get
  )
  out['flops_over_model'] = out['flops'] / out['model_flops']
  out['compile_s'] = sum(facts['compile_s'] for facts in seen)
  return out


def _line(a: Any, b: Any, share: float) -> Any:
  """Computes b + share * (b - a) for every number in two trees of facts."""
  if isinstance(b, dict):
    return {
      k: v if k in LIKE_THE_LAST else _line((a or {}).get(k, 0), v, share)
      for k, v in b.items()
    }
  if isinstance(b, list):
    return _lines(a, b, share)
  if not is_number(b):
    return b
  out = max(b + share * (b - a), 0)
  return round(out) if isinstance(b, int) else out


def _lines(a: list[dict], b: list[dict], share: float) -> list[dict]:
  """Applies `_line` to rows of exchanges, by kind and mesh axis."""
  before = {(row['kind'], row['axis']): row for row in a or ()}
  return [_line(before.get((r['kind'], r['axis']), {}), r, share) for r in b]
