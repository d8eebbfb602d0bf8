"""A decoder-only transformer as a pytree of weights and pure functions.

tokens [N,T] -> embed -> L x (x + attention(norm x); x + mlp(norm x)) -> norm
-> hidden [N,T,D]; `unembed` computes logits. This module binds the functions to
a config. The layers are in `blocks`, generation in `decoding`.
"""

import functools

from jaxrl_reason.base import Model
from jaxrl_reason.models import blocks, decoding, decoding_weights, shared
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.flops import flops_per_token
from jaxrl_reason.models.weights import specs


def build(c: Config) -> Model:
  """Builds a Model: the policy's functions with the config bound."""
  tree = specs(c)
  routed = functools.partial(blocks.hidden_routed, c)
  return Model(
    specs=tree,
    hidden=functools.partial(blocks.hidden, c),
    unembed=functools.partial(blocks.unembed, c),
    decode_params=functools.partial(decoding_weights.decode_params, c, tree),
    prefill=functools.partial(decoding.prefill, c),
    decode=functools.partial(decoding.decode, c),
    flops_per_token=functools.partial(flops_per_token, c),
    hidden_routed=routed if c.experts else None,
    hidden_shared=functools.partial(shared.hidden, c),
    hidden_after=functools.partial(blocks.hidden_after, c),
    decode_after=functools.partial(decoding.decode_after, c),
    grow=cache_lib.grow,
    renew=cache_lib.renew,
    gapped=cache_lib.gapped,
    extend=functools.partial(decoding.extend, c),
    # A delta-rule state cannot be rewound to an earlier token.
    fork=None if c.delta_layers else cache_lib.fork,
    sampled_routes=decoding.sampled_routes if c.experts else None,
    sums=c.ops.SUMS,
  )
