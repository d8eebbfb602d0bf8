"""Weights in the form that decoding reads."""

import dataclasses
from typing import Any

from jaxrl_reason import sharding, trees
from jaxrl_reason.models import spec, stretches, weights
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.parts import exact_layers, layers


def decode_params(c: Config, specs: Any, params: Any, steer=None) -> Any:
  """Converts weights for decoding: cast and gathered once per generation, not
  once per token, with one tree per entry (`stretches`). Norms, and weights that
  are added to scores, stay float32, as in training.

  Args:
    specs: of the parameters.
    steer: [L,D], steering vectors (`adapters.steering`), or None.
  """

  def read(path, x, s):
    if c.numerics == 'exact':
      return _split(path, x, s)
    return x if path.endswith(weights.EXACT) else layers.cast(x, c.dtype)

  if c.numerics == 'exact' and c.tied:
    params = params | {'head': params['embed'].T}
    tied = specs['embed']
    tied = dataclasses.replace(
      tied, shape=tied.shape[::-1], axes=tied.axes[::-1]
    )
    specs = specs | {'head': tied}
  cast = trees.map_with_path(read, params, specs, is_leaf=layers.is_weight)
  cast = sharding.constrain(cast, specs, sharding.DECODE_RULES)
  if c.numerics != 'exact':
    cast = trees.map_with_path(_matrix, cast, specs, is_leaf=layers.is_weight)
  if steer is not None:
    cast['layers'] = cast['layers'] | {'steer': steer}
  entries = [stretches.take(c, cast, at) for at in stretches.entries(c)]
  ends = {k: v for k, v in cast.items() if k not in c.stacks}
  return ends | {'layers': entries}


def _split(path: str, x: layers.Weight, s: spec.Spec) -> Any:
  """Splits a projection into digits (`parts.exact_layers`)."""
  name = path.rpartition('/')[2]
  inputs = weights.N_INPUTS.get(name, name in ('router', 'part', 'head'))
  return exact_layers.for_decoding(x, name, spec.n_stacked(s), inputs)


def _matrix(path: str, w: layers.Weight, s: spec.Spec) -> layers.Weight:
  """Reshapes an output projection [...,heads,H,D] to [...,heads*H,D], the form
  in which a layer reads it. In a loop over layers the TPU compiler copies a
  layer's projection in another form at every token.
  """
  if path.rpartition('/')[2] != 'o':
    return w
  n = spec.n_stacked(s)
  return w.reshape(*s.shape[:n], -1, s.shape[-1])
