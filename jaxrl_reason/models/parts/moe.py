"""Mixture of experts: each token uses its k best of E mlps; none is dropped.

  p = softmax(x R),  y = sum over the k largest p_e of  p_e * mlp_e(x)

(https://arxiv.org/abs/1701.06538; published weights: Qwen3-MoE,
https://arxiv.org/abs/2505.09388.) The uses of an expert are made adjacent, so
that each projection is one grouped product of runs of rows
(`jax.lax.ragged_dot`), without capacity or padding. On a mesh every device
orders its own tokens, and the smaller of weights and tokens is exchanged
(`_exchanged`). If `routes` are passed, they replace the k best, with the
weights that the router now computes for them. So the trainer differentiates the
experts that were used in sampling (rollout routing replay,
https://arxiv.org/abs/2510.11370).
"""

import functools

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding, trees
from jaxrl_reason.models.parts import layers

# In place of an expert's index: the router chooses (for a token that was not
# sampled, or whose routes were not recorded).
UNKNOWN = -1
# Rows of a device that runs its own experts, over those of balanced routing.
SPARE = 4
# Largest matrix that picks these rows.
LARGEST = 2**20
# Weights that each expert has.
PROJECTIONS = 'gate', 'up', 'down'
# The dimension that is split over the tensor axis.
SPLIT = {'gate': 'out', 'up': 'out', 'down': 'in'}
OF_EXPERTS = (*PROJECTIONS, *(f'{name}_bias' for name in PROJECTIONS))


def route_dtype(n_experts: int) -> jnp.dtype:
  """Returns the smallest integer dtype for experts and UNKNOWN. Routes are
  stored for every token, layer and use: 384 bytes per token for Qwen3-30B-A3B.
  """
  return jnp.dtype(jnp.int8 if n_experts <= 128 else jnp.int16)


def _best(probs, bias, c) -> jax.Array:
  """Returns the experts i32 [M,k] with the largest probs f32 [M,E] plus bias
  [E], within the groups that have the largest sums of their best two
  (https://arxiv.org/abs/2412.19437).
  """
  if bias is not None:
    probs = probs + bias.astype(jnp.float32)
  if c.expert_groups > 1:
    groups = probs.reshape(len(probs), c.expert_groups, -1)
    of_group = jax.lax.top_k(groups, 2)[0].sum(axis=-1)
    kept = jax.lax.top_k(of_group, c.groups_per_token)[1]
    inside = jax.nn.one_hot(kept, c.expert_groups).sum(axis=1) > 0
    groups = jnp.where(inside[..., None], groups, -jnp.inf)
    probs = groups.reshape(probs.shape)
  return jax.lax.top_k(probs, c.experts_per_token)[1]


def routed(x: jax.Array, p: dict, c) -> jax.Array:
  """Computes the input [...,D] of a router that normalises x [...,D] itself."""
  ones = jnp.ones(x.shape[-1])
  x = c.ops.rms_norm(x, ones, c.norm_eps)
  scale = c.ops.to(p['router_scale'], x.dtype)
  return c.ops.times(c.ops.times(x, scale), c.width**-0.5)


def route(x, p: dict, c, routes=None):
  """Computes the experts and their weights for each token.

  Args:
    x: [M,D]; p: router [D,E] and its biases or scales, if any.
    routes: int [M,k] to replay, UNKNOWN for the router's choice; or None.

  Returns:
    (experts i32 [M,k], weights f32 [M,k], probabilities f32 [M,E]).
  """
  # In float32 from the product on: near-ties between experts are decided here,
  # and a rounded score would choose another expert.
  scores = c.ops.scores(x, p['router'])
  if 'router_bias' in p:
    scores = scores + c.ops.to(p['router_bias'], x.dtype)
  one_by_one = c.router == 'sigmoid'
  probs = (c.ops.sigmoid if one_by_one else c.ops.probabilities)(scores)
  # Large scores differ where their sigmoids are all 1.
  best = _best(scores if c.expert_inputs else probs, p.get('choice_bias'), c)
  if routes is None:
    routes = best
  else:
    routes = jnp.where(routes == UNKNOWN, best, routes.astype(best.dtype))
  weights = jnp.take_along_axis(probs, routes, axis=-1)
  if c.expert_norm:
    # The largest softmax values are never all 0, but sigmoids may be.
    least = 1e-20 if one_by_one else 0.0
    weights = c.ops.shares(weights, least)
  if c.expert_scale != 1:
    weights = weights * c.expert_scale
  if 'expert_scale' in p:
    weights = weights * p['expert_scale'].astype(jnp.float32)[routes]
  if one_by_one:
    probs = probs / (probs.sum(axis=-1, keepdims=True) + 1e-20)
  return routes, weights, probs


