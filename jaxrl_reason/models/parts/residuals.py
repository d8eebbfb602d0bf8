"""Residual streams of a layer beside attention and mlp: inputs of its own, a
low-rank residual, and several streams in place of one.

With several streams x [...,S,D] a layer computes on the first stream alone.
Before the layer every stream is predicted from all streams, and after it every
stream is corrected by the change of the first one. The coefficients depend on
the token.

Sources: AltUp, https://arxiv.org/abs/2301.13310; LAuReL,
https://arxiv.org/abs/2411.07501; Gemma 3n and 4,
https://ai.google.dev/gemma/docs/core/model_card_4.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason.models.parts import layers


def layer_inputs(
  params: Any, c: Any, tokens: jax.Array, x: jax.Array
) -> jax.Array | None:
  """Computes the inputs [...,L,E] of each layer, from a table of their own and
  from the embeddings x [...,D]; None if the model has none.
  """
  if not c.layer_inputs:
    return None
  y = c.ops.times(c.ops.dense(x, params['inputs']), c.width**-0.5)
  y = c.ops.rms_norm(y, params['inputs_norm'], c.norm_eps)
  if c.layer_inputs_vocab:
    tokens = jnp.where(tokens < c.layer_inputs_vocab, tokens, 0)
  own = c.ops.to(params['inputs_embed'][tokens], c.dtype).reshape(y.shape)
  scale = jnp.asarray(c.layer_inputs**0.5, own.dtype)
  return c.ops.times(c.ops.added(y, c.ops.times(own, scale)), 2**-0.5)


def with_inputs(x: jax.Array, p: dict, c: Any, inputs: jax.Array) -> jax.Array:
  """Adds the layer's inputs [...,E], gated by x [...,D], to x. Of streams x
  [...,S,D], the first one computes the gates and the others are changed.
  """
  own, read = p['inputs'], x
  if c.streams:
    read = c.ops.times(x[..., 0, :], p['streams']['active_scale'])
  y = c.ops.gate(c.ops.dense(read, own['gate']), inputs, c.activate)
  y = layers.norm(c.ops.dense(y, own['up']), p, 'inputs_post_norm', c)
  if not c.streams:
    return c.ops.added(x, y)
  others = c.ops.added(x[..., 1:, :], y[..., None, :])
  return jnp.concatenate([x[..., :1, :], others], axis=-2)


def low_rank(x: jax.Array, h: jax.Array, p: dict, c: Any) -> jax.Array:
  """Adds h [...,D] and its normalised low-rank product to x [...,D], and
  divides the sum by sqrt(2).
  """
  own = p['low_rank']
  y = c.ops.dense(c.ops.dense(h, own['down']), own['up'])
  y = layers.norm(y, p, 'low_rank_norm', c)
  return c.ops.times(c.ops.added(x, c.ops.added(h, y)), 2**-0.5)


def split(x: jax.Array, params: Any, c: Any) -> jax.Array:
  """Computes the streams [...,S,D] of embeddings x [...,D]: x, and projections
  of x with its magnitude.
  """
  others = [c.ops.dense(x, w) for w in params['streams_in']]
  return jnp.stack([x, *(_as_large(y, x) for y in others)], axis=-2)


def joined(x: jax.Array, params: Any, c: Any) -> jax.Array:
  """Computes the mean [...,D] of the first of the streams x [...,S,D] and
  projections of the others with its magnitude.
  """
  first = x[..., 0, :]
  others = [
    _as_large(c.ops.dense(x[..., i, :], w), first)
    for i, w in enumerate(params['streams_out'], 1)
  ]
  total = sum(y.astype(jnp.float32) for y in (first, *others))
  return (total / c.streams).astype(x.dtype)


def _as_large(y: jax.Array, x: jax.Array) -> jax.Array:
  """Scales y [...,D] to the root mean square of x [...,D]."""
  x, wide = x.astype(jnp.float32), y.astype(jnp.float32)
  # Not below 1e-30, where the gradient of a root is no number.
  want = layers.root(jnp.mean(x * x, -1, keepdims=True), 1e-30)
  size = layers.root(jnp.mean(wide * wide, -1, keepdims=True), 1e-5)
  return (wide * want / size).astype(y.dtype)


def predicted(x: jax.Array, p: dict, c: Any) -> jax.Array:
  """Computes the streams before a layer from all streams x [...,S,D].

  Args:
    p: the layer's weights of streams.
  """
  n = c.streams
  of_stream = _coefficients(x[..., 0, :], p, 'predict', c)
  of_stream = of_stream.reshape(*of_stream.shape[:-1], n, n)
  wide = x.astype(jnp.float32)
  change = layers.einsum32('...ji,...id->...jd', of_stream, wide)
  return (wide + change).astype(x.dtype)


def corrected(x: jax.Array, y: jax.Array, p: dict, c: Any) -> jax.Array:
  """Computes the streams after a layer.

  Args:
    x: [...,S,D], the predicted streams.
    y: [...,D], the layer's output for the first of them.
    p: the layer's weights of streams.
  """
  of_stream = _coefficients(y, p, 'correct', c)[..., None] + 1
  wide = x.astype(jnp.float32)
  change = y.astype(jnp.float32) - wide[..., 0, :]
  return (wide + of_stream * change[..., None, :]).astype(x.dtype)


def _coefficients(x: jax.Array, p: dict, name: str, c: Any) -> jax.Array:
  """Computes the coefficients f32 [...,n] of the named weight [S,n] for tokens
  x [...,D].
  """
  x = c.ops.rms_norm(x, p['router_norm'], c.norm_eps)
  routed = jnp.tanh(c.ops.wide(x, p['router']) / c.width)
  return c.ops.wide(c.ops.to(routed, c.dtype), p[name])
