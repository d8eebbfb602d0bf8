"""The countdown kernel: parses and evaluates an expression on the device.

Host twin: `verifiers.tasks.countdown.check`, with the same limits. Three parts:

1. bytes -> at most T = 4K-1 tokens (K given numbers), by masks and one gather;
2. grammar and the each-number-once rule, by comparing neighbours and counts;
3. the value, by one scan over the T tokens with a stack of parentheses.

A level of the stack has a partial sum and a partial product. An operator or a
closing parenthesis folds one into the other, so every token costs one product
and one sum of fractions.

**Exact rationals.** A fraction is an unreduced pair (p, q), kept as residues
modulo R primes below 2^16 (products fit uint32). For n numbers of at most M,
|p|, |q| <= 2^(n-1) M^n, because |p| and |q| of a sum are at most twice the
product of its parts' bounds. So p = target * q holds iff it holds modulo all
primes once their product exceeds 2^(n-1) M^n (1 + target); `n_primes` counts
them (7 for six numbers). q = 0 is found exactly, in the same way.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import trees
from jaxrl_reason.rewards.kernels import final, token_bytes
from jaxrl_reason.verifiers.tasks import countdown, problem

PRIMES = (65521, 65519, 65497, 65479, 65449, 65447, 65437, 65423, 65419, 65413)
MAX_VALUE = 10**problem.MAX_DIGITS - 1
_NUMBER = ord('0')  # the kind of a number token; others are their own byte


def _shift(x: jax.Array, by: int) -> jax.Array:
  """Shifts columns, x[:, i - by], zero outside."""
  pad = ((0, 0), (max(by, 0), max(-by, 0)))
  x = jnp.pad(x, pad)
  return x[:, : x.shape[1] - by] if by >= 0 else x[:, -by:]


def _ends(digit: jax.Array, text: jax.Array):
  """Returns the ends of digit runs, the numbers that end there, and whether a
  run is too long: bool, i32, bool, all [N,W].
  """
  run, place, value = digit, 1, jnp.zeros(text.shape, jnp.int32)
  for back in range(problem.MAX_DIGITS):
    d = _shift(text, back).astype(jnp.int32) - ord('0')
    value += jnp.where(run, place * d, 0)
    place *= 10
    run &= _shift(digit, back + 1)
  return digit & ~_shift(digit, -1), value, run


def _nth(flags: jax.Array, n: int) -> jax.Array:
  """Finds the positions of the first n flags, i32[N,n]; W where there are
  fewer.
  """
  count = jnp.cumsum(flags, axis=1)  # [N,W]
  return (count[:, None, :] <= jnp.arange(n)[:, None]).sum(-1)


def n_primes(max_numbers: int) -> int:
  n, m = max_numbers, MAX_VALUE
  bound, product = 2 ** (n - 1) * m**n * (1 + m), 1
  for count, prime in enumerate(PRIMES, start=1):
    product *= prime
    if product > bound:
      return count
  raise ValueError(f'max_numbers={n}: more than {len(PRIMES)} primes hold')


def encode(
  example: problem.Example, *, max_numbers: int = 6
) -> dict[str, np.ndarray]:
  meta = example['meta']
  given, target = meta['numbers'], meta['target']
  if len(given) > max_numbers:
    raise ValueError(f'{len(given)} numbers; max_numbers={max_numbers}')
  if not 0 <= min([target, *given]) <= max([target, *given]) <= MAX_VALUE:
    raise ValueError(f'numbers and target are 0 to {MAX_VALUE}: {meta}')
  padded = np.full(max_numbers, -1, np.int32)  # [K]; -1 equals no number
  padded[: len(given)] = given
  return {
    'numbers': padded,
    'target': np.int32(target),
    'subset': np.bool_(meta['use'] == 'subset'),
  }


# --- tokens -------------------------------------------------------------------


class _Tokens(NamedTuple):
  kind: jax.Array  # i32[N,T]; _NUMBER, the byte of a symbol, or 0 after the end
  value: jax.Array  # i32[N,T] of a number, else -2
  fits: jax.Array  # bool[N]: legal characters, digits and number of tokens


def _tokenize(text, length, n_numbers, size) -> _Tokens:
  at = jnp.arange(text.shape[1])
  start, counts = final.answer_span(text, length)
  inside = (at >= start[:, None]) & (at < length[:, None])  # [N,W]
  digit = inside & token_bytes.is_digit(text)
  symbols = np.frombuffer(b'+-*/()', np.uint8)
  symbol = inside & (text[..., None] == symbols).any(-1)
  legal = digit | symbol | (text == ord(' ')) | ~inside
  end, value, too_long = _ends(digit, text)
  token = end | symbol
  n_tokens = token.sum(1)
  fits = counts & legal.all(1) & ~too_long.any(1)
  fits &= n_tokens <= countdown.max_tokens(n_numbers)
  where = jnp.minimum(_nth(token, size), text.shape[1] - 1)  # [N,T]
  kind = jnp.where(end, _NUMBER, text.astype(jnp.int32))
  kind = jnp.take_along_axis(kind, where, axis=1)
  value = jnp.take_along_axis(value, where, axis=1)
  present = jnp.arange(size) < n_tokens[:, None]
  kind = jnp.where(present, kind, 0)
  return _Tokens(kind, jnp.where(kind == _NUMBER, value, -2), fits)


# --- grammar ------------------------------------------------------------------


def _is_grammatical(kind: jax.Array) -> jax.Array:
  """Checks that operands and operators alternate and parentheses balance."""
  kind = jnp.pad(kind, ((0, 0), (0, 1)))  # every expression has an end
  opens, closes = kind == ord('('), kind == ord(')')
  begins = (kind == _NUMBER) | opens  # of an operand
  ends = (kind == _NUMBER) | closes
  # An operator, ')' or the end follows the end of an operand. The beginning of
  # an operand follows any other token. After the end (kind 0) nothing is
  # checked.
  after_end = _shift(ends, 1)
  after_stop = _shift(kind == 0, 1)
  fine = jnp.where(after_end, ~begins, begins) | after_stop
  depth = jnp.cumsum(opens.astype(jnp.int32) - closes, axis=1)
  balanced = (depth >= 0).all(1) & (depth[:, -1] == 0)
  return (kind[:, 0] != 0) & fine.all(1) & balanced


def _uses_given(tokens: _Tokens, given, subset) -> jax.Array:
  """Checks that every number is used exactly once, with `subset` at most
  once.
  """
  same = tokens.value[:, :, None] == given[:, None, :]  # [N,T,K]
  used = same.sum(1)  # [N,K]
  allowed = (given[:, :, None] == given[:, None, :]).sum(1)
  real = given >= 0
  exact = ((used == allowed) | ~real).all(1)
  within = ((used <= allowed) | ~real).all(1)
  known = (same.any(-1) | (tokens.kind != _NUMBER)).all(1)
  return known & jnp.where(subset, within, exact)


# --- the value ----------------------------------------------------------------


class _Fraction(NamedTuple):
  p: jax.Array  # u32[N,R] residues
  q: jax.Array


class _State(NamedTuple):
  """Level d of the stack: the sum and the product so far, and whether the next
  operand divides; `depth` is the current level."""

  total: _Fraction  # [N,D,R]
  term: _Fraction
  divides: jax.Array  # bool[N,D]
  depth: jax.Array  # i32[N]
  broken: jax.Array  # bool[N]: divided by zero


def _mul(a, b, primes):
  return (a * b) % primes


def _add(a: _Fraction, b: _Fraction, primes) -> _Fraction:
  p = (_mul(a.p, b.q, primes) + _mul(b.p, a.q, primes)) % primes
  return _Fraction(p, _mul(a.q, b.q, primes))


def _read(level: jax.Array, stack):
  """Reads one level (bool[N,D], one true) of every stack."""

  def one(x):
    hot = level.reshape(level.shape + (1,) * (x.ndim - 2))
    return jnp.where(hot, x, 0).sum(1).astype(x.dtype)

  return jax.tree.map(one, stack)


def _write(level: jax.Array, stack, new):
  def one(x, y):
    hot = level.reshape(level.shape + (1,) * (x.ndim - 2))
    return jnp.where(hot, y[:, None], x)

  return jax.tree.map(one, stack, new)


def _select(mask: jax.Array, a, b):
  """Selects a or b by row."""

  def one(x, y):
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 1)), x, y)

  return jax.tree.map(one, a, b)


def _fold(term: _Fraction, divides, operand: _Fraction, primes):
  """Computes term * operand or term / operand, and whether it divides by
  zero.
  """
  broken = divides & (operand.p == 0).all(-1)
  operand = _select(divides, _Fraction(operand.q, operand.p), operand)
  p, q = _mul(term.p, operand.p, primes), _mul(term.q, operand.q, primes)
  return _Fraction(p, q), broken


def _step(state: _State, kind, value, primes) -> _State:
  """Processes one token. The grammar is checked elsewhere; for a wrong
  expression
  the value is meaningless, and there is no error."""
  levels = jnp.arange(state.divides.shape[1])
  opens, closes = kind == ord('('), kind == ord(')')
  minus = kind == ord('-')
  sums = minus | (kind == ord('+'))
  one = jnp.ones_like(state.total.p[:, 0])
  stacks = (state.total, state.term, state.divides)
  total, term, divides = _read(levels == state.depth[:, None], stacks)
  closed = _add(total, term, primes)
  depth = state.depth + opens - closes
  there = levels == depth[:, None]

  # A number or a closed parenthesis multiplies into its level.
  total, term, divides = _select(
    closes, _read(there, stacks), (total, term, divides)
  )
  number = _Fraction(one * value[:, None].astype(jnp.uint32), one)
  product, broken = _fold(
    term, divides, _select(closes, closed, number), primes
  )
  is_operand = closes | (kind == _NUMBER)
  term = _select(is_operand, product, term)

  # + and - close the product, and - begins the next one with -1. A parenthesis
  # begins with the sum 0 and the product 1.
  total = _select(sums, closed, total)
  total = _select(opens, _Fraction(0 * one, one), total)
  unit = _Fraction(jnp.where(minus[:, None], primes - 1, one), one)
  term = _select(sums | opens, unit, term)
  divides &= ~(sums | opens | (kind == ord('*')))
  divides |= kind == ord('/')
  stacks = _write(there, stacks, (total, term, divides))
  return _State(*stacks, depth, state.broken | (is_operand & broken))


def _reaches(tokens: _Tokens, target: jax.Array, max_numbers: int):
  """Returns whether the expression's value is exactly the target."""
  n = target.shape[0]
  # K pairs of parentheses, and the level outside all of them.
  shape = (n, max_numbers + 1, n_primes(max_numbers))
  primes = jnp.array(PRIMES[: shape[2]], jnp.uint32)
  one = jnp.ones(shape, jnp.uint32)
  state = _State(
    total=_Fraction(jnp.zeros_like(one), one),
    term=_Fraction(one, one),
    divides=jnp.zeros(shape[:2], bool),
    depth=jnp.zeros(n, jnp.int32),
    broken=jnp.zeros(n, bool),
  )

  def body(state, token):
    return _step(state, *token, primes), None

  columns = (tokens.kind.T, tokens.value.T)  # [T,N]
  state, _ = jax.lax.scan(body, state, columns)
  total, term = trees.take((state.total, state.term), np.s_[:, 0])
  value = _add(total, term, primes)
  wanted = _mul(value.q, target[:, None].astype(jnp.uint32), primes)
  return (value.p == wanted).all(-1) & ~state.broken


def score(text, length, answer) -> jax.Array:
  """Scores as `jaxrl_reason.verifiers.tasks.countdown.check` does."""
  given = answer['numbers']  # [N,K]
  k = given.shape[1]
  n_numbers = (given >= 0).sum(1)
  tokens = _tokenize(text, length, n_numbers, countdown.max_tokens(k))
  right = tokens.fits & _is_grammatical(tokens.kind)
  right &= (tokens.kind == ord('(')).sum(1) <= n_numbers
  right &= _uses_given(tokens, given, answer['subset'])
  right &= _reaches(tokens, answer['target'], k)
  return right.astype(jnp.float32)