def _runs(uses: jax.Array, n: int):
  """Computes an order of the uses in which those of each expert are adjacent.

  It counts instead of sorting: a sort takes the TPU compiler seconds, in every
  layer of a decode step. A temporary array of integers [U,n+1] is needed.

  Args:
    uses: int [U], expert indices; uses with index n come last.

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


def _mlps(rows, p: dict, sizes, of, c) -> jax.Array:
  """Computes mlp_e of rows [R,D], whose experts are adjacent.

  Args:
    sizes: i32 [n], rows of each expert; of: int [R], the expert of each row.
  """

  def dot(rows, name):
    y = c.ops.grouped(rows, p[name], sizes, SPLIT[name])
    bias = p.get(name + '_bias')
    return y if bias is None else c.ops.added(y, bias[of])

  up = dot(rows, 'up')
  if c.gated:
    act = c.ops.gate(dot(rows, 'gate'), up, c.activate, c.mlp_limit)
  else:
    act = c.activate(up)
  return dot(act, 'down')


def grouped_mlp(
  x, p: dict, routes, c, n_experts: int, of_inputs=None
) -> jax.Array:
  """Computes mlp_e(x) [M,k,D] of every token's experts: x [M,D], routes
  [M,k].

  Args:
    of_inputs: f32 [M,k], factors of x for each expert, or None.
  """
  m, k = routes.shape
  # [M*k], the k uses of a token adjacent
  order, back, sizes = _runs(routes.reshape(-1), n_experts)
  rows = layers.taken(x, order, back)
  if of_inputs is not None:
    rows = c.ops.times(rows, of_inputs.reshape(-1, 1)[order])
  y = _mlps(rows, p, sizes, routes.reshape(-1)[order], c)
  return layers.taken(y, back, order).reshape(m, k, -1)


def _outputs(x, p: dict, routes, c, n: int, weights) -> jax.Array:
  """Computes mlp_e(x) [M,k,D], of inputs times their weights if the model has
  `expert_inputs`; uses of expert n count as 0.
  """
  y = grouped_mlp(x, p, routes, c, n, weights if c.expert_inputs else None)
  return jnp.where((routes < n)[..., None], y, 0)


def _summed(y: jax.Array, weights: jax.Array, c) -> jax.Array:
  """Computes f32 [M,D], the sum over k of y [M,k,D] times weights [M,k], which
  are 1 if they have multiplied the inputs.
  """
  return c.ops.weighted(
    y, jnp.ones_like(weights) if c.expert_inputs else weights
  )


def _picked(ones: jax.Array, x: jax.Array) -> jax.Array:
  """Multiplies ones and zeros [A,B] by rows x [B,D], exactly. A row that is not
  finite makes only the sums with it nan. On a TPU a scatter of rows is slow.
  """
  fine = jnp.all(jnp.isfinite(x), axis=1)
  times = functools.partial(jnp.dot, precision=jax.lax.Precision.HIGHEST)
  y = times(ones, jnp.where(fine[:, None], x, 0))
  lost = times(ones, (~fine).astype(ones.dtype)) > 0
  return jnp.where(lost[:, None], jnp.nan, y)


def _of_few(x, p: dict, mine, weights, c, n: int, room: int) -> jax.Array:
  """Computes `_summed(_outputs(...))` [M,D] if at most `room` uses have experts
  below n: only so many rows are read and written.
  """
  order, _, sizes = _runs(mine.reshape(-1), n)
  uses = order[:room]
  ones = jax.nn.one_hot(uses // mine.shape[1], len(x), dtype=x.dtype)
  rows, w = _picked(ones, x), weights.reshape(-1)[uses, None]
  if c.expert_inputs:
    rows, w = c.ops.times(rows, w), 1.0
  y = _mlps(rows, p, sizes, mine.reshape(-1)[uses], c).astype(jnp.float32)
  # Rows after those of the experts may have any value.
  y = jnp.where(jnp.arange(room)[:, None] < sizes.sum(), y, 0) * w
  return _picked(ones.T.astype(jnp.float32), y)


def _of_own(x, p: dict, mine, weights, c, n: int, devices: int) -> jax.Array:
  """Computes f32 [M,D], the sum over k of weights * mlp_e(x), over uses [M,k]
  whose experts are below n.

  A device owns 1/devices of the uses if routing is balanced. Arrays of all uses
  were half of the bytes of a decode step on 64 devices. So there is room for
  SPARE times the balanced number; a device with more uses takes all of them.
  """
  room = -(-SPARE * mine.size // (8 * devices)) * 8

  def few():
    with trees.own_rows(round(room * devices / mine.size)):
      return _of_few(x, p, mine, weights, c, n, room)

  def all_uses():
    y = _outputs(x, p, mine, c, n, weights)
    return _summed(y, weights, c).astype(jnp.float32)

  # The products grow with len(x) * room.
  if room >= mine.size or len(x) * room > LARGEST:
    return all_uses()
  with trees.branches((0, 1)):
    return jax.lax.cond((mine < n).sum() <= room, few, all_uses)


def _exchanged(rows: tuple, p: dict, axis: str | None, *, c):
  """Computes f32 [M,D], the sum over k of weights * mlp_e(x), for this device's
  rows, with experts split over a mesh axis.

  An update has more uses of experts than the weights have rows, so it gathers
  the weights. A decode step has few uses: all devices receive all tokens, each
  runs its own experts, and the sums are scattered back.
  """
  n, (x, routes, weights) = c.experts, rows
  if axis is None:
    return _summed(_outputs(x, p, routes, c, n, weights), weights, c)

  gather = functools.partial(jax.lax.all_gather, axis_name=axis, tiled=True)
  local, width, _ = jax.tree.leaves(p['down'])[0].shape
  if rows[1].size * (n // local) > n * width:
    y = _outputs(x, gather(p), routes, c, n, weights)
    return _summed(y, weights, c)
  x, routes, weights = gather(rows)
  mine = routes - jax.lax.axis_index(axis) * local
  mine = jnp.where((mine >= 0) & (mine < local), mine, local)
  scattered = functools.partial(
    jax.lax.psum_scatter, axis_name=axis, tiled=True
  )
  if c.numerics == 'exact':
    y = _outputs(x, p, mine, c, local, weights)
    # Each use is of one device, so its sum with zeros is exact. In float32,
    # because XLA's CPU backend aborts at sums of bfloat16 here.
    return _summed(scattered(y.astype(jnp.float32)), rows[2], c)
  return scattered(_of_own(x, p, mine, weights, c, local, n // local))


def mlp(x, p: dict, c, routes=None, to_route=None):
  """Computes the block's mlp of x [...,D].

  Args:
    to_route: [...,D], the router's input; None: x.

  Returns:
    (y [...,D], {'routes': int [...,k], 'probs': f32 [...,E]}).
  """
  lead = x.shape[:-1]
  flat = x.reshape(-1, x.shape[-1])
  if routes is not None:
    routes = routes.reshape(-1, c.experts_per_token)
  read = flat if to_route is None else to_route.reshape(flat.shape)
  routes, weights, probs = route(read, p, c, routes)
  # Cast before they are exchanged.
  experts = {k: c.ops.cast(p[k], x.dtype) for k in OF_EXPERTS if k in p}
  f = functools.partial(_exchanged, c=c)
  y = sharding.by_expert(f, (flat, routes, weights), experts)
  y = c.ops.to(y, x.dtype)
  used = {
    'routes': routes.reshape(*lead, -1),
    'probs': probs.reshape(*lead, -1),
  }
  return y.reshape(x.shape), used


def shared(h: jax.Array, p: dict, c) -> jax.Array:
  """Computes the mlp for all tokens beside experts, times its gate if any."""
  y = layers.mlp(h, p, c)
  if 'part' not in p:
    return y
  part = c.ops.sigmoid(c.ops.dense(h, p['part']).astype(jnp.float32))
  return c.ops.times(y, part)


def of_layer(h: jax.Array, p: dict, c, routes=None):
  """Computes the experts of a layer (`mlp`), and the mlp beside them if any."""
  y, used = mlp(h, p['mlp'], c, routes)
  if 'shared_mlp' in p:
    y = c.ops.added(y, shared(h, p['shared_mlp'], c))
  return y, used


def summary(used: dict, weights: jax.Array, n_experts: int) -> dict:
  """Reduces the outputs of a layer's router to what all layers return, so that
  probabilities [L,N,T,E] need not exist.

  Args:
    used: of `mlp`; weights: [N,T], of each token in the load.
  """
  routes = used['routes']
  return {
    'routes': routes.astype(route_dtype(n_experts)),
    'load_balance': load_balance(routes, used['probs'], weights),
  }


def load_balance(routes, probs, valid) -> jax.Array:
  """Computes one layer's load balance, E * sum over e of (share of uses of e) *
  (mean probability of e): k when balanced (https://arxiv.org/abs/2101.03961,
  equation 4).

  Differs from `transformers`, which pools the layers' shares first, so that
  opposite imbalances cancel. Here each layer has a sum, and the model takes
  their mean.

  Args:
    routes: int [N,T,k]; probs: f32 [N,T,E]; valid: bool [N,T], or the weight of
      each token.
  """
  n = jnp.maximum(valid.sum(), 1)
  # [E]: uses of each expert per valid token.
  uses = jax.nn.one_hot(routes, probs.shape[-1]).sum(axis=-2)
  share = jnp.einsum('nte,nt->e', uses, valid) / n
  mean = jnp.einsum('nte,nt->e', probs, valid) / n
  return probs.shape[-1] * jnp.sum(share * mean)
