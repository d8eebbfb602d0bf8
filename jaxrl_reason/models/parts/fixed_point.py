"""Sums whose result does not depend on their order.

A float32 sum depends on the order of its terms, and so on the number of rows,
the size of blocks, the mesh, and the fusions of the compiler. Here all terms of
a sum are integers on one grid, small enough for every partial sum to be exact:

  x ~ g (d_0 + d_1 / 128 + ...),  |d_i| <= 64,  g a power of two per row
  sum_k x_k w_k  ~  g_x g_w (sum d_0 e_0 + sum (d_0 e_1 + d_1 e_0) / 128 + ..)

(https://doi.org/10.1007/s11075-011-9478-1, an error-free split; g is chosen by
the row's largest value). A digit fits bfloat16, a product of two digits is at
most 2^12, and a sum of 2^11 pairs of products is exact in float32. On TPUs a
digit is an int8 and the sum an int32, the same integers, because TPUs multiply
int8 at twice the rate and read half of the bytes. Two digits have an error of
at most 2^-13 of the largest value of their row.

A compiler may fuse a product and a sum into a multiply-add with one rounding,
in one program and not in another. So in elementwise operations, a product that
is added is either exact or ends in `rounded`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import sharding

DIGIT = 128.0  # base of digits: |d| <= 64
MOST = 2048  # terms of a sum of products: 2 * 64 * 64 * MOST = 2**24
PARTS = 4096.0  # of 1, in each of the two integers of `total`
# log(2) as the sum of two numbers of 15 bits, so that multiples are exact.
LN2 = 0.693145751953125, 1.4285906217992306e-06
SQUARINGS = 5


def rounded(x: jax.Array, bits: int = 22) -> jax.Array:
  """Rounds f32 x to this number of bits after the leading one. The compiler
  does not move this rounding, so it does not fuse a rounded product with a sum.
  """
  return jax.lax.reduce_precision(x, 8, bits)


def to(x: jax.Array, dtype) -> jax.Array:
  """Rounds f32 x to bfloat16. A compiler may leave out a plain cast if the next
  operation is in float32 again (`xla_allow_excess_precision`).
  """
  return rounded(x, 7).astype(dtype)


def _power(x: jax.Array) -> jax.Array:
  """Returns the exponent of the largest power of two that is at most x > 0, or
  -100 if the exponent is smaller.
  """
  bits = jax.lax.bitcast_convert_type(x, jnp.int32)
  return jnp.maximum((bits >> 23) - 127, -100)


def _two_to(n: jax.Array) -> jax.Array:
  """Returns 2^n of integers between -126 and 127."""
  return jax.lax.bitcast_convert_type((n + 127) << 23, jnp.float32)


def digit_dtype() -> Any:
  """Returns the dtype of digits on the platform compiled for."""
  return jnp.int8 if sharding.platform() == 'tpu' else jnp.bfloat16


def one_digit(x: jax.Array) -> tuple[jax.Array]:
  """Returns int8 numbers of at most 127 as digits of their own."""
  return (x.astype(digit_dtype()),)


def digits(x: jax.Array, axis: Any, n: int = 2) -> tuple[tuple, jax.Array]:
  """Splits x into n digits, with one grid over an axis.

  Returns:
    (digits of `digit_dtype` shaped like x, grid f32 with size 1 along the
    axis): x is about grid * (d_0 + d_1 / 128 + ...). The grid is NaN if a
    number is NaN or infinite.
  """
  x = x.astype(jnp.float32)
  top = jnp.max(jnp.abs(x), axis=axis, keepdims=True)
  power = jnp.minimum(_power(top), 120)
  rest, out = x * _two_to(5 - power), []
  for _ in range(n):
    digit = jnp.round(rest)
    out.append(digit.astype(digit_dtype()))
    rest = (rest - digit) * DIGIT
  return tuple(out), jnp.where(top < jnp.inf, _two_to(power - 5), jnp.nan)


def products(how: str, a: Sequence, b: Sequence) -> list[jax.Array]:
  """Multiplies digits by an einsum over one axis.

  If b is larger than a and the result, as a weight in decoding, each digit of b
  is read once. Otherwise each level is one product.

  Returns:
    Exact sums, f32 or i32 [levels]; of level i, the sum of d_j e_{i-j}. `value`
    adds the levels.
  """
  left, right, _, out = _axes(how)
  sizes = dict(zip(left + right, a[0].shape + b[0].shape))
  if max(a[0].size, math.prod(sizes[x] for x in out)) < b[0].size:
    return _each_read_once(how, a, b)
  return _each_level_at_once(how, a, b)


def _each_level_at_once(how: str, a: Sequence, b: Sequence) -> list[jax.Array]:
  """Computes `products` with one product of stacked digits for each level.

  The products of a level are then not written to memory to be added, and there
  are fewer products to compile.
  """
  left, right, axis, out = _axes(how)
  how = f'Z{left},Z{right}->{out}'
  at = left.index(axis) + 1, right.index(axis) + 1
  levels = []
  for i in range(max(len(a), len(b))):
    both = range(max(0, i + 1 - len(b)), min(i + 1, len(a)))
    pairs = [(a[j], b[i - j]) for j in both]
    assert len(pairs) <= 2, 'see MOST'
    stacked = (jnp.stack(x) for x in zip(*pairs))
    levels.append(in_blocks(functools.partial(_einsum, how), *stacked, at))
  return levels


def _each_read_once(how: str, a: Sequence, b: Sequence) -> list[jax.Array]:
  """Computes `products` with one product for each digit of b: the digit times
  all digits of a, stacked.

  If several products read the digits of a weight, the TPU compiler copies them
  out of the stack of layers.
  """
  left, right, axis, out = _axes(how)
  # Digits of a are stacked after the axes that a, b and the result begin with.
  z = next(i for i, x in enumerate(left) if x not in right or x == axis)
  how = f'{left[:z]}Z{left[z:]},{right}->{out[:z]}Z{out[z:]}'
  n = max(len(a), len(b))
  levels = [[] for _ in range(n)]
  for j, y in enumerate(b):
    x = jnp.stack(a[: n - j], axis=z)
    at = left.index(axis) + 1, right.index(axis)
    found = in_blocks(functools.partial(_einsum, how), x, y, at)
    for i, x in enumerate(jnp.moveaxis(found, z, 0)):
      levels[i + j].append(x)
  return [_added(x) for x in levels]


def _axes(how: str) -> tuple[str, str, str, str]:
  """Returns (axes of the factors, the one that is summed, axes of the
  result).
  """
  (left, right), out = how.split('->')[0].split(','), how.split('->')[1]
  (axis,) = (x for x in left if x in right and x not in out)
  return left, right, axis, out


def _einsum(how: str, x, y, sums) -> jax.Array:
  return jnp.einsum(how, x, y, preferred_element_type=sums)


def in_blocks(product: Callable, x, y, at: tuple[int, int]) -> jax.Array:
  """Multiplies digits x and y; the sum is an int32 if it may pass 2^24.

  Args:
    product: (x, y, dtype of the sums) -> sums over axes `at` of x and y.
  """
  size = x.shape[at[0]]
  if x.dtype == jnp.int8:
    return product(x, y, jnp.int32)
  if size <= MOST:
    return product(x, y, jnp.float32)

  def part(first):
    end = min(first + MOST, size)
    cut = (
      jax.lax.slice_in_dim(z, first, end, axis=i) for z, i in zip((x, y), at)
    )
    return product(*cut, jnp.float32).astype(jnp.int32)

  return _added([part(i) for i in range(0, size, MOST)])


def _added(parts: list) -> jax.Array:
  return functools.reduce(jnp.add, parts)


def value(levels: Sequence[jax.Array]) -> jax.Array:
  """Returns f32 sum of level_i / 128^i.

  A lower level is rounded to bfloat16. If a compiler writes it to memory, it
  writes half of the bytes. The error is at most 2^-9 of the level.
  """
  *rest, out = (x.astype(jnp.float32) for x in levels)
  for x in reversed(rest):
    out = x + to(out, jnp.bfloat16).astype(jnp.float32) / DIGIT
  return out


def total(*parts: jax.Array) -> jax.Array:
  """Sums at most 2^19 numbers in [0, 1] over the last axes of arrays [...,n],
  with an error of at most 2^-25 for each number.
  """

  def cut(x):
    x = x * PARTS
    high = jnp.floor(x)
    low = jnp.round((x - high) * PARTS)
    return high.astype(jnp.int32).sum(-1), low.astype(jnp.int32).sum(-1)

  high, low = (_added(x).astype(jnp.float32) for x in zip(*map(cut, parts)))
  return (high + low / PARTS) / PARTS


def exp(x: jax.Array) -> jax.Array:
  """Computes e^x of f32 x with a relative error of 2e-5 at most; 0 below -87.

  On a CPU, the last bit of XLA's own function may differ between arrays of
  different sizes. With h = r / 64, e^r = ((1 + h) / (1 - h))^32 adds no rounded
  product.
  """
  x = rounded(x)  # it may be a product
  n = jnp.round(jnp.clip(x, -87, 88) * (1 / math.log(2)))
  r = (x - n * LN2[0]) - n * LN2[1]
  h = r * 2.0 ** -(SQUARINGS + 1)
  y = (1 + h) / (1 - h)
  for _ in range(SQUARINGS):
    y = y * y
  y = jnp.minimum(y * _two_to(n.astype(jnp.int32)), jnp.finfo('float32').max)
  return jnp.where(x < -87, 0, y)


def log(x: jax.Array) -> jax.Array:
  """Computes log x of f32 x > 0, with an error of 2^-22 max(1, |log x|)."""
  n = _power(x * np.float32(np.sqrt(2)))
  m = x * _two_to(-n)
  z = (m - 1) / (m + 1)
  square = rounded(z * z)
  series = jnp.float32(1 / 9)
  for k in (7, 5, 3, 1):
    series = rounded(series * square) + np.float32(1 / k)
  n = n.astype(jnp.float32)
  return n * LN2[0] + (n * LN2[1] + rounded(2 * z * series))


def _shares(x: jax.Array):
  """Returns (largest of x [...,n], e^(x - largest), their total)."""
  x = rounded(x)  # it may be a product
  top = jnp.max(x, axis=-1, keepdims=True)
  p = exp(x - top)
  return top[..., 0], p, total(p)


def _softmax(x: jax.Array) -> jax.Array:
  _, p, all_ = _shares(x)
  return rounded(p / all_[..., None])


def _logsumexp(x: jax.Array) -> jax.Array:
  top, _, all_ = _shares(x)
  return top + log(all_)


def with_gradient_of(fast: Callable, exact: Callable) -> Callable:
  """Returns f(arrays, others) that computes exact(*arrays, *others), with the
  gradient of fast(*arrays, *others) by the arrays. A gradient need not be the
  same in two programs.
  """

  @jax.custom_vjp
  def f(arrays: tuple, others: tuple) -> Any:
    return exact(*arrays, *others)

  def backward(kept, g):
    arrays, others = kept
    _, pull = jax.vjp(lambda *x: fast(*x, *others), *arrays)
    return pull(g), None

  f.defvjp(lambda *kept: (exact(*kept[0], *kept[1]), kept), backward)
  return f


def _of(fast: Callable, exact: Callable) -> Callable:
  both = with_gradient_of(fast, exact)
  return lambda x: both((x,), ())


softmax = _of(jax.nn.softmax, _softmax)
logsumexp = _of(functools.partial(jax.nn.logsumexp, axis=-1), _logsumexp)
