"""Masked arithmetic every other file here stands on.

Three rules, kept everywhere in this package:
  1. Select before arithmetic. A masked place may hold NaN or inf; it is
     replaced before it is used, so neither a value nor a gradient sees it
     (`0 * nan` is `nan`, and so is the gradient of `where(m, exp(nan), 0)`).
  2. Compute in `promote_types(dtype, float32)`: bfloat16 log-probabilities
     carry 3 digits, and a ratio is the exponential of their difference.
  3. Divide by something named; an empty sum over nothing is 0.
"""

import jax
import jax.numpy as jnp

# exp() of a log-ratio is taken inside +-40: e^40 = 2.4e17 is exact enough for
# any clip or truncation that follows and its sums stay finite in float32,
# which overflows at e^88. Beyond the clamp the gradient is 0.
MAX_LOG_RATIO = 40.0


def as_float(x):
  """`x` as float32, or float64 when it already is."""
  x = jnp.asarray(x)
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def as_mask(mask):
  """Any 0/1 array as bool."""
  return jnp.asarray(mask) != 0


def keep(mask, x, fill=0.0):
  """`x` where the mask is set, `fill` elsewhere; NaN-proof in both passes."""
  return jnp.where(as_mask(mask), as_float(x), fill)


def safe_exp(x):
  """exp(x) with x clamped to +-MAX_LOG_RATIO."""
  return jnp.exp(jnp.clip(x, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def hard_clip(x, low, high):
  """clip(x, low, high) with gradient 1 on the closed interval, 0 outside.

  `jnp.clip` and `jnp.minimum` halve the gradient at a tie, and an on-policy
  ratio sits exactly on ties; the selects here leave no tie to split.
  """
  return jnp.where(x > high, high, jnp.where(x < low, low, x))


def safe_divide(x, n):
  """x / n, and 0 with a zero gradient where n is 0."""
  empty = n == 0
  return jnp.where(empty, 0.0, x / jnp.where(empty, 1.0, n))


def rows_to_tokens(x, mask):
  """[N] or [N, T] -> [N, T], exactly 0 outside the mask."""
  x = as_float(x)
  x = x[:, None] if x.ndim == 1 else x
  return keep(mask, jnp.broadcast_to(x, jnp.shape(mask)))


def row_sum(x, mask):
  """Sum over a row's tokens: [N, T] -> [N]."""
  return keep(mask, x).sum(-1)


def row_count(mask):
  """Tokens in each row, [N]."""
  return as_float(as_mask(mask)).sum(-1)


def row_mean(x, mask):
  """Mean over a row's tokens, 0 for an empty row: [N, T] -> [N]."""
  return safe_divide(row_sum(x, mask), row_count(mask))


def masked_mean(x, mask):
  """Mean over the set places of the whole array, 0 when there is none."""
  return safe_divide(keep(mask, x).sum(), as_float(as_mask(mask)).sum())


def masked_var(x, mask, *, ddof=0):
  """Two-pass variance over the set places, with the divisor n - ddof."""
  d = keep(mask, as_float(x) - masked_mean(x, mask))
  n = as_float(as_mask(mask)).sum()
  return safe_divide(jnp.square(d).sum(), jnp.maximum(n - ddof, 0.0))


def safe_sqrt(x):
  """sqrt(x), 0 with a zero gradient at 0."""
  zero = x <= 0
  return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, x)))


def stop(x):
  """stop_gradient that lets None through."""
  return None if x is None else jax.lax.stop_gradient(x)
