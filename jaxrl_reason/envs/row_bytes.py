"""Functions of the texts of environments: bytes u8 [W] and a length.

They use only masks and gathers: static shapes, no loop over bytes.
"""

import jax
import jax.numpy as jnp
import numpy as np

DIGITS = 9  # of an integer: any so many digits fit into int32

Text = tuple[jax.Array, jax.Array]  # (u8 [W], i32 [] its length)


def constant(words: str | bytes) -> Text:
  """Returns a fixed text."""
  data = words.encode() if isinstance(words, str) else words
  return jnp.asarray(np.frombuffer(data, np.uint8)), jnp.int32(len(data))


def one_of(words: tuple[str, ...], which: jax.Array) -> Text:
  """Returns the text number `which` of several fixed ones."""
  width = max(len(w) for w in words)
  table = [np.frombuffer(w.ljust(width).encode(), np.uint8) for w in words]
  lengths = jnp.asarray([len(w) for w in words])
  return jnp.asarray(np.stack(table))[which], lengths[which]


def either(chosen: jax.Array, a: Text, b: Text) -> Text:
  """Returns a if `chosen`, otherwise b."""
  width = max(a[0].shape[0], b[0].shape[0])
  wide = [jnp.pad(x, (0, width - x.shape[0])) for x, _ in (a, b)]
  return jnp.where(chosen, *wide), jnp.where(chosen, a[1], b[1])


def join(*parts: Text) -> Text:
  """Writes texts one after another."""
  width = sum(x.shape[0] for x, _ in parts)
  at, start = jnp.arange(width), jnp.int32(0)
  out = jnp.zeros(width, jnp.uint8)
  for x, n in parts:
    if not x.shape[0]:
      continue
    inside = (at >= start) & (at < start + n)
    out = jnp.where(inside, x[jnp.clip(at - start, 0, x.shape[0] - 1)], out)
    start = start + n
  return out, start


def first(flags: jax.Array, otherwise: jax.Array | int) -> jax.Array:
  """Returns the index of the first flag, or `otherwise`."""
  return jnp.where(jnp.any(flags), jnp.argmax(flags), otherwise)


def byte(x: jax.Array, at: jax.Array) -> jax.Array:
  """Reads the byte at an index, 0 outside."""
  inside = (at >= 0) & (at < x.shape[0])
  return jnp.where(inside, x[jnp.clip(at, 0, x.shape[0] - 1)], 0)


def digits_before(
  x: jax.Array, low: jax.Array, end: jax.Array, n: int
) -> tuple[jax.Array, jax.Array]:
  """Reads the n decimal digits before `end`, the lowest first, i32 [n]; and
  whether bytes low to end - 1 are 1 to n digits and nothing else.
  """
  k = jnp.arange(n)
  inside = k < end - low
  found = byte(x, end - 1 - k).astype(jnp.int32) - ord('0')
  digit = (found >= 0) & (found <= 9)
  fits = (end - low >= 1) & (end - low <= n)
  return jnp.where(inside & digit, found, 0), fits & jnp.all(digit | ~inside)


def integer(
  x: jax.Array, low: jax.Array, end: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Reads bytes low to end - 1 as a number without sign: (i32 [], whether they
  are 1 to DIGITS digits and nothing else).
  """
  digits, fine = digits_before(x, low, end, DIGITS)
  powers = jnp.asarray([10**i for i in range(DIGITS)], jnp.int32)
  return jnp.where(fine, jnp.sum(digits * powers), 0), fine


def decimal(digits: jax.Array, negative: jax.Array | bool = False) -> Text:
  """Writes digits, i32 [n] and the lowest first, without leading zeros."""
  n = digits.shape[0]
  size = jnp.max(jnp.where(digits > 0, jnp.arange(1, n + 1), 1))
  minus = (negative & jnp.any(digits > 0)).astype(jnp.int32)
  at = jnp.arange(n + 1)
  found = digits[jnp.clip(size - 1 - (at - minus), 0, n - 1)] + ord('0')
  out = jnp.where((at == 0) & (minus > 0), ord('-'), found)
  return jnp.where(at < size + minus, out, 0).astype(jnp.uint8), size + minus


def number(value: jax.Array) -> Text:
  """Writes an integer, i32 []."""
  powers = jnp.asarray([10**i for i in range(DIGITS + 1)], jnp.int32)
  return decimal(jnp.abs(value) // powers % 10, value < 0)


def character(code: jax.Array) -> Text:
  """Returns a text of one byte."""
  return jnp.reshape(code, 1).astype(jnp.uint8), jnp.int32(1)
