"""Rematerialization: choice of the activations that a layer keeps.

  none       all activations, nothing is recomputed
  dots       outputs of products with weights and of attention
  attention  outputs of attention
  full       only the residual stream between layers

All others are recomputed in the backward pass. The attention kernels splash and
blocked keep the output and log-sum-exps that their backward passes need; other
kernels keep nothing and recompute their scores.

Bytes are counted by tracing the model's own vjp, without compilation: bytes
kept for two rows minus those for one, so that weights cancel.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxrl_reason.models import spec, transformer
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.parts import layers


def kept_bytes(c: Config, length: int) -> int:
  """Returns the bytes of activations kept for one row of `length` tokens on one
  device; tensor parallelism keeps less.
  """
  model = transformer.build(c)

  def bytes_of(rows: int) -> int:
    shape = jax.ShapeDtypeStruct((rows, length), jnp.int32)

    def pull(params, tokens):
      def hidden(params):
        return model.hidden(params, tokens, tokens > 0)

      return jax.vjp(hidden, params)[1]

    kept = jax.eval_shape(pull, spec.abstract(model.specs), shape)
    arrays = [x for x in jax.tree.leaves(kept) if hasattr(x, 'dtype')]
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays)

  return bytes_of(2) - bytes_of(1)


def choose(c: Config, rows: int, length: int, budget: float) -> Config:
  """Returns the config with the least recomputation that fits the budget.

  Args:
    rows: of `length` tokens each, of a micro-batch on one device.
    budget: bytes of activations. If no policy fits, the result is `full`.
  """
  *policies, least = 'none', *layers.REMAT
  for policy in policies:
    with_it = dataclasses.replace(c, remat=policy)
    if rows * kept_bytes(with_it, length) <= budget:
      return with_it
  return dataclasses.replace(c, remat=least)
