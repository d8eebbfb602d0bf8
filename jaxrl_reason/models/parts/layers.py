"""Norms, products with weights, and the mlp, shared by all kinds of blocks.

Softmax and norms are computed in float32 whatever the compute dtype, because
their errors affect every log-probability. Matrix products accumulate in
float32.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding
from jaxrl_reason.models.parts import grouped as grouped_lib
from jaxrl_reason.models.parts import rope

# Finite, so that a row with nothing to attend to (padding) has uniform weights
# and not NaN; its exp underflows to exactly 0.
MASKED = -1e30
# Name of attention's output and sums of exponentials, with which its backward
# pass begins. If they are not kept, all scores are computed once more.
KEPT = 'attention'
OF_ATTENTION = jax.checkpoint_policies.save_only_these_names(KEPT)
# Rematerialization policies, from most to least kept (`models.remat`).
REMAT = {
  'dots': jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable, OF_ATTENTION
  ),
  'attention': OF_ATTENTION,
  'full': jax.checkpoint_policies.nothing_saveable,
}

einsum32 = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def gelu_quick(x: jax.Array) -> jax.Array:
  """Computes x sigmoid(1.702 x) (https://arxiv.org/abs/1606.08415)."""
  return x * jax.nn.sigmoid(1.702 * x)


def xielu(x: jax.Array, positive: jax.Array, negative: jax.Array) -> jax.Array:
  """Computes xIELU with two learned slopes, rounded once
  (https://arxiv.org/abs/2411.13010).
  """
  x32 = x.astype(jnp.float32)
  above = jax.nn.softplus(positive.astype(jnp.float32)) * x32 * x32
  slope = 0.5 + jax.nn.softplus(negative.astype(jnp.float32))
  below = slope * (jnp.expm1(jnp.minimum(x32, -1e-6)) - x32)
  return (jnp.where(x32 > 0, above, below) + 0.5 * x32).astype(x.dtype)


def relu2(x: jax.Array) -> jax.Array:
  """Computes max(x, 0)^2 (https://arxiv.org/abs/2109.08668)."""
  return jnp.square(jax.nn.relu(x))


ACTIVATIONS = {
  'silu': jax.nn.silu,
  'gelu_tanh': functools.partial(jax.nn.gelu, approximate=True),
  'gelu_quick': gelu_quick,
  'xielu': xielu,
  'relu2': relu2,
}
LEARNED = {'xielu': ('positive', 'negative')}  # the weights of an activation
UNGATED = 'xielu', 'relu2'  # of an mlp that is not multiplied by gates
SUMS = None  # over the vocabulary: those of `logits`
sigmoid, probabilities = jax.nn.sigmoid, jax.nn.softmax
angles, rotate = rope.angles, rope.rotate


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
  """Computes x / rms(x) * weight over the last axis
  (https://arxiv.org/abs/1910.07467).
  """
  x32 = x.astype(jnp.float32)  # bf16 squares lose the small features
  scale = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
  return (x32 * scale * weight).astype(x.dtype)


def layer_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
  """Computes (x - mean(x)) / std(x) * weight over the last axis
  (https://arxiv.org/abs/1607.06450).
  """
  x32 = x.astype(jnp.float32)
  x32 -= jnp.mean(x32, axis=-1, keepdims=True)
  return rms_norm(x32, weight, eps).astype(x.dtype)


def norm(x, p: dict, name: str, c: Any) -> jax.Array:
  """Applies the named norm; returns x if the family has no such norm."""
  if name not in p:
    return x
  weight = p[name]
  if c.norm_offset:
    weight = weight.astype(jnp.float32) + c.norm_offset
  normed = layer_norm if c.norm_centered else c.ops.rms_norm
  return normed(x, weight, c.norm_eps)


def to(x: jax.Array, dtype) -> jax.Array:
  """Rounds x to the compute dtype."""
  return x.astype(dtype)


def times(x: jax.Array, y: jax.Array) -> jax.Array:
  """Computes x * y in the dtype of x."""
  return (x * y).astype(x.dtype)


def added(x: jax.Array, y: jax.Array, scale: float = 1.0) -> jax.Array:
  """Computes x + y * scale, in their dtype."""
  return x + (y if scale == 1 else y * scale)


def shares(x: jax.Array, least: float) -> jax.Array:
  """Divides x [...,k] by its sum over the last axis plus `least`."""
  return x / (x.sum(axis=-1, keepdims=True) + least)


def weighted(y: jax.Array, weights: jax.Array) -> jax.Array:
  """Computes the sum over k of y [M,k,D] times weights f32 [M,k], in
  float32.
  """
  return jnp.einsum('mkd,mk->md', y, weights)


def scores(x: jax.Array, w: jax.Array) -> jax.Array:
  """Multiplies x [M,A] by w [A,B] into float32."""
  return jnp.dot(x, w.astype(x.dtype), preferred_element_type=jnp.float32)


def contracted(how: str, x: jax.Array, w: jax.Array) -> jax.Array:
  """Computes an einsum of x and a weight of several arrays, in x's dtype."""
  return jnp.einsum(how, x, w)


def soft_cap(x: jax.Array, cap: float) -> jax.Array:
  """Computes cap * tanh(x / cap), within (-cap, cap); cap 0: x (Gemma 2,
  https://arxiv.org/abs/2408.00118).
  """
  return cap * jnp.tanh(x / cap) if cap else x


def softmax(
  scores: jax.Array, mask: jax.Array, sinks: jax.Array | None = None
) -> jax.Array:
  """Computes the masked softmax over the last axis, in float32.

  Args:
    sinks: [...,1], one more score, whose share is dropped; None: none.
  """
  scores = jnp.where(mask, scores, MASKED)
  if sinks is None:
    return jax.nn.softmax(scores, axis=-1)
  one = (*scores.shape[:-1], 1)
  sinks = jnp.broadcast_to(sinks.astype(scores.dtype), one)
  both = jnp.concatenate([scores, sinks], axis=-1)
  return jax.nn.softmax(both, axis=-1)[..., :-1]


@struct.dataclass
class Quantized:
  """A frozen weight int8 * scale (`adapters.frozen`)."""

  int8: jax.Array  # [in..., out...]
  scale: jax.Array  # f32 [out...]

  def reshape(self, *shape: int) -> 'Quantized':
    return self.replace(int8=self.int8.reshape(*shape))


@struct.dataclass
class Adapted:
  """A weight with a low-rank adapter (`adapters.lora`)."""

  w: jax.Array | Quantized  # [..., out]
  a: jax.Array  # [in, r]; with k roles [in, k r]
  b: jax.Array  # [r, out]; with k roles [k r, out]
  scale: float = struct.field(pytree_node=False)
  # Role of each row, or of each token, int8 [M]; None: there are no roles.
  role: jax.Array | None = None
  roles: int = struct.field(pytree_node=False, default=1)

  def reshape(self, *shape: int) -> 'Adapted':
    return self.replace(w=self.w.reshape(*shape))


Weight = jax.Array | Quantized | Adapted


def is_weight(x) -> bool:
  """Returns whether a tree node is a weight of more than one array."""
  return isinstance(x, (Quantized, Adapted))


def cast(w: Weight, dtype) -> Weight:
  """Casts a weight to the dtype of the products that read it."""
  if isinstance(w, Quantized):
    return w  # int8 in memory; cast as it is read
  if isinstance(w, Adapted):
    ab = {'a': w.a.astype(dtype), 'b': w.b.astype(dtype)}
    return w.replace(w=cast(w.w, dtype), **ab)
  return w.astype(dtype)


def flat(x: jax.Array) -> jax.Array:
  """Reshapes [...,D] to the rows [M,D] of a matrix, unless a mesh splits the
  tokens of rows: then the reshape would move tokens between devices.
  """
  return x if sharding.n_context_shards() > 1 else x.reshape(-1, x.shape[-1])


def dense(x: jax.Array, w: Weight, bias: jax.Array | None = None) -> jax.Array:
  """Multiplies x [..., A] by w [A, ...] as one product of two matrices, plus
  bias.

  The reshapes are free, and keep the weight's gradient a plain x^T g: with
  two contracted axes XLA's CPU backend transposes every activation first,
  fused into the arithmetic that makes it (the update took twice as long).
  """
  if isinstance(w, Adapted):
    y = dense(x, w.w, bias)
    change = dense(_own_ranks(dense(x, w.a), w), w.b) * w.scale
    return y + change.reshape(y.shape)
  w, scale = (w.int8, w.scale) if isinstance(w, Quantized) else (w, None)
  rows, features = x.shape[:-1], w.shape[1:]
  lines = flat(x)
  w = w.reshape(w.shape[0], -1).astype(x.dtype)
  if bias is None and scale is None:
    return (lines @ w).reshape(*rows, *features)
  # Rounded once, after the sum, as bf16 libraries do.
  y = jnp.dot(lines, w, preferred_element_type=jnp.float32)
  y = y.reshape(*rows, *features)
  if scale is not None:
    y = y * scale
  if bias is not None:
    y = y + bias.astype(x.dtype)
  return y.astype(x.dtype)


def _own_ranks(x: jax.Array, w: Adapted) -> jax.Array:
  """Masks x [...,k r] to the r columns of the role of its row. Adapters of
  other roles then have neither an effect on the row nor a gradient from it.
  """
  if w.role is None:
    return x
  columns = jnp.arange(x.shape[-1]) // (x.shape[-1] // w.roles)
  own = columns == w.role[:, None]
  rows = len(w.role), x.size // (x.shape[-1] * len(w.role)), x.shape[-1]
  return jnp.where(jnp.broadcast_to(own[:, None], rows).reshape(x.shape), x, 0)


def _without_roles(w: Adapted) -> None:
  """Refuses adapters of roles where weights do not multiply rows in order."""
  if w.role is not None:
    raise ValueError(
      'rl.role_adapters: a weight of experts, or of a latent projection, has '
      'an adapter; leave it out of lora.targets'
    )


def wide(x: jax.Array, w: jax.Array) -> jax.Array:
  """Multiplies x [..., A] by w [A, B], cast to x's dtype, into float32.

  The gradients' products are in that dtype too. By default a float32 gradient
  of bfloat16 factors would be multiplied in float32 (in TF32 on a GPU, at half
  the rate).
  """
  w = w.astype(x.dtype)
  return _into_float32(x, w) if x.dtype == jnp.float32 else _wide(x, w)


_into_float32 = functools.partial(einsum32, '...a,ab->...b')


def _wide_backward(kept, g):
  x, w = kept
  g = g.astype(x.dtype)
  return jnp.einsum('...b,ab->...a', g, w), jnp.einsum('...a,...b->ab', x, g)


_wide = jax.custom_vjp(_into_float32)
_wide.defvjp(lambda x, w: (_into_float32(x, w), (x, w)), _wide_backward)


@jax.custom_vjp
def taken(x: jax.Array, there: jax.Array, back: jax.Array) -> jax.Array:
  """Gathers rows x [M,...], each k times, in the order `there` int [M*k].

  Args:
    back: the inverse permutation. With it the gradient is a gather too; the
      gradient of plain indexing is a scatter-add.
  """
  del back
  return x[there // (len(there) // len(x))]


def _put_back(kept, g):
  n, back = kept
  of_uses = g[back].reshape(n, -1, *g.shape[1:])
  return of_uses.astype(jnp.float32).sum(axis=1).astype(g.dtype), None, None


taken.defvjp(
  lambda x, there, back: (taken(x, there, back), (len(x), back)), _put_back
)
# Columns `there` int [N,T] of rows x [N,T,...].
reordered = jax.vmap(taken)


def plain(w: Weight, dtype) -> jax.Array:
  """Returns a weight of several arrays as one array in `dtype`, for uses that
  are not products with rows.
  """
  if isinstance(w, Adapted):
    _without_roles(w)
    change = (w.a.astype(dtype) @ w.b.astype(dtype)) * w.scale
    base = plain(w.w, dtype)
    return base + change.reshape(base.shape)
  if isinstance(w, Quantized):
    return (w.int8 * w.scale).astype(dtype)
  return w.astype(dtype)


def grouped(rows, w: Weight, sizes, split: str = '') -> jax.Array:
  """Multiplies runs of rows [M,in], `sizes` [E] long, by their expert's
  [in,out]. `split`: see `grouped.dot`.
  """
  if isinstance(w, Adapted):
    _without_roles(w)
    first, second = (split, '') if split == 'in' else ('', split)
    change = grouped(grouped(rows, w.a, sizes, first), w.b, sizes, second)
    return grouped(rows, w.w, sizes, split) + change * w.scale
  if isinstance(w, Quantized):
    # Dequantized first: a scale per row would be as large as the activations.
    w = w.int8 * w.scale[:, None]
  return grouped_lib.dot(rows, w.astype(rows.dtype), sizes, split)


def gate(
  x: jax.Array, up: jax.Array, activation: Callable, limit: float = 0.0
) -> jax.Array:
  """Computes activation(x) * up, rounded once: in bf16 each operation of a GELU
  would round.

  Args:
    limit: for gpt-oss: x is clipped from above, up on both sides, and 1 is
      added to up; 0: none of these.
  """
  x32 = x.astype(jnp.float32)
  if limit:
    x32 = jnp.minimum(x32, limit)
    up = jnp.clip(up.astype(jnp.float32), -limit, limit) + 1
  return (activation(x32) * up).astype(x.dtype)


def root(x: jax.Array, least: float) -> jax.Array:
  """Computes the square root of x, at least that of `least`."""
  return jnp.sqrt(jnp.maximum(x, least))


def sparse(x: jax.Array, cutoff: jax.Array | float) -> jax.Array:
  """Computes max(0, x - mean - cutoff * std) over the last axis, so that a
  share of normally distributed numbers is zero (arxiv.org/abs/2506.06644);
  cutoff -inf: x.
  """
  is_on = cutoff > -jnp.inf
  x32 = x.astype(jnp.float32)
  apart = x32 - x32.mean(axis=-1, keepdims=True)
  std = root(jnp.mean(apart * apart, axis=-1, keepdims=True), 1e-30)
  kept = jax.nn.relu(apart - jnp.where(is_on, cutoff, 0) * std)
  return jnp.where(is_on, kept, x32).astype(x.dtype)


def mlp(x: jax.Array, p: dict, c: Any, cutoff: Any = None) -> jax.Array:
  """Computes (act(x G) * x U) D (arxiv.org/abs/2002.05202), or act(x U) D.

  Args:
    cutoff: of x G (`sparse`); None: there is none.
  """
  lines = flat(x)

  def times(x, name):
    return c.ops.dense(x, p[name], p.get(name + '_bias'))

  if not c.gated:
    learned = [p[name] for name in LEARNED.get(c.activation, ())]
    y = c.activate(times(lines, 'up'), *learned)
    return times(y, 'down').reshape(x.shape)
  gate, up = times(lines, 'gate'), times(lines, 'up')
  gate = gate if cutoff is None else sparse(gate, cutoff)
  if not c.mlp_scales:
    y = times(c.ops.gate(gate, up, c.activate), 'down')
    return y.reshape(x.shape)
  of_gate, of_output = c.mlp_scales
  y = c.ops.gate(gate, up, lambda x: c.activate(x * of_gate))
  return (times(y, 'down') * of_output).reshape(x.shape)
