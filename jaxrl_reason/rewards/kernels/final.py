"""Kernels about the final answer: integer, text and format.

They follow `verifiers.tasks.problem` byte by byte; its checkers are their host
twins. Everything is masks and reductions over [N,W]: no loop, no
data-dependent shape.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.rewards.kernels import token_bytes
from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.tasks import problem

_MARKER = ord(problem.MARKER)


def answer_span(
  text: jax.Array, length: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the start of the answer (i32[N]), and whether it is valid
  (bool[N]): there is exactly one marker and the text was not cut.
  """
  at = jnp.arange(text.shape[1])
  marker = (text == _MARKER) & (at < length[:, None])  # [N,W]
  start = jnp.argmax(marker, axis=1) + 1
  return start, (marker.sum(1) == 1) & (length <= text.shape[1])


def _first(flags: jax.Array, otherwise: jax.Array) -> jax.Array:
  """Returns the index of the first flag in each row, or `otherwise`."""
  return jnp.where(flags.any(1), jnp.argmax(flags, axis=1), otherwise)


def _byte(text: jax.Array, at: jax.Array, length: jax.Array) -> jax.Array:
  """Returns the byte at `at`[N] or `at`[N,K]; 0 at and after the end."""
  index = at.reshape(at.shape[0], -1)
  found = jnp.take_along_axis(
    text, jnp.minimum(index, text.shape[1] - 1), axis=1
  )
  return jnp.where(index < length[:, None], found, 0).reshape(at.shape)


def _same(text, start, size, length, answer, n_answer) -> jax.Array:
  """Returns whether the `size` bytes from `start` are the answer's bytes."""
  k = jnp.arange(answer.shape[1])
  found = _byte(text, start[:, None] + k, length)  # [N,K]
  equal = (found == answer) | (k >= n_answer[:, None])
  return (size == n_answer) & equal.all(1)


def _padded(data: bytes, size: int, what: str) -> np.ndarray:
  if len(data) > size:
    raise ValueError(f'answer of {len(data)} bytes; {what}={size} is too small')
  return np.frombuffer(data.ljust(size, b'\0'), np.uint8).copy()


def encode_integer(
  example: problem.Example, *, max_digits: int = 20
) -> dict[str, np.ndarray]:
  answer = problem.canonical_integer(example['answer'])
  if answer is None:
    raise ValueError(f'not an integer answer: {example["answer"]!r}')
  digits = answer.lstrip('-').lstrip('0').encode()
  return {
    'digits': _padded(digits, max_digits, 'max_digits'),  # [K]
    'n_digits': np.int32(len(digits)),
    'negative': np.bool_(answer.startswith('-')),
  }


def score_integer(text, length, answer) -> jax.Array:
  """Scores as `problem.check_integer` does: spaces, sign, digits, end."""
  at = jnp.arange(text.shape[1])
  inside = at < length[:, None]
  start, counts = answer_span(text, length)
  body = inside & (at >= start[:, None]) & (text != ord(' '))
  first = _first(body, length)
  sign = _byte(text, first, length)
  minus = sign == ord('-')
  first += minus | (sign == ord('+'))
  number = inside & (at >= first[:, None])
  well_formed = (first < length) & (token_bytes.is_digit(text) | ~number).all(1)
  # Without leading zeros; zero has no digits and no sign.
  first = _first(number & (text != ord('0')), length)
  size = length - first
  equal = _same(text, first, size, length, answer['digits'], answer['n_digits'])
  equal &= (minus & (size > 0)) == answer['negative']
  return (counts & well_formed & equal).astype(jnp.float32)


def encode_text(
  example: problem.Example, *, max_bytes: int = 64
) -> dict[str, np.ndarray]:
  answer = example['answer'].encode()
  return {
    'bytes': _padded(answer, max_bytes, 'max_bytes'),  # [K]
    'n_bytes': np.int32(len(answer)),
  }


def score_text(text, length, answer) -> jax.Array:
  """Scores as `problem.check_text` does: the answer's bytes and no more."""
  start, counts = answer_span(text, length)
  equal = _same(
    text, start, length - start, length, answer['bytes'], answer['n_bytes']
  )
  return (counts & equal).astype(jnp.float32)


def encode_format(example: problem.Example) -> dict[str, np.ndarray]:
  allowed = np.zeros(256, bool)
  chars = tasks.get(example['task']).answer_chars
  allowed[np.frombuffer(chars.encode('ascii'), np.uint8)] = True
  return {'allowed': allowed}  # [256]


def score_format(text, length, answer) -> jax.Array:
  """Scores as `tasks.check_format` does: one marker, then allowed bytes
  only.
  """
  at = jnp.arange(text.shape[1])
  start, counts = answer_span(text, length)
  allowed = jnp.take_along_axis(
    answer['allowed'], text.astype(jnp.int32), axis=1
  )
  inside = (at >= start[:, None]) & (at < length[:, None])
  well_formed = (start < length) & (allowed | ~inside).all(1)
  return (counts & well_formed).astype(jnp.float32)


def _mix(x: jax.Array) -> jax.Array:
  """Computes a bijection of u32 in which every bit depends on every bit: the
  finaliser of MurmurHash3, by A. Appleby (public domain)."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)


def _ids(text, place, inside) -> jax.Array:
  """Computes ids i32[N] in [0, 2^31), equal for equal bytes at equal places.
  They
  are a sum over places that wraps, so bytes are processed in parallel."""
  at = place.astype(jnp.uint32) * 256 + text + 1
  total = jnp.where(inside, _mix(at), 0).sum(1, dtype=jnp.uint32)
  return (_mix(total) >> 1).astype(jnp.int32)


def bytes_ids(data: jax.Array, n_bytes: jax.Array) -> jax.Array:
  """Returns the `answer_ids` of answers u8[N,K] that are n_bytes[N] long."""
  place = jnp.broadcast_to(jnp.arange(data.shape[1]), data.shape)
  return _ids(data, place, place < n_bytes[:, None])


def answer_ids(text: jax.Array, length: jax.Array) -> jax.Array:
  """Computes ids of the final answers, i32[N], equal for equal answers; -1
  without an answer (no marker, several, no text after it, or a text that was
  cut).

  Two different answers have the same id with a probability of 2^-31.
  """
  at = jnp.arange(text.shape[1])
  start, counts = answer_span(text, length)
  inside = (at >= start[:, None]) & (at < length[:, None])
  ids = _ids(text, at - start[:, None], inside)
  return jnp.where(counts & (start < length), ids, -1)
