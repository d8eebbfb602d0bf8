"""One steering vector per layer, trained alone.

  x <- x + v_l     after layer l, at every token

(https://arxiv.org/abs/2505.18706: on the residual stream, with reinforcement
learning.) Parameters are the model's own and 'steering' [L,D], which begins as
zeros: the model is then its base exactly, and so is the reference, which is the
model without the vectors. They join the layers' own weights as 'steer', so that
training scans over them and decoding reads them as it does those.

No published family has a bias on the residual stream (one on the mlp's output
would do, which none of them is trained with), so they are not exported.
"""

import dataclasses

from jaxrl_reason.base import Model
from jaxrl_reason.models import spec
from jaxrl_reason.models.config import Config

KEY = 'steering'


def _off(params: dict) -> dict:
  return {k: v for k, v in params.items() if k != KEY}


def _on(params: dict) -> dict:
  if KEY not in params:
    return params
  steered = params['layers'] | {'steer': params[KEY]}
  return _off(params) | {'layers': steered}


def attach(base: Model, c: Config) -> Model:
  """The model with vectors; without 'steering' in its parameters, the base."""
  bind = lambda f: f and (lambda params, *args: f(_on(params), *args))

  def decode_params(params):
    out = base.decode_params(_off(params))
    if KEY not in params:
      return out
    pairs = zip(out['layers'], params[KEY], strict=True)
    return out | {'layers': [p | {'steer': v} for p, v in pairs]}

  off = base.adapters_off or (lambda params: params)
  vectors = spec.Spec((c.layers, c.width), ('layers', None), 'zeros')
  return dataclasses.replace(
    base,
    specs=base.specs | {KEY: vectors},
    hidden=bind(base.hidden),
    prefill=bind(base.prefill),
    hidden_routed=bind(base.hidden_routed),
    decode_params=decode_params,
    adapters_off=lambda params: off(_off(params)),
  )
