"""Mixture of experts: each token through its k best of E mlps, none dropped.

  p = softmax(x R),  y = sum over the k largest p_e of  p_e * mlp_e(x)

(https://arxiv.org/abs/1701.06538; published weights: Qwen3-MoE,
https://arxiv.org/abs/2505.09388.) Uses of an expert are brought together, so
that each projection is one grouped product of runs of rows
(`jax.lax.ragged_dot`), with no capacity and no padding. On a mesh every device
orders its own tokens; of weights and tokens, what is less travels
(`_exchanged`). Given `routes` are used instead of the k best, with the weights
the router gives them now: the trainer then differentiates the very experts that
sampled (rollout routing replay, https://arxiv.org/abs/2510.11370).
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding
from jaxrl_reason.models.parts import layers

# In place of an expert's number: the router chooses (a token that nobody
# sampled, or whose routes were not noted).
UNKNOWN = -1


def route_dtype(n_experts: int) -> jnp.dtype:
  """Returns the smallest integers for experts and UNKNOWN; routes are kept for
  every token, layer and use: 384 bytes a token in Qwen3-30B-A3B.
  """
  return jnp.dtype(jnp.int8 if n_experts <= 128 else jnp.int16)


def route(x, router, k: int, *, normalise: bool, routes=None):
  """Chooses the experts that a token uses, and how much of each.

  Args:
    x: [M,D]; router: [D,E].
    routes: int [M,k] to replay, UNKNOWN where there are none; or None.

  Returns:
    (experts i32 [M,k], weights f32 [M,k], probabilities f32 [M,E]).
  """
  # In float32 from the product on: near-ties between experts are decided
  # here, and a rounded score sends a token elsewhere.
  scores = jnp.dot(
    x, router.astype(x.dtype), preferred_element_type=jnp.float32
  )
  probs = jax.nn.softmax(scores, axis=-1)
  best = jax.lax.top_k(probs, k)[1]
  if routes is None:
    routes = best
  else:
    routes = jnp.where(routes == UNKNOWN, best, routes.astype(best.dtype))
  weights = jnp.take_along_axis(probs, routes, axis=-1)
  if normalise:
    weights = weights / weights.sum(axis=-1, keepdims=True)
  return routes, weights, probs


def _runs(uses: jax.Array, n: int):
  """Which use comes where, so that those of one expert are one run.

  By counting: a sort takes the TPU compiler seconds, in every layer of a decode
  step. Integers [U,n+1] exist for a moment.

  Args:
    uses: int [U], experts; those of number n come last.

  Returns:
    (uses in order [U], the place of each use [U], lengths of runs [n]).
  """
  mine = jax.nn.one_hot(uses, n + 1, dtype=jnp.int32)
  sizes = mine.sum(axis=0)
  before = jnp.cumsum(mine, axis=0) - mine + jnp.cumsum(sizes) - sizes
  place = jnp.sum(mine * before, axis=1)
  order = (
    jnp.zeros_like(place)
    .at[place]
    .set(jnp.arange(len(uses)), unique_indices=True)
  )
  return order, place, sizes[:n]


def grouped_mlp(
  x, p: dict, routes, activation: Callable, n_experts: int
) -> jax.Array:
  """Computes mlp_e(x) of every token's experts: [M,D], routes [M,k] ->
  [M,k,D].
  """
  m, k = routes.shape
  # [M*k], the k uses of a token adjacent
  order, back, sizes = _runs(routes.reshape(-1), n_experts)

  def dot(rows, w):
    return layers.grouped(rows, w, sizes)

  rows = x[order // k]
  act = layers.gate(dot(rows, p['gate']), dot(rows, p['up']), activation)
  return dot(act, p['down'])[back].reshape(m, k, -1)


def _weighted(x, p: dict, routes, weights, activation, n: int) -> jax.Array:
  """sum over k of weights * mlp_e(x), f32 [M,D]; a use of expert n is 0."""
  y = grouped_mlp(x, p, routes, activation, n)
  y = jnp.where((routes < n)[..., None], y, 0)
  # Weighted and summed in float32.
  return jnp.einsum('mkd,mk->md', y, weights)


def _exchanged(rows: tuple, p: dict, axis: str | None, *, activation, n: int):
  """`_weighted` of this device's rows, of n experts split over a mesh axis.

  An update has more uses of experts than the weights have rows: it gathers the
  weights. A decode step has few: all devices get all tokens, each runs its own
  experts, and the sums go back.
  """
  if axis is None:
    return _weighted(rows[0], p, *rows[1:], activation, n)

  gather = functools.partial(jax.lax.all_gather, axis_name=axis, tiled=True)
  local, width, _ = jax.tree.leaves(p['down'])[0].shape
  if rows[1].size * (n // local) > n * width:
    return _weighted(rows[0], gather(p), *rows[1:], activation, n)
  x, routes, weights = gather(rows)
  mine = routes - jax.lax.axis_index(axis) * local
  mine = jnp.where((mine >= 0) & (mine < local), mine, local)
  y = _weighted(x, p, mine, weights, activation, local)
  return jax.lax.psum_scatter(y, axis, tiled=True)


def mlp(x, p: dict, c, activation: Callable, routes=None):
  """Computes the block's mlp of x [...,D].

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
  # Cast before they travel.
  experts = {k: layers.cast(p[k], x.dtype) for k in ('gate', 'up', 'down')}
  run = functools.partial(_exchanged, activation=activation, n=c.experts)
  y = sharding.by_expert(run, (flat, routes, weights), experts)
  y = y.astype(x.dtype)
  used = {
    'routes': routes.reshape(*lead, -1),
    'probs': probs.reshape(*lead, -1),
  }
  return y.reshape(x.shape), used


def load_balance(routes, probs, valid) -> jax.Array:
  """Computes E * sum over e of (share of uses of e) * (mean probability of e)
  of one layer: k when balanced (https://arxiv.org/abs/2101.03961, equation 4).

  Differs from `transformers` in that each layer has a sum of its own, of which
  the model takes the mean; there the layers' shares are pooled first, which
  lets opposite imbalances cancel.

  Args:
    routes: int [N,T,k]; probs: f32 [N,T,E]; valid: bool [N,T], or how often a
      token counts.
  """
  n = jnp.maximum(valid.sum(), 1)
  # [E]: uses of each expert per valid token.
  uses = jax.nn.one_hot(routes, probs.shape[-1]).sum(axis=-2)
  share = jnp.einsum('nte,nt->e', uses, valid) / n
  mean = jnp.einsum('nte,nt->e', probs, valid) / n
  return probs.shape[-1] * jnp.sum(share * mean)
