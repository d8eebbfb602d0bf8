"""Keys and values in the number format of a cache (`Config.cache_dtype`).

An int8 cache stores round(x / scale) with scale = max |x| / 127 for each (row,
head, position), with an error of at most scale / 2.
"""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Stored:
  """Keys or values in the storage format of a cache."""

  values: jax.Array  # [rows, head, position, H]
  scale: jax.Array | None = None  # f32 [rows, head, position], for int8


def store(x: jax.Array, dtype: str) -> Stored:
  """Converts x [...,H] to the storage of a cache dtype; 'model' keeps x as
  is.
  """
  if dtype != 'int8':
    return Stored(x if dtype == 'model' else x.astype(dtype))
  x = x.astype(jnp.float32)
  scale = jnp.max(jnp.abs(x), axis=-1) / 127
  unit = jnp.where(scale > 0, scale, 1)[..., None]
  return Stored(jnp.round(x / unit).astype(jnp.int8), scale)


def straight_through(x: jax.Array, dtype: str) -> jax.Array:
  """Rounds x [...,H] as a cache of that dtype does, with the gradient of x.

  The gradient ignores the rounding (https://arxiv.org/abs/1308.3432).
  """
  if dtype != 'int8':
    return x
  y = store(x, dtype)
  rounded = (y.values * y.scale[..., None]).astype(x.dtype)
  return x + jax.lax.stop_gradient(rounded - x)
