"""Mamba-2 layers: their keys of config.json and tensors, which several families
share under different names.
"""

import math
from collections.abc import Mapping

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.parts.delta import MAMBA
from jaxrl_reason.models.published import tensors

INFINITY = {'__float__': 'Infinity'}  # as `transformers` writes it
LIMITS = None, [0, math.inf], [0, INFINITY]  # of time steps: none
# `peft` refuses adapters of it in most models with Mamba-2, because their
# kernels do not call the module.
UNADAPTED = ('.out_proj.weight',)
IN = ('z', 'v', 'k', 'q', 'step')  # weights of the input projection, in order
# Keys of the number of heads, groups of heads with the same keys, width of the
# state, and taps of the convolution.
NAMES = 'mamba_n_heads', 'mamba_n_groups', 'mamba_d_state', 'mamba_d_conv'


def rows(prefix: str, at: str = 'attn') -> tuple[tensors.Row, ...]:
  """Returns the rows of a layer whose names on disk begin with `prefix`.

  Args:
    at: the subtree of a layer's weights.
  """
  vectors = {
    'conv1d.bias': 'conv_bias',
    'A_log': 'log_decay',
    'dt_bias': 'step_bias',
    'D': 'skip',
    'norm.weight': 'out_norm',
  }
  out = f'{prefix}.out_proj.weight'
  return (
    tensors.layer(f'{prefix}.in_proj.weight', *(f'{at}/{x}' for x in IN)),
    tensors.depthwise(f'{prefix}.conv1d.weight', f'{at}/conv'),
    *(tensors.vector(f'{prefix}.{k}', f'{at}/{v}') for k, v in vectors.items()),
    tensors.layer(out, f'{at}/o', layout='output'),
  )


def read(
  h: Mapping,
  which: tuple[int, ...],
  width: int,
  names: tuple[str, ...] = NAMES,
) -> dict:
  """Reads the fields of the layers `which`.

  Args:
    width: features of all heads.
    names: as NAMES.

  Raises:
    ValueError: the heads do not divide the width or their groups the heads.
  """
  if not which:
    return {}
  heads, groups, state, taps = (h[name] for name in names)
  if heads < 1 or groups < 1 or heads % groups or width % heads:
    raise ValueError(
      f'config.json: {names[0]}={heads} must be a multiple of '
      f'{names[1]}={groups}, and divide the width {width} of the layers'
    )
  return {
    'delta_layers': which,
    'delta_rule': MAMBA,
    'delta_heads': groups,
    'delta_groups': heads // groups,
    'delta_key_dim': state,
    'delta_value_dim': width // heads,
    'delta_taps': taps,
  }


def write(c: Config, names: tuple[str, ...] = NAMES) -> dict:
  """Writes the keys `names`."""
  heads = c.delta_heads * c.delta_groups
  sizes = heads, c.delta_heads, c.delta_key_dim, c.delta_taps
  return dict(zip(names, sizes)) if heads else {}


def check(h: Mapping, wanted: Mapping[str, tuple]) -> None:
  """Refuses values of keys that are not supported.

  Args:
    wanted: the supported values of each key, the usual one first.

  Raises:
    ValueError: names the key.
  """
  for key, known in wanted.items():
    value = h.get(key)
    value = list(value) if isinstance(value, tuple) else value
    if value not in known:
      usual = ' or '.join(map(repr, known))
      raise ValueError(
        f'config.json: {key}={value!r} is not supported, only {usual}'
      )
