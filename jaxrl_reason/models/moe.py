"""Mixture of experts: each token through its k best of E mlps, none dropped.

  p = softmax(x R),  y = sum over the k largest p_e of  p_e * mlp_e(x)

(https://arxiv.org/abs/1701.06538; published weights: Qwen3-MoE,
https://arxiv.org/abs/2505.09388.) Tokens are sorted by expert, so that each
projection is one grouped product of runs of rows (`jax.lax.ragged_dot`), with
no capacity and no padding. Given `routes` are used instead of the k best, with
the weights the router gives them now: the trainer then differentiates the very
experts that sampled (router replay, https://arxiv.org/abs/2510.11370).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason.models import layers


def route(x, router, k: int, *, normalise: bool, routes=None):
  """Which experts a token uses, and how much of each.

  Args:
    x: [M,D]; router: [D,E].
    routes: int [M,k] to replay, or None.

  Returns:
    (experts int [M,k], weights f32 [M,k], probabilities f32 [M,E]).
  """
  # In float32 from the product on: near-ties between experts are decided
  # here, and a rounded score sends a token elsewhere.
  scores = jnp.dot(
    x, router.astype(x.dtype), preferred_element_type=jnp.float32
  )
  probs = jax.nn.softmax(scores, axis=-1)
  if routes is None:
    routes = jax.lax.top_k(probs, k)[1]
  weights = jnp.take_along_axis(probs, routes, axis=-1)
  if normalise:
    weights = weights / weights.sum(axis=-1, keepdims=True)
  return routes, weights, probs


def grouped_mlp(x, p: dict, routes, activation: Callable) -> jax.Array:
  """mlp_e(x) of every token's experts: [M,D], routes [M,k] -> [M,k,D]."""
  m, k = routes.shape
  flat = routes.reshape(-1)  # [M*k], the k uses of a token adjacent
  order = jnp.argsort(flat)  # stable: uses of one expert become one run
  sizes = jnp.bincount(flat, length=p['gate'].shape[0]).astype(jnp.int32)
  dot = lambda rows, w: jax.lax.ragged_dot(rows, w.astype(rows.dtype), sizes)
  rows = x[order // k]
  act = layers.gate(dot(rows, p['gate']), dot(rows, p['up']), activation)
  back = jnp.argsort(order)
  return dot(act, p['down'])[back].reshape(m, k, -1)


def mlp(x, p: dict, c, activation: Callable, routes=None):
  """The block's mlp of x [...,D].

  Returns:
    (y [...,D], {'routes': int [...,k], 'probs': f32 [...,E]}).
  """
  lead = x.shape[:-1]
  flat = x.reshape(-1, x.shape[-1])
  if routes is not None:
    routes = routes.reshape(-1, c.experts_per_token)
  routes, weights, probs = route(
    flat,
    p['router'],
    c.experts_per_token,
    normalise=c.expert_norm,
    routes=routes,
  )
  y = grouped_mlp(flat, p, routes, activation)
  # Weighted and summed in float32, rounded once.
  y = jnp.einsum('mkd,mk->md', y, weights).astype(x.dtype)
  used = {
    'routes': routes.reshape(*lead, -1),
    'probs': probs.reshape(*lead, -1),
  }
  return y.reshape(x.shape), used


def load_balance(routes, probs, valid) -> jax.Array:
  """E * sum over e of (share of uses of e) * (mean probability of e): k when
  balanced (https://arxiv.org/abs/2101.03961, equation 4).

  Differs from `transformers` in that each layer has its own sum and the mean
  is taken over layers; there the layers' shares are pooled first, which lets
  opposite imbalances cancel.

  Args:
    routes: int [L,N,T,k]; probs: f32 [L,N,T,E]; valid: bool [N,T].
  """
  n = jnp.maximum(valid.sum(), 1)
  # [L,E]: uses of each expert per valid token.
  uses = jax.nn.one_hot(routes, probs.shape[-1]).sum(axis=-2)
  share = jnp.einsum('lnte,nt->le', uses, valid) / n
  mean = jnp.einsum('lnte,nt->le', probs, valid) / n
  return probs.shape[-1] * jnp.mean(jnp.sum(share * mean, axis=-1))
