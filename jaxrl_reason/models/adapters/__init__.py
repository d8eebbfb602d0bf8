"""What is put beside a model's weights, and how those not trained are kept.

  model = attach(model, lora=Lora(...), steering=True, frozen_dtype='int8')

Each of the three is a change of the parameters before the layers read them,
and a subtree or dtype in the specs; `attach` is the one place that wraps a
model's functions.
"""

import dataclasses
from typing import Any

from jaxrl_reason.base import Model
from jaxrl_reason.models.adapters import frozen as frozen_lib
from jaxrl_reason.models.adapters import lora as lora_lib
from jaxrl_reason.models.adapters import steering as steering_lib


def _specs(base: Any, lora, steering, frozen_dtype, trainable):
  """The specs of the model with what is attached."""
  specs = base
  if lora:
    specs = specs | {lora_lib.KEY: lora_lib.specs(base, lora)}
  if steering:
    specs = specs | {steering_lib.KEY: steering_lib.spec_of(base)}
  if frozen_dtype == 'float32':
    return specs
  kept = frozen_lib.specs(specs, frozen_dtype, trainable)
  if kept == specs:
    raise ValueError(
      f'frozen_dtype={frozen_dtype!r}: trainable={trainable!r} leaves no '
      'weight frozen'
    )
  return kept


def attach(
  base: Model,
  *,
  lora: lora_lib.Lora | None = None,
  steering: bool = False,
  frozen_dtype: str = 'float32',
  trainable: str = '.*',
) -> Model:
  """Returns the model with adapters, vectors and frozen weights; without the
  first two in its parameters it is the base.

  Args:
    frozen_dtype: of the weights that are not trained: `frozen.DTYPES`.
    trainable: regex over the paths of those that are.

  Raises:
    ValueError: lora.targets match no projection, or nothing is frozen.
  """
  if not lora and not steering and frozen_dtype == 'float32':
    return base
  scale = lora.scale if lora else 0.0

  def bind(f):
    def bound(params, *args):
      params = steering_lib.on(frozen_lib.wrapped(params))
      return f(lora_lib.beside(params, scale), *args)

    return f and bound

  def decode_params(params):
    params = frozen_lib.wrapped(params)
    merged = lora_lib.merged(steering_lib.off(params), scale)
    if not steering:
      return base.decode_params(merged)
    return base.decode_params(merged, params[steering_lib.KEY])

  def adapters_off(params):
    return lora_lib.base_of(steering_lib.off(params))

  return dataclasses.replace(
    base,
    specs=_specs(base.specs, lora, steering, frozen_dtype, trainable),
    hidden=bind(base.hidden),
    prefill=bind(base.prefill),
    hidden_routed=bind(base.hidden_routed),
    hidden_shared=bind(base.hidden_shared),
    decode_params=decode_params,
    adapters_off=adapters_off if lora or steering else None,
  )
