"""One steering vector per layer, trained alone.

  x <- x + v_l     after layer l, at every token

(https://arxiv.org/abs/2505.18706: on the residual stream, with reinforcement
learning.) The parameters are the model's plus 'steering' [L,D], initially zero,
so that the model begins as its base. The reference is the model without the
vectors. They join the layers' weights as 'steer', so training scans over them
and decoding reads them like those weights.

The residual stream after a layer is the sum of the stream and its mlp's output,
so a bias of the mlp's last projection has the same effect (`folded`). Vectors
are exported that way, as a Llama, whose config.json has a key for such biases.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason.models import spec
from jaxrl_reason.models.config import LAYERS, STACKS, Config

KEY = 'steering'


def spec_of(base: dict) -> spec.Spec:
  """Returns the spec of the vectors for a model's spec tree.

  Raises:
    ValueError: the model has layers of several kinds, in separate stacks, or
      several residual streams.
  """
  if {*STACKS} & {*base} != {LAYERS} or 'streams' in base[LAYERS]:
    raise ValueError(
      'steering does not support models with layers of several kinds or with '
      'several residual streams: train lora instead'
    )
  (width,) = base['final_norm'].shape
  weight = jax.tree.leaves(base['layers'], is_leaf=spec.is_spec)[0]
  return spec.Spec((weight.shape[0], width), ('layers', None), 'zeros')


def off(params: dict) -> dict:
  """Returns the parameters without the vectors."""
  return {k: v for k, v in params.items() if k != KEY}


def on(params: dict) -> dict:
  """Returns the parameters with each vector added to its layer's weights."""
  if KEY not in params:
    return params
  steered = params['layers'] | {'steer': params[KEY]}
  return off(params) | {'layers': steered}


def folded(params: dict, c: Config) -> tuple[dict, Config]:
  """Returns the same model with each vector converted to a bias of its layer's
  mlp.

  Biases are added as families have them: on all projections of the mlp, and on
  the attention's output if its inputs have them. All others are zeros.

  Raises:
    ValueError: a norm follows the mlp, or the mlp has experts or no gates.
  """
  if c.norm_place != 'pre' or c.experts or not c.gated:
    raise ValueError(
      'steering vectors cannot become biases: norms or experts follow the mlp, '
      f'or it has no gates (model.norm_place={c.norm_place!r}, '
      f'model.experts={c.experts}, model.activation={c.activation!r})'
    )
  n, d = params[KEY].shape
  attn, mlp = (dict(params['layers'][k]) for k in ('attn', 'mlp'))

  def zeros(*shape):
    return jnp.zeros((n, *shape), params[KEY].dtype)

  if c.bias:
    attn.setdefault('o_bias', zeros(d))
  for name, width in ('gate', c.mlp), ('up', c.mlp), ('down', d):
    mlp.setdefault(name + '_bias', zeros(width))
  of_output = (c.mlp_scales or (1.0, 1.0))[1]
  mlp['down_bias'] += params[KEY] / (c.residual_scale * of_output)
  both = params['layers'] | {'attn': attn, 'mlp': mlp}
  c = dataclasses.replace(c, mlp_bias=True, o_bias=c.o_bias or c.bias)
  return off(params) | {'layers': both}, c
