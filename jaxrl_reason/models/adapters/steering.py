"""One steering vector per layer, trained alone.

  x <- x + v_l     after layer l, at every token

(https://arxiv.org/abs/2505.18706: on the residual stream, with reinforcement
learning.) Parameters are the model's own and 'steering' [L,D], which begins as
zeros: the model is then its base exactly, and so is the reference, which is the
model without the vectors. They join the layers' own weights as 'steer', so that
training scans over them and decoding reads them as it does those.

What follows a layer is the sum of the stream and its mlp's output, so a bias of
the mlp's last projection is the vector (`folded`): that is how they are
exported, as a Llama, whose config.json has a key for such biases.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason.models import spec
from jaxrl_reason.models.config import DELTA, DENSE, Config

KEY = 'steering'


def spec_of(base: dict) -> spec.Spec:
  """Returns the spec of the vectors of a model's spec tree.

  Raises:
    ValueError: its layers are of several kinds, in stacks of their own.
  """
  if DENSE in base or DELTA in base:
    raise ValueError(
      'steering: this model has layers of several kinds, for which vectors are '
      'not there; train lora instead'
    )
  (width,) = base['final_norm'].shape
  weight = jax.tree.leaves(base['layers'], is_leaf=spec.is_spec)[0]
  return spec.Spec((weight.shape[0], width), ('layers', None), 'zeros')


def off(params: dict) -> dict:
  """Returns the parameters without the vectors."""
  return {k: v for k, v in params.items() if k != KEY}


def on(params: dict) -> dict:
  """Returns the parameters with each vector among its layer's weights."""
  if KEY not in params:
    return params
  steered = params['layers'] | {'steer': params[KEY]}
  return off(params) | {'layers': steered}


def folded(params: dict, c: Config) -> tuple[dict, Config]:
  """Returns the same model without vectors, each being a bias of its layer's
  mlp.

  Biases come as families have them: on all projections of the mlp, and on the
  attention's output where its inputs have them; the others are zeros.

  Raises:
    ValueError: nothing is added to what the mlp gives, or experts give it.
  """
  if c.norm_place != 'pre' or c.experts:
    raise ValueError('norms or experts follow on what a bias would be added to')
  n, d = params[KEY].shape
  attn, mlp = (dict(params['layers'][k]) for k in ('attn', 'mlp'))

  def zeros(*shape):
    return jnp.zeros((n, *shape), params[KEY].dtype)

  if c.bias:
    attn.setdefault('o_bias', zeros(d))
  for name, width in ('gate', c.mlp), ('up', c.mlp), ('down', d):
    mlp.setdefault(name + '_bias', zeros(width))
  mlp['down_bias'] += params[KEY] / c.residual_scale
  both = params['layers'] | {'attn': attn, 'mlp': mlp}
  c = dataclasses.replace(c, mlp_bias=True, o_bias=c.o_bias or c.bias)
  return off(params) | {'layers': both}, c
