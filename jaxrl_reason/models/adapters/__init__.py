"""Adapters beside a model's weights, and compact storage of frozen weights.

  model = attach(model, lora=Lora(...), steering=True, frozen_dtype='int8')

Each of the three options transforms the parameters before the layers read them,
and adds a subtree or a dtype to the specs. `attach` is the only function that
wraps a model's functions.
"""

import dataclasses
from typing import Any

from jaxrl_reason.base import Model
from jaxrl_reason.models.adapters import frozen as frozen_lib
from jaxrl_reason.models.adapters import lora as lora_lib
from jaxrl_reason.models.adapters import steering as steering_lib


def _specs(base: Any, lora, steering, frozen_dtype, trainable):
  """Returns the specs of the model with its adapters and frozen dtypes."""
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
      f'frozen_dtype={frozen_dtype!r} has no effect: trainable={trainable!r} '
      'matches every weight. Set frozen_dtype=float32, or a narrower trainable'
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
  """Returns a model with adapters, steering vectors and compact frozen weights.

  If its parameters have neither adapters nor vectors, it computes the base
  model.

  Args:
    frozen_dtype: storage of the weights that are not trained: `frozen.DTYPES`.
    trainable: regex over the paths of the trained weights.

  Raises:
    ValueError: lora.targets match no projection, or no weight is frozen.
  """
  if not lora and not steering and frozen_dtype == 'float32':
    return base
  scale, roles = (lora.scale, lora.roles) if lora else (0.0, 1)

  def beside(params):
    if lora:
      lora_lib.require_one(params, lora)
    return lora_lib.beside(params, scale, roles)

  def combined(params):
    # With exact sums decoding multiplies as training does.
    if base.sums is not None or lora_lib.ROLE in params:
      return beside(params)
    if lora:
      lora_lib.require_one(params, lora)
    return lora_lib.merged(params, scale)

  def bind(f):
    def bound(params, *args):
      return f(beside(steering_lib.on(frozen_lib.wrapped(params))), *args)

    return f and bound

  def decode_params(params):
    params = frozen_lib.wrapped(params)
    weights = combined(steering_lib.off(params))
    if not steering:
      return base.decode_params(weights)
    return base.decode_params(weights, params[steering_lib.KEY])

  def adapters_off(params):
    return lora_lib.base_of(steering_lib.off(params))

  return dataclasses.replace(
    base,
    specs=_specs(base.specs, lora, steering, frozen_dtype, trainable),
    hidden=bind(base.hidden),
    prefill=bind(base.prefill),
    hidden_routed=bind(base.hidden_routed),
    hidden_shared=bind(base.hidden_shared),
    hidden_after=bind(base.hidden_after),
    decode_params=decode_params,
    adapters_off=adapters_off if lora or steering else None,
  )


def of_role(model: Model, role: int, roles: int) -> Model:
  """Returns a model that computes all rows with the adapters of one role."""

  def bind(f):
    def bound(params, *args):
      return f(lora_lib.of_role(params, role, roles), *args)

    return f and bound

  names = 'hidden prefill hidden_routed hidden_shared hidden_after'.split()
  names.append('decode_params')
  bound = {name: bind(getattr(model, name)) for name in names}
  return dataclasses.replace(model, **bound)
