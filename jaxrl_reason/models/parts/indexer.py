"""Sparse attention: each query attends to the keys that an indexer chooses.

  score[t, s] = sum over heads j of w_j[t] relu(q_j[t] . k[s])

The `index_topk` keys of the highest scores are chosen, among those that the
query may attend to; the earlier one of equal scores first. If there are no
more, all are chosen, and attention is as without an indexer. The choice has no
gradient: the weights of an indexer are trained by a loss of their own (DeepSeek
V3.2, https://arxiv.org/abs/2512.02556), or stay as they are.

The cache stores k, one row per token. Scores are sums of the same products in
every program, so that sampler and trainer choose the same keys, unless two
scores are closer than rounding errors. A layer without an indexer attends to
the keys that the nearest earlier indexer chose (https://arxiv.org/abs/2603.12201).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason.models.parts import layers
from jaxrl_reason.models.parts.stored import Stored

EPS = 1e-6  # of the norm of keys, independent of the model's


@struct.dataclass
class Index:
  """Inputs of the choice for queries, and for the keys of whole rows."""

  queries: jax.Array  # [...,J,I]
  weights: jax.Array  # f32 [...,J], of the heads
  topk: int = struct.field(pytree_node=False)
  keys: jax.Array | None = None  # [N,S,1,I]; None: those of a cache


def check(c: Any) -> None:
  """Refuses a Config whose indexers no model can have.

  Raises:
    ValueError: names the field and what is allowed.
  """
  which = c.indexless_layers
  if list(which) != sorted({*which} & {*range(1, c.layers)}):
    raise ValueError(
      f'model.indexless_layers={which} must be rising indices from 1 to '
      f'model.layers - 1={c.layers - 1}: the first layer needs an indexer'
    )
  if c.index_topk < 1 or c.index_heads < 1 or c.index_dim < c.rope_dim:
    raise ValueError(
      f'model.index_topk={c.index_topk} and model.index_heads={c.index_heads} '
      f'must be at least 1, and model.index_dim={c.index_dim} at least '
      f'model.rope_dim={c.rope_dim}'
    )
  if not c.q_rank:
    raise ValueError('model.index_topk needs a model.q_rank, now 0')
  if c.cache_dtype not in ('model', c.dtype):
    raise ValueError(
      f'model.cache_dtype={c.cache_dtype!r} rounds the keys of an indexer '
      f'(index_topk={c.index_topk}), which then chooses other keys than in '
      "training: choose 'model'"
    )


def of_tokens(
  x: jax.Array, row: jax.Array, p: dict, c: Any, angles
) -> tuple[Index, jax.Array]:
  """Computes the indexer's queries and weights, and the key [...,1,I] that the
  cache stores, from x [...,D] and the low-rank row [...,R] of queries.
  """
  x, row, p = jax.lax.stop_gradient((x, row, p))

  def turned(y):
    return c.ops.rotate(y, *angles[:2], interleaved=c.index_interleaved)

  key = layers.dense(x, p['k']).astype(jnp.float32)
  key = layers.layer_norm(key, p['k_norm'], EPS) + p['k_norm_bias']
  key = turned(key.astype(x.dtype)[..., None, :])
  weights = x.astype(jnp.float32) @ p['head_weights'].astype(jnp.float32)
  weights = weights * (c.index_heads * c.index_dim) ** -0.5
  return Index(turned(layers.dense(row, p['q'])), weights, c.index_topk), key


def scores(queries: jax.Array, weights: jax.Array, keys: jax.Array):
  """Computes the scores f32 [N,T,S] of queries [N,T,J,I] with weights f32
  [N,T,J], and keys [N,S,I].
  """
  found = jax.nn.relu(layers.einsum32('ntji,nsi->ntjs', queries, keys))
  return jnp.einsum('ntjs,ntj->nts', found, weights)


def best(found: jax.Array, seen: jax.Array, n: int, order=None) -> jax.Array:
  """Returns which keys are chosen, bool [...,S], no more than n for a query.

  Args:
    found: scores f32 [...,S].
    seen: bool [...,S], the keys among which to choose.
    order: int [S], the place of each column among the keys in the order of
      their positions; None: columns are in that order.
  """
  if n >= seen.shape[-1]:
    return seen
  found = jnp.where(seen, found, -jnp.inf)
  least = jax.lax.top_k(found, n)[0][..., -1:]
  above, equal = found > least, found == least
  left = n - above.sum(axis=-1, keepdims=True)
  if order is None:
    place = jnp.cumsum(equal, axis=-1)
  else:
    sorted_ = jnp.cumsum(equal[..., jnp.argsort(order)], axis=-1)
    place = sorted_[..., order]
  return seen & (above | (equal & (place <= left)))


def of_rows(index: Index, seen: jax.Array, first: int = 0) -> jax.Array:
  """Returns the keys that queries of whole rows attend to, bool [N,T,S].

  Args:
    index: of all queries and keys of the rows.
    seen: bool [N,T,S] of T queries, from the first-th on, and S keys.
  """
  t, s = seen.shape[1:]
  if index.topk >= s:
    return seen
  queries = (x[:, first : first + t] for x in (index.queries, index.weights))
  return best(scores(*queries, index.keys[:, :s, 0]), seen, index.topk)


def of_cache(
  index: Index,
  prompt: Stored,
  own: Stored,
  masks: tuple[jax.Array, jax.Array],
  order: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Returns the masks of `cached.attend` with the chosen keys alone.

  Args:
    index: of tokens [S], or [S,O].
    prompt: keys [B,1,P,I]; own: [S,1,R,I], not rounded (`shape_checks`).
    masks: bool [B,1 or I*O,P] and [1 or S,1 or O,R].
    order: int [R], the columns of `own` in the order of positions, see `best`.
  """
  (b, _, p, _), (s, _, r, _) = prompt.values.shape, own.values.shape
  if index.topk >= p + r:
    return masks
  alone = (
    index.queries.reshape(s, -1, *index.queries.shape[-2:]),
    index.weights.reshape(s, -1, index.weights.shape[-1]),
  )
  o = alone[0].shape[1]
  shared = (x.reshape(b, -1, *x.shape[2:]) for x in alone)
  found = [
    scores(*shared, prompt.values[:, 0]).reshape(s, o, p),
    scores(*alone, own.values[:, 0]),
  ]
  seen = [
    jnp.broadcast_to(masks[0], (b, s // b * o, p)).reshape(s, o, p),
    jnp.broadcast_to(masks[1], (s, o, r)),
  ]
  both = (jnp.concatenate(x, axis=-1) for x in (found, seen))
  order = jnp.concatenate([jnp.arange(p), p + order])
  chosen = best(*both, index.topk, order)
  return chosen[..., :p].reshape(b, -1, p), chosen[..., p:]
