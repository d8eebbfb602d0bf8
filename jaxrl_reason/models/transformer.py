"""A decoder-only transformer as a pytree of weights and pure functions.

tokens [N,T] -> embed -> L x (x + attention(norm x); x + mlp(norm x)) -> norm
-> hidden [N,T,D]; `unembed` gives logits. Here is what training calls; the
layers are in `blocks`, generation in `decoding`.
"""

from typing import Any

import jax.numpy as jnp

from jaxrl_reason.base import Model
from jaxrl_reason.models import blocks, decoding
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.weights import flops_per_token, specs


def build(c: Config) -> Model:
  """The policy's functions, with the config bound."""
  tree = specs(c)

  def bind(f):
    def bound(params, *args):
      return f(params, c, *args)

    return bound

  return Model(
    specs=tree,
    hidden=bind(hidden),
    unembed=bind(blocks.unembed),
    decode_params=lambda p: decoding.decode_params(p, c, tree),
    prefill=bind(decoding.prefill),
    decode=bind(decoding.decode),
    flops_per_token=lambda context: flops_per_token(c, context),
    hidden_routed=bind(hidden_routed) if c.experts else None,
    grow=cache_lib.grow,
    sampled_routes=decoding.sampled_routes if c.experts else None,
  )


def hidden(params: Any, c: Config, tokens, valid):
  """Final hidden states [N,T,D] of tokens [N,T], valid bool [N,T].

  Positions count the valid tokens of a row, so left, right or no padding give
  the same values at the real tokens. Rows that hold several sequences have
  segment ids for `valid` (`attention.describe`): each sequence is then as if
  alone.
  """
  return blocks.forward(params, c, tokens, valid, tokens.shape[1], False)[0]


def hidden_routed(params: Any, c: Config, tokens, valid, routes=None):
  """`hidden` of a mixture of experts, with what its routers did.

  Args:
    routes: int [N,T,L,k], the experts to use (`sampled_routes`), where they
      are not `moe.UNKNOWN`; None: the router's own choice.

  Returns:
    (hidden [N,T,D], {'routes': int [N,T,L,k], 'load_balance': f32 [], the
    mean over layers}).
  """
  if routes is not None:
    routes = jnp.moveaxis(routes, 2, 0)
  h, (_, used) = blocks.forward(
    params, c, tokens, valid, tokens.shape[1], False, routes
  )
  routes = jnp.moveaxis(used['routes'], 0, 2)
  return h, {'routes': routes, 'load_balance': used['load_balance'].mean()}
