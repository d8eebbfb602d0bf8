"""A calculator: the observation of `<<12*7=` is `84>>`.

  <<123456789012345678*9=1111111101111111102>>     + - * of up to 18 digits
  <<17/5=3r2>>   <<-17/5=-3r-2>>   <<15/5=3>>      quotient and remainder
  <<1/0=error zero>>   <<2*=error syntax>>         more digits: error digits

A turn that ends in `=` is a call; any other turn ends the episode. A call costs
`PRICE`, so a policy learns to call only if necessary. Numbers are arrays of
decimal digits, the lowest first. In a division the remainder and the divisor
are pairs of 32-bit words (10 times 18 digits is below 2^64).
"""

import functools

import jax
import jax.numpy as jnp

from jaxrl_reason.envs import row_bytes as text_lib
from jaxrl_reason.envs.env import Env, Step

K = 18  # digits of an operand
PRICE = 0.05  # of a call, subtracted from the reward
ERRORS = ('error syntax', 'error zero', 'error digits')
_OPS = '+-*/'


def _carried(x: jax.Array) -> jax.Array:
  """Propagates carries: sums of places i32 [n] -> digits of a number >= 0."""

  def place(carry, value):
    value = value + carry
    return value // 10, value % 10

  return jax.lax.scan(place, x[0] * 0, x)[1]


def _less(a: jax.Array, b: jax.Array) -> jax.Array:
  """Returns whether digits a are a smaller number than digits b."""
  highest = jnp.max(jnp.where(a != b, jnp.arange(a.shape[0]), -1))
  return (highest >= 0) & (a[highest] < b[highest])


def _sum(a, b, a_minus, b_minus):
  """Computes a + b with signs: (digits [K+1], whether negative)."""
  a, b = (jnp.pad(x, (0, 1)) for x in (a, b))
  smaller = _less(a, b)
  gap = jnp.where(smaller, b - a, a - b)
  same = a_minus == b_minus
  minus = jnp.where(same, a_minus, jnp.where(smaller, b_minus, a_minus))
  return _carried(jnp.where(same, a + b, gap)), minus


def _product(a, b) -> jax.Array:
  """Computes the digits [2K] of a * b."""
  place = jnp.arange(2 * K)[:, None] - jnp.arange(K)  # digits of b
  inside = (place >= 0) & (place < K)
  terms = jnp.where(inside, a * b[jnp.clip(place, 0, K - 1)], 0)
  return _carried(terms.sum(axis=1))


def _tenfold(x, digit):
  """Computes 10 x + digit for a pair of words (high, low)."""
  high, low = x
  small = (low & 0xFFFF) * 10 + digit.astype(jnp.uint32)
  large = (low >> 16) * 10 + (small >> 16)
  return high * 10 + (large >> 16), (large << 16) | (small & 0xFFFF)


def _words(digits: jax.Array):
  zero = digits[0].astype(jnp.uint32) * 0

  def place(x, digit):
    return _tenfold(x, digit), None

  return jax.lax.scan(place, (zero, zero), digits, reverse=True)[0]


def _quotient(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Computes (a // b, a % b) as digits [K]; b is not 0."""
  divisor = _words(b)

  def place(rest, digit):
    rest, times = _tenfold(rest, digit), 0
    for _ in range(9):
      high, low = rest
      fits = high > divisor[0]
      fits |= (high == divisor[0]) & (low >= divisor[1])
      less = high - divisor[0] - (low < divisor[1]), low - divisor[1]
      rest = tuple(jnp.where(fits, x, y) for x, y in zip(less, rest))
      times = times + fits
    return rest, times.astype(jnp.int32)

  zero = divisor[0] * 0
  _, digits = jax.lax.scan(place, (zero, zero), a, reverse=True)
  return digits, _carried(a - _product(digits, b)[:K])


def _operand(x, low, end):
  """Parses an operand: (digits [K], minus, is a number, is too long)."""
  minus = text_lib.byte(x, low) == ord('-')
  low = low + minus
  digits, fine = text_lib.digits_before(x, low, end, K)
  at = jnp.arange(x.shape[0])
  is_digit = (x >= ord('0')) & (x <= ord('9'))
  only = jnp.all(is_digit | (at < low) | (at >= end))
  return digits, minus, fine, (end - low > K) & only


def evaluate(x: jax.Array, low: jax.Array, end: jax.Array):
  """Computes the expression in bytes low to end - 1.

  Returns:
    (Text of the result or the error, whether it is an error).
  """
  at = jnp.arange(x.shape[0])
  symbol = functools.reduce(jnp.logical_or, [x == ord(o) for o in _OPS])
  op = text_lib.first(symbol & (at > low) & (at < end), end)
  a, a_minus, a_fine, a_long = _operand(x, low, op)
  b, b_minus, b_fine, b_long = _operand(x, op + 1, end)
  kind = text_lib.byte(x, op)
  minus = kind == ord('-')
  total = text_lib.decimal(*_sum(a, b, a_minus, b_minus ^ minus))
  product = text_lib.decimal(_product(a, b), a_minus ^ b_minus)
  whole, rest = _quotient(a, b)
  quotient = text_lib.decimal(whole, a_minus ^ b_minus)
  remainder = text_lib.join(
    quotient, text_lib.constant('r'), text_lib.decimal(rest, a_minus)
  )
  quotient = text_lib.either(jnp.any(rest > 0), remainder, quotient)
  result = text_lib.either(kind == ord('*'), product, total)
  result = text_lib.either(kind == ord('/'), quotient, result)
  long = a_long | b_long
  syntax = ~(a_fine | a_long) | ~(b_fine | b_long)
  zero = (kind == ord('/')) & ~jnp.any(b > 0)
  which = jnp.where(syntax, 0, jnp.where(long, 2, 1))
  wrong = syntax | long | zero
  return text_lib.either(wrong, text_lib.one_of(ERRORS, which), result), wrong


def _encode(example: dict) -> dict:
  del example  # a calculator has no problem data
  return {}


def _reset(encoded: dict, key: jax.Array):
  del encoded, key
  return ()


def _step(state, text, length) -> Step:
  at = jnp.arange(text.shape[0])
  called = text_lib.byte(text, length - 1) == ord('=')
  after = jnp.append(text[1:], 0)
  opens = (text == ord('<')) & (after == ord('<')) & (at + 1 < length)
  low = jnp.max(jnp.where(opens, at + 2, -1))
  # The call of a text that was cut is incomplete.
  called |= length > text.shape[0]
  whole = (low >= 0) & (length <= text.shape[0])
  answer, wrong = evaluate(text, low, length - 1)
  wrong |= ~whole
  answer = text_lib.either(whole, answer, text_lib.constant(ERRORS[0]))
  answer = text_lib.join(answer, text_lib.constant('>>'))
  price = jnp.where(called, -PRICE, 0.0)
  return Step(state, *answer, price, ~called, called & wrong)


ENV = Env(
  encode=_encode,
  reset=_reset,
  step=_step,
  alphabet='0123456789-r>' + ''.join(ERRORS),
  stop=b'=',
)
