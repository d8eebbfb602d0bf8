"""Kernel of a stated confidence, the device twin of `verifiers.confidence`.

Everything is masks and gathers over [N,W]; no loop over values.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.rewards.kernels import likelihood, token_bytes

_WORD, _CLOSING = b'confidence', b'</confidence>'
_LEAST, _MOST = -37, 37  # exponents of float32
_POWERS = (10.0 ** np.arange(_LEAST, _MOST + 1)).astype(np.float32)


def brier(text, length, answer, right) -> jax.Array:
  return likelihood.brier(right, stated(text, length))


def calibrated(text, length, answer, right) -> jax.Array:
  return likelihood.calibrated(right, stated(text, length))


def _ahead(text: jax.Array, k: int) -> jax.Array:
  """Returns the bytes k places later, 0 after the end."""
  return jnp.pad(text, ((0, 0), (0, k)))[:, k:]  # also if the row is shorter


def _begins(text: jax.Array, word: bytes) -> jax.Array:
  """Marks the places at which a word begins, bool [N,W]."""
  out = jnp.ones(text.shape, bool)
  for k, byte in enumerate(word):
    out &= _ahead(text, k) == byte
  return out


def _after(skipped: jax.Array) -> jax.Array:
  """Returns for every place the first place from there on that is not skipped,
  i32 [N,W].
  """
  at = jnp.arange(skipped.shape[1])
  last = skipped.shape[1] - 1  # is never skipped
  return jax.lax.cummin(jnp.where(skipped, last, at), axis=1, reverse=True)


def _take(x: jax.Array, at: jax.Array) -> jax.Array:
  return jnp.take_along_axis(x, jnp.minimum(at, x.shape[1] - 1), axis=1)


def stated(text: jax.Array, length: jax.Array) -> jax.Array:
  """Returns the last confidence that a text states as a share, f32 [N], as
  `verifiers.confidence.stated`; NaN: none.

  The share is rounded to float32.
  """
  found, *fields = _statements(text, length)
  last = found.shape[1] - 1 - jnp.argmax(found[:, ::-1], axis=1)
  fields = (_take(x, last[:, None]) for x in fields)
  of_tag, first, end, percent, goes_on = fields
  share, known = _share(text, of_tag, first, end, percent)
  return jnp.where(found.any(1) & known & ~goes_on[:, 0], share, jnp.nan)


def _statements(text, length) -> tuple[jax.Array, ...]:
  """Finds the statements of a confidence by the place of their word: (whether
  there is one, whether it is in tags, first place and end of its number,
  whether a percent sign follows), [N,W].
  """
  text = jnp.where(jnp.arange(text.shape[1]) < length[:, None], text, 0)
  text = jnp.pad(text, ((0, 0), (0, 1)))  # a last place that is no byte
  upper = (text >= ord('A')) & (text <= ord('Z'))
  text = jnp.where(upper, text + 32, text)
  space = (text == 32) | ((text >= 9) & (text <= 13))
  digit = token_bytes.is_digit(text)
  after_space, after_number = _after(space), _after(digit | (text == ord('.')))
  after_stars = _after(space | (text == ord('*')))
  before = jnp.pad(text[:, :-1], ((0, 0), (1, 0)))
  in_word = token_bytes.is_digit(before) | (before == ord('_'))
  in_word |= (before >= ord('a')) & (before <= ord('z'))
  end = jnp.arange(text.shape[1])[None] + len(_WORD)
  begins = _begins(text, _WORD)
  of_tag = begins & (before == ord('<')) & (_take(text, end) == ord('>'))
  sign = jnp.where(of_tag, end, _take(after_stars, end))
  plain = (_take(text, sign) == ord(':')) | (_take(text, sign) == ord('='))
  first = jnp.where(
    of_tag, *(_take(x, sign + 1) for x in (after_space, after_stars))
  )
  end = _take(after_number, first)
  percent = _take(after_space, end)
  has_percent = _take(text, percent) == ord('%')
  closing = _take(after_space, percent + has_percent)
  closed = _take(_begins(text, _CLOSING), closing)
  found = jnp.where(of_tag, closed, begins & ~in_word & plain)
  goes_on = ~of_tag & _take(_goes_on(text, digit, after_space), end)
  return found & (end > first), of_tag, first, end, has_percent, goes_on


def _goes_on(text, digit, after_space) -> jax.Array:
  """Marks the places at which a number goes on: a letter, ",8" or "/ 10"."""
  letter = ((text >= ord('a')) & (text <= ord('z'))) | (text == ord('_'))
  comma = (text == ord(',')) & _ahead(digit, 1)
  slash = (text == ord('/')) & _take(digit, _ahead(after_space, 1))
  return letter | comma | _take(slash, after_space)


def _share(text, of_tag, first, end, percent) -> tuple[jax.Array, jax.Array]:
  """Reads numbers as shares: (f32 [N], whether there is one, bool [N])."""
  at = jnp.arange(text.shape[1])
  inside = (at >= first) & (at < end)
  digit = inside & token_bytes.is_digit(text)
  # Dots at the end are those of a sentence, except in tags.
  after_digits = jnp.max(jnp.where(digit, at + 1, 0), axis=1, keepdims=True)
  inside &= of_tag | (at < after_digits)
  dot = inside & (text == ord('.'))
  point = jnp.where(dot.any(1), jnp.argmax(dot, 1), after_digits[:, 0])[:, None]
  place = jnp.where(at < point, point - 1 - at, point - at)
  power = jnp.asarray(_POWERS)[jnp.clip(place, _LEAST, _MOST) - _LEAST]
  worth = jnp.where(digit, text.astype(jnp.float32) - ord('0'), 0.0)
  whole = jnp.where(at < point, worth * power, 0.0).sum(1)
  rest = jnp.where(at > point, worth * power, 0.0).sum(1)
  has_rest = ((at > point) & (worth > 0)).any(1)

  def above(limit):
    return (whole > limit) | ((whole == limit) & has_rest)

  in_percent = percent[:, 0] | (above(1) & ~has_rest) | (whole >= 10)
  share = jnp.where(in_percent, (whole + rest) / 100, whole + rest)
  known = digit.any(1) & (dot.sum(1) <= 1)
  known &= ~above(jnp.where(in_percent, 100, 1))
  return jnp.minimum(share, 1.0), known
