"""The operations of `layers`, each with one result in every program.

`model.numerics='exact'` computes prompts, decoding, scoring and the forward
pass of training with these, in bfloat16. A token's numbers then depend only on
the tokens before it and on the weights, and not on the number of rows, padding,
packing, the layout of the cache, the mesh, or the fusions of the compiler. All
sums are those of `fixed_point`. Gradients are those of the operations in
`layers`, at the same inputs.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import logits, sharding
from jaxrl_reason.models.parts import fixed_point, layers, rope
from jaxrl_reason.models.parts.fixed_point import (
  digits,
  exp,
  products,
  rounded,
  to,
  value,
  with_gradient_of,
)

probabilities = fixed_point.softmax


def _tempered(x: jax.Array, temperature: jax.Array) -> jax.Array:
  # Compilers multiply by the reciprocal of a constant, and divide by variables.
  return rounded(x * (1 / temperature))


SUMS = logits.Sums(
  fixed_point.softmax,
  fixed_point.total,
  fixed_point.logsumexp,
  tempered=_tempered,
  slack=2.0**-17,  # products with a power of two are exact
  sampled=True,
)


@struct.dataclass
class Split:
  """The digits of a weight [in...,out...], for weights that are read often."""

  digits: tuple[jax.Array, ...]  # shaped like the weight
  grid: jax.Array  # f32, 1 along the inputs

  def reshape(self, *shape: int) -> 'Split':
    """Merges all inputs to one dimension, as `shape` does."""
    parts = tuple(x.reshape(shape) for x in self.digits)
    return Split(parts, self.grid.reshape(1, *parts[0].shape[1:]))


def split(w: jax.Array, inputs: tuple[int, ...]) -> Split:
  """Splits a weight into digits, with one grid over the given dimensions."""
  return Split(*digits(w, inputs))


def _digits_of(w: Any) -> tuple[tuple, jax.Array]:
  """Returns the digits of a weight [A,...] and their grid f32 [1,...]."""
  if isinstance(w, Split):
    return w.digits, w.grid
  if isinstance(w, layers.Quantized):
    return fixed_point.one_digit(w.int8), w.scale[None]
  parts, grid = digits(w, 0)
  return tuple(map(_replicated, parts)), grid


def _replicated(x: jax.Array) -> jax.Array:
  """Replicates the digits of a weight, unless the mesh has a tensor axis.

  Otherwise the TPU compiler multiplies with one shard of the weight at a time,
  and adds the sums of the shards in memory. Without the barrier it gathers the
  digits as float32 numbers.
  """
  if not sharding.in_mesh() or sharding.is_own_device():
    return x
  if sharding.n_tensor_shards() > 1:
    return x
  return sharding.everywhere(jax.lax.optimization_barrier(x))


def scores(x: jax.Array, w: Any) -> jax.Array:
  """Multiplies x [...,A] by w [A,B] into float32."""
  return _scores((x, w), ())


wide = scores


def _product(x: jax.Array, w: Any) -> jax.Array:
  """Computes x [...,A] times w [A,B], f32."""
  (a, grid), (b, of_w) = digits(x, -1), _digits_of(w)
  rows = 'mnop'[: x.ndim - 1]
  y = value(products(f'{rows}a,ab->{rows}b', a, b))
  # The scale of int8 weights is not a power of two.
  return rounded(y * grid * of_w, 22)


_scores = with_gradient_of(layers.wide, _product)


def dense(x: jax.Array, w: Any, bias: jax.Array | None = None) -> jax.Array:
  """Multiplies x [..., A] by w [A, ...], plus bias."""
  if isinstance(w, layers.Adapted):
    y = dense(x, w.w, bias)
    change = dense(dense(x, w.a), w.b)
    return added(y, change.reshape(y.shape), w.scale)
  return _dense((x, w, bias), ())


def _exact_dense(x, w, bias):
  features = w.int8 if isinstance(w, layers.Quantized) else w
  features = features.digits[0] if isinstance(w, Split) else features
  features = features.shape[1:]
  y = _product(x, _matrix(w)).reshape(*x.shape[:-1], *features)
  if bias is not None:
    y = y + to(bias.astype(jnp.float32), x.dtype)
  return to(y, x.dtype)


def _matrix(w: Any) -> Any:
  """Merges the outputs of a weight [A,...]."""
  if isinstance(w, Split):
    return jax.tree.map(lambda x: x.reshape(x.shape[0], -1), w)
  if isinstance(w, layers.Quantized):
    return w.replace(
      int8=w.int8.reshape(w.int8.shape[0], -1), scale=w.scale.reshape(-1)
    )
  return w.reshape(w.shape[0], -1)


_dense = with_gradient_of(layers.dense, _exact_dense)


def cast(w: Any, dtype) -> Any:
  """Returns a weight in the form that products read: float32."""
  del dtype
  return w


def plain(w: Any, dtype) -> Any:
  """Returns a weight for `contracted`."""
  if isinstance(w, layers.Adapted):
    base = plain(w.w, dtype)
    change = rounded(scores(w.a, w.b) * w.scale)
    return base + change.reshape(base.shape)
  return layers.plain(w, jnp.float32)


def _contracted(how: str, x: jax.Array, w: jax.Array) -> jax.Array:
  left, right = how.split('->')[0].split(',')
  (axis,) = (a for a in left if a in right and a not in how.split('->')[1])
  (a, grid), (b, of_w) = (
    digits(x, left.index(axis)),
    digits(w, right.index(axis)),
  )
  grids = jnp.einsum(how, grid, of_w, preferred_element_type=jnp.float32)
  return to(value(products(how, a, b)) * grids, x.dtype)


def contracted(how: str, x: jax.Array, w: jax.Array) -> jax.Array:
  """Computes an einsum of x [...] and a weight over one axis."""
  how = how.replace('...', 'xyzw'[: x.ndim - how.index(',') + len('...')])
  fast = functools.partial(_fast_contracted, how)
  f = with_gradient_of(fast, functools.partial(_contracted, how))
  return f((x, w), ())


def _fast_contracted(how, x, w):
  return layers.contracted(how, x, w.astype(x.dtype))


def grouped(
  rows: jax.Array, w: Any, sizes: jax.Array, split: str = ''
) -> jax.Array:
  """Multiplies rows [M,in] by the weight [in,out] of their expert. The rows are
  sorted by expert, and sizes [E] are the numbers of rows per expert.
  """
  del split
  if isinstance(w, layers.Adapted):
    change = grouped(grouped(rows, w.a, sizes), w.b, sizes)
    return added(grouped(rows, w.w, sizes), change, w.scale)
  return _grouped((rows, w), (sizes,))


def _exact_grouped(rows, w, sizes):
  a, grid = digits(rows, 1)
  if isinstance(w, Split):
    b, of_w = w.digits, w.grid
  elif isinstance(w, layers.Quantized):
    b, of_w = fixed_point.one_digit(w.int8), w.scale[:, None]
  else:
    b, of_w = digits(w, 1)

  def product(x, y):
    def part(x, y, sums):
      return jax.lax.ragged_dot(x, y, sizes, preferred_element_type=sums)

    return fixed_point.in_blocks(part, x, y, (1, 1))

  levels = [product(a[0], b[0]), product(a[1], b[0])]
  if len(b) > 1:
    levels[1] = levels[1] + product(a[0], b[1])
  expert = jnp.searchsorted(
    jnp.cumsum(sizes), jnp.arange(len(rows)), side='right'
  )
  of_row = jnp.take(of_w[:, 0], expert, axis=0, mode='clip')
  return to(rounded(value(levels) * grid * of_row), rows.dtype)


_grouped = with_gradient_of(layers.grouped, _exact_grouped)


def _rms_norm(x, weight, eps):
  x32 = x.astype(jnp.float32)
  power = fixed_point._power(jnp.max(jnp.abs(x32), axis=-1, keepdims=True)) + 1
  unit = x32 * fixed_point._two_to(-power)
  mean = rounded(fixed_point.total(unit * unit)[..., None] / x.shape[-1])
  two = fixed_point._two_to(power)
  scale = 1 / rounded(jnp.sqrt(mean * two * two + eps))
  return to(rounded(x32 * scale) * weight, x.dtype)


_normed = with_gradient_of(layers.rms_norm, _rms_norm)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
  """Computes x / rms(x) * weight over the last axis."""
  return _normed((x, weight), (eps,))


def times(x: jax.Array, y: jax.Array) -> jax.Array:
  """Computes x * y, rounded to the dtype of x."""
  return to(x.astype(jnp.float32) * y, x.dtype)


def added(x: jax.Array, y: jax.Array, scale: float = 1.0) -> jax.Array:
  """Computes x + y * scale, rounded to the dtype of x."""
  y = y.astype(jnp.float32)
  y = y if scale == 1 else rounded(y * scale)
  return to(x.astype(jnp.float32) + y, x.dtype)


def shares(x: jax.Array, least: float) -> jax.Array:
  """Divides x [...,k] in [0, 1] by its sum over the last axis plus `least`."""

  def exact(x):
    return rounded(x / (fixed_point.total(x)[..., None] + least))

  fast = functools.partial(layers.shares, least=least)
  return with_gradient_of(fast, exact)((x,), ())


def weighted(y: jax.Array, weights: jax.Array) -> jax.Array:
  """Computes the sum over k of y [M,k,D] times weights f32 [M,k], in the order
  of k.
  """
  parts = [
    rounded(y[:, i].astype(jnp.float32) * weights[:, i, None])
    for i in range(y.shape[1])
  ]
  return functools.reduce(jnp.add, parts)


def _sigmoid(x):
  return 1 / (1 + exp(-x))


_of = with_gradient_of(jax.nn.sigmoid, _sigmoid)


def sigmoid(x: jax.Array) -> jax.Array:
  """Computes 1 / (1 + e^-x)."""
  return _of((x,), ())


def _gelu(x):
  """Computes x (1 + tanh u) / 2 = x sigmoid(2 u)."""
  cube = rounded(x * x * x)
  u = rounded((x + rounded(0.044715 * cube)) * math.sqrt(8 / math.pi))
  return x * sigmoid(u)


ACTIVATIONS = {
  'silu': lambda x: x * sigmoid(x),
  'gelu_tanh': _gelu,
  'gelu_quick': lambda x: x * sigmoid(rounded(1.702 * x)),
}


def gate(
  x: jax.Array, up: jax.Array, activation: Callable, limit: float = 0.0
) -> jax.Array:
  """Computes activation(x) * up, rounded once; limit: see `layers.gate`."""
  x32, up32 = x.astype(jnp.float32), up.astype(jnp.float32)
  if limit:
    x32 = jnp.minimum(x32, limit)
    up32 = jnp.clip(up32, -limit, limit) + 1
  return to(rounded(activation(x32)) * up32, x.dtype)


def soft_cap(x: jax.Array, cap: float) -> jax.Array:
  """Computes cap * tanh(x / cap), within (-cap, cap); cap 0: x."""
  if not cap:
    return rounded(x)
  y = rounded(x / cap)
  return rounded(cap * rounded(1 - 2 / (1 + exp(2 * y))))


def angles(kind: rope.Rope, positions, head_dim: int, max_tokens: int):
  """Computes cos and sin of rotary angles, rounded to 16 bits: a product with a
  bfloat16 number is then exact.
  """
  turned = rope.turned(kind, positions, head_dim, max_tokens)
  return tuple(rounded(x, 15) for x in rope.table(kind, rounded(turned)))


def rotate(x: jax.Array, cos, sin, *, interleaved: bool = False) -> jax.Array:
  """Rotates the first features of x, see `rope.rotate`."""
  y = rope.rotate(x.astype(jnp.float32), cos, sin, interleaved=interleaved)
  return to(y, x.dtype)


# Parts of Gemma 3n, Gemma 4 and Llama 4, whose results are not compared between
# programs.
UNTESTED = 'wide_layers', 'reading_layers', 'layer_inputs', 'value_norm'
UNTESTED += 'layer_factor', 'expert_norms', 'expert_inputs', 'index_topk'
UNTESTED += 'streams', 'low_rank', 'mlp_sparsity'


def check(c: Any) -> None:
  """Refuses a Config with operations whose results differ between programs.

  Raises:
    ValueError: names the key and what is allowed.
  """
  needed = {'dtype': 'bfloat16', 'attention': 'auto'}
  for name, needs in needed.items():
    if getattr(c, name) != needs:
      raise ValueError(
        f"model.numerics='exact' needs model.{name}={needs!r}, not "
        f'{getattr(c, name)!r}'
      )
  if c.delta_layers or c.out_gate:
    raise ValueError(
      "model.numerics='exact' does not support model.delta_layers or "
      'model.out_gate: their states are sums in another order in decoding'
    )
  if c.norm_centered:
    raise ValueError(
      "model.numerics='exact' does not support model.norm_centered: the mean "
      'is a sum in another order in decoding'
    )
  for name in UNTESTED:
    if getattr(c, name):
      raise ValueError(
        f"model.numerics='exact' does not support model.{name}="
        f'{getattr(c, name)}'
      )
  if c.mlp_scales:
    raise ValueError(
      "model.numerics='exact' does not support model.mlp_scales: a compiler "
      'may round their products in one program alone'
    )
  if c.activation not in ACTIVATIONS:
    raise ValueError(
      "model.numerics='exact' does not support model.activation="
      f'{c.activation!r}: choose {", ".join(ACTIVATIONS)}'
    )
  if any(r.kind == 'dynamic' or r.growth for r in c.rope_tables):
    raise ValueError(
      "model.numerics='exact' does not support dynamic rotary tables in "
      'model.ropes, or their growth, which are computed in every program'
    )


def for_decoding(w: Any, name: str, n: int, inputs: int) -> Any:
  """Splits a projection into digits; returns other weights as they are.

  Args:
    n: stacked dimensions; inputs: input dimensions after them, 0: no
      projection.
  """
  if not inputs or name == 'kv_up' or isinstance(w, layers.Quantized):
    return w
  if isinstance(w, layers.Adapted):
    base = for_decoding(w.w, name, n, inputs)
    return w.replace(w=base, a=split(w.a, (n,)), b=split(w.b, (n,)))
  return split(w, tuple(range(n, n + inputs)))
