"""Converts Flax modules to policies, and the transformer to Flax modules.

  model = from_apply(apply, params)       any (params, tokens) -> logits
  model, params = from_linen(module, variables['params'])
  model, params = from_nnx(module)        a `base.Model`, for sampler and steps
  LinenTransformer(config), NnxTransformer(config, key=...)

The module is any causal language model from token ids [N,T] to logits [N,T,V].
It needs no mask for padding: each row is rolled to the left first, so that its
padding comes last, where a causal model cannot attend to it. The model has no
cache: every decode step runs the whole row again, so sampling C tokens costs C
forward passes. Weights are replicated over a mesh.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen, nnx, struct

from jaxrl_reason import trees
from jaxrl_reason.base import Model, Params
from jaxrl_reason.models import blocks, spec, transformer


@struct.dataclass
class TokenCache:
  """The tokens of prompts and completions so far, in place of a cache."""

  tokens: jax.Array  # i32 [N,P+C]
  valid: jax.Array  # bool [N,P+C]
  prompt_len: int = struct.field(pytree_node=False)


def from_apply(
  apply: Callable[[Params, jax.Array], jax.Array], params: Params
) -> Model:
  """Builds a policy from a function that computes logits.

  Args:
    apply: (params, tokens i32 [N,T]) -> logits [N,T,V].
    params: the weights, or their shapes.
  """

  def logits(params, tokens, valid):
    """Computes logits, f32 [N,T,V]; those at padding are arbitrary."""
    padding = jnp.argmax(valid, axis=1)  # tokens on the left of each row
    out = apply(params, _rolled(jnp.where(valid, tokens, 0), -padding))
    return _rolled(out, padding).astype(jnp.float32)

  def prefill(params, tokens, valid, n_samples, max_new, columns=None):
    del columns  # there is no cache to grow

    def repeat(x):
      x = jnp.pad(x, ((0, 0), (0, max_new)))
      return jnp.repeat(x, n_samples, axis=0)

    last = logits(params, tokens, valid)[:, -1]
    return last, TokenCache(repeat(tokens), repeat(valid), tokens.shape[1])

  def decode(params, token, rows, t, step=None):
    del step
    at = jnp.broadcast_to(rows.prompt_len + t, token.shape)
    here = jnp.arange(rows.tokens.shape[1]) - at[:, None]
    # An earlier row of this slot may have left tokens to the right.
    rows = rows.replace(
      tokens=jnp.where(here == 0, token[:, None], rows.tokens),
      valid=(here <= 0) & (rows.valid | (here >= -jnp.reshape(t, (-1, 1)))),
    )
    out = logits(params, rows.tokens, rows.valid)
    return out[jnp.arange(len(at)), at], rows

  def flops_per_token(context):
    """Returns 2 FLOPs for each weight; those of attention are unknown."""
    del context
    return 2.0 * trees.n_params(params)

  return Model(
    specs=jax.tree.map(_replicated, params),
    hidden=logits,  # and `unembed` returns them unchanged
    unembed=_second,
    decode_params=_first,
    prefill=prefill,
    decode=decode,
    grow=_first,
    flops_per_token=flops_per_token,
  )


def _rolled(x: jax.Array, n: jax.Array) -> jax.Array:
  """Rolls each row of [N,T,...] to the right by its n [N]."""
  return jax.vmap(functools.partial(jnp.roll, axis=0))(x, n)


def _first(x, *unused):
  del unused
  return x


def _second(unused, x):
  del unused
  return x


def _replicated(x) -> spec.Spec:
  return spec.Spec(x.shape, (None,) * len(x.shape), 'zeros')


def from_linen(module: linen.Module, params: Params) -> tuple[Model, Params]:
  """Builds a policy from a Linen module.

  The module is called as `module.apply({'params': params}, tokens)`.
  """

  def apply(params, tokens):
    return module.apply({'params': params}, tokens)

  return from_apply(apply, params), params


def from_nnx(module: nnx.Module) -> tuple[Model, Params]:
  """Builds a policy from an NNX module, called as `module(tokens)`.

  The `nnx.Param`s are the weights. The module's other state is constant: every
  call starts from it, so that dropout would draw the same mask each time. Call
  `module.eval()` first.
  """
  graph, params, rest = nnx.split(module, nnx.Param, ...)

  def apply(params, tokens):
    # A call may change variables, such as the counts of `Rngs`: copy them.
    return nnx.merge(graph, params, rest, copy=True)(tokens)

  return from_apply(apply, params), params


class LinenTransformer(linen.Module):
  """The transformer as a Linen module: (tokens [N,T], valid bool [N,T]) ->
  logits [N,T,V].
  """

  config: transformer.Config

  @linen.compact
  def __call__(self, tokens, valid=None):
    specs = transformer.specs(self.config)
    weights = self.param('weights', functools.partial(spec.init, specs))
    return _logits(weights, self.config, tokens, valid)


class NnxTransformer(nnx.Module):
  """The transformer as an NNX module, with random or with given weights."""

  def __init__(self, config: transformer.Config, *, key=None, weights=None):
    if weights is None:
      weights = spec.init(transformer.specs(config), key)
    self.config = config
    self.weights = nnx.Param(weights)

  def __call__(self, tokens, valid=None):
    return _logits(self.weights.get_value(), self.config, tokens, valid)


def _logits(weights, c: transformer.Config, tokens, valid):
  valid = jnp.ones_like(tokens, bool) if valid is None else valid
  hidden = blocks.hidden(c, weights, tokens, valid)
  return blocks.unembed(c, weights, hidden)
