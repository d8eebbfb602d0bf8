"""Flax modules as policies, and our transformer as a Flax module.

  model = from_apply(apply, params)       any (params, tokens) -> logits
  model, params = from_linen(module, variables['params'])
  model, params = from_nnx(module)        a `base.Model`, for sampler and steps
  LinenTransformer(config), NnxTransformer(config, key=...)

A bridged model is a black box: a causal language model from token ids [N,T] to
logits [N,T,V]. It needs no mask for padding: rows are moved to the left first,
so that what pads them comes last, where a causal model cannot see it. It has no
cache either: every decode step runs the whole row again, so sampling C tokens
costs C forward passes. Weights are replicated over a mesh.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx, struct

from jaxrl_reason import trees
from jaxrl_reason.base import Model
from jaxrl_reason.models import blocks, spec, transformer


@struct.dataclass
class Written:
  """Prompts and completions so far, in place of a cache."""

  tokens: jax.Array  # i32 [N,P+C]
  valid: jax.Array  # bool [N,P+C]
  prompt_len: int = struct.field(pytree_node=False)


def from_apply(apply: Callable, params: Any) -> Model:
  """Makes a policy from `apply(params, tokens i32 [N,T]) -> logits [N,T,V]`.

  Args:
    params: the weights, or their shapes.
  """

  def logits(params, tokens, valid):
    """[N,T,V], float32; at padding they mean nothing."""
    ahead = jnp.argmax(valid, axis=1)  # tokens of padding on the left
    out = apply(params, _rolled(jnp.where(valid, tokens, 0), -ahead))
    return _rolled(out, ahead).astype(jnp.float32)

  def prefill(params, tokens, valid, n_samples, max_new, columns=None):
    del columns  # there is no cache to grow
    room = ((0, 0), (0, max_new))

    def repeat(x):
      return jnp.repeat(jnp.pad(x, room), n_samples, axis=0)

    last = logits(params, tokens, valid)[:, -1]
    return last, Written(repeat(tokens), repeat(valid), tokens.shape[1])

  def decode(params, token, rows, t, step=None):
    del step
    at = jnp.broadcast_to(rows.prompt_len + t, token.shape)
    here = jnp.arange(rows.tokens.shape[1]) - at[:, None]
    # What an earlier row of the slot left behind lies ahead.
    rows = rows.replace(
      tokens=jnp.where(here == 0, token[:, None], rows.tokens),
      valid=(here <= 0) & (rows.valid | (here >= -jnp.reshape(t, (-1, 1)))),
    )
    out = logits(params, rows.tokens, rows.valid)
    return out[jnp.arange(len(at)), at], rows

  def flops_per_token(context):
    """Two for each weight; attention is not known."""
    del context
    return 2.0 * trees.n_params(params)

  return Model(
    specs=jax.tree.map(_replicated, params),
    hidden=logits,  # what is handed on is logits already
    unembed=_second,
    decode_params=_first,
    prefill=prefill,
    decode=decode,
    grow=_first,
    flops_per_token=flops_per_token,
  )


def _rolled(x: jax.Array, n: jax.Array) -> jax.Array:
  """Rows [N,T,...], each turned to the right by its n [N]."""
  return jax.vmap(functools.partial(jnp.roll, axis=0))(x, n)


def _first(x, *unused):
  del unused
  return x


def _second(unused, x):
  del unused
  return x


def _replicated(x) -> spec.Spec:
  return spec.Spec(x.shape, (None,) * len(x.shape), 'zeros')


def from_linen(module: linen.Module, params: Any) -> tuple[Model, Any]:
  """Makes a policy of a Linen module called as `module.apply({'params':
  params}, tokens)`.
  """

  def apply(params, tokens):
    return module.apply({'params': params}, tokens)

  return from_apply(apply, params), params


def from_nnx(module: nnx.Module) -> tuple[Model, Any]:
  """Makes a policy of an NNX module called as `module(tokens)`; its
  `nnx.Param`s are trained, its other state stays as it is: every call begins
  with it, so a module with dropout draws the same mask each time. Call
  `module.eval()` first.
  """
  graph, state, rest = nnx.split(module, nnx.Param, ...)

  def apply(params, tokens):
    # A copy: a call may change variables (counts of `Rngs`), which outlive it.
    return nnx.merge(graph, params, rest, copy=True)(tokens)

  return from_apply(apply, state), state


class LinenTransformer(linen.Module):
  """Our transformer: (tokens [N,T], valid bool [N,T]) -> logits [N,T,V]."""

  config: transformer.Config

  @linen.compact
  def __call__(self, tokens, valid=None):
    specs = transformer.specs(self.config)
    weights = self.param('weights', functools.partial(spec.init, specs))
    return _logits(weights, self.config, tokens, valid)


class NnxTransformer(nnx.Module):
  """The same for NNX; `weights` may be given."""

  def __init__(self, config: transformer.Config, *, key=None, weights=None):
    if weights is None:
      weights = spec.init(transformer.specs(config), key)
    self.config = config
    self.weights = nnx.Param(weights)

  def __call__(self, tokens, valid=None):
    return _logits(self.weights.get_value(), self.config, tokens, valid)


def _logits(weights, config, tokens, valid):
  valid = jnp.ones_like(tokens, bool) if valid is None else valid
  hidden = blocks.hidden(config, weights, tokens, valid)
  return blocks.unembed(config, weights, hidden)
