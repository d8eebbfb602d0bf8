"""What the backward pass finds of the forward pass, chosen by a budget.

  none       everything, nothing is computed twice
  dots       what products with weights and attention gave; the rest is computed
             again
  attention  what attention gave; the rest is computed again
  full       what goes from layer to layer; every layer is computed again

Of attention, splash and blocked keep the output and log-sum-exps, with which
their backward passes begin; others keep nothing, and their scores are computed
again.

Bytes are counted by tracing the model's own vjp, which compiles nothing: what
two rows keep less what one keeps, so that weights drop out.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxrl_reason.models import spec, transformer
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.parts import layers


def kept_bytes(c: Config, length: int) -> int:
  """Counts the bytes of one row of `length` tokens between forward and backward
  pass, on one device; tensor parallelism has less.
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
  """Returns the config with the policy that computes least again within the
  budget.

  Args:
    rows: of `length` tokens each, of a micro-batch on one device.
    budget: bytes of activations; where not even `full` keeps to it, that.
  """
  *policies, least = 'none', *layers.REMAT
  for policy in policies:
    with_it = dataclasses.replace(c, remat=policy)
    if rows * kept_bytes(with_it, length) <= budget:
      return with_it
  return dataclasses.replace(c, remat=least)
