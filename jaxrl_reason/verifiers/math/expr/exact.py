"""Computes exact values: rational numbers, and polynomials modulo a prime.

Two constants are compared as fractions. Two rational functions are compared at
random points modulo a prime of 256 bits: different functions agree there with a
probability of degree / 2^255 (Schwartz, JACM 1980), and intermediate values do
not grow. Prime and points are sampled per process, because with a public prime
p an answer could add p without a change of its residue. The bit length of
powers, factorials and binomials is bounded before they are computed.
"""

import math
from fractions import Fraction

from jaxrl_reason.verifiers.math.expr import chance
from jaxrl_reason.verifiers.math.expr.nodes import MAX_BITS, Node, Undefined
from jaxrl_reason.verifiers.math.expr.tree_walk import Evaluator, Outside

PLAIN = frozenset(('~', 'rad'))  # units worth 1
MAX_FACTORIAL = 2_000  # 19,000 bits
MAX_MODULAR_FACTORIAL = 20_000  # 5 ms


def integer(value, largest: int | None = None) -> int:
  """Returns `value` as an int, or raises Outside."""
  if value.denominator != 1:
    raise Outside('no integer')
  value = int(value)
  if largest is not None and not 0 <= value <= largest:
    raise Outside('too large, or negative')
  return value


def integer_root(value: int, degree: int) -> int | None:
  """Returns the exact root of an integer, if it has one."""
  if value < 0:
    positive_root = integer_root(-value, degree) if degree % 2 else None
    return None if positive_root is None else -positive_root
  if degree == 2:
    root = math.isqrt(value)
    return root if root * root == value else None
  if value.bit_length() > 1_000 or degree > 60:
    raise Outside('a large root')
  low, high = 0, 1 << (value.bit_length() // degree + 1)
  while low < high:  # bisection: exact for every size
    middle = (low + high) // 2
    low, high = (middle + 1, high) if middle**degree < value else (low, middle)
  return low if low**degree == value else None


def bits(value: Fraction) -> int:
  return max(value.numerator.bit_length(), value.denominator.bit_length())


class Exact(Evaluator):
  """Computes rational constants. Other nodes raise Outside."""

  def number(self, value: Fraction) -> Fraction:
    return value

  def value(self, node: Node) -> Fraction:
    found = super().value(node)
    size = bits(found)
    if size > 4 * MAX_BITS:
      raise Outside('a large number')
    if size > 1_000:  # sums and products of large numbers take time
      self.budget.spend(size // 100)
    return found

  def unit(self, base: str, factor: Fraction) -> Fraction:
    if base == 'pct':
      return factor / 100
    if base in PLAIN:
      return factor
    raise Outside(base)

  def _pow(self, node: Node) -> Fraction:
    base, exponent = node.args
    exponent = self.value(exponent)
    if base.kind == 'root':  # sqrt(2)^4
      degree, base = base.args
      exponent /= integer(self.value(degree), 60) or 1
    base = self.value(base)
    if base < 0 and exponent.denominator != 1:
      raise Outside('a root of a negative number')
    if exponent.denominator != 1:
      return self._nth_root(base, exponent.denominator) ** exponent.numerator
    return self._power(base, int(exponent))

  def _power(self, base: Fraction, exponent: int) -> Fraction:
    if base == 0 and exponent <= 0:
      raise Undefined('0 to a power <= 0')
    if abs(base) == 1:
      return base ** (exponent % 2)
    if bits(base) * abs(exponent) > MAX_BITS:
      raise Outside('a large power')
    return base**exponent

  def _nth_root(self, base: Fraction, degree: int) -> Fraction:
    above = integer_root(base.numerator, degree)
    below = integer_root(base.denominator, degree)
    if above is None or below is None:
      raise Outside('irrational')
    return Fraction(above, below)

  def _root(self, node: Node) -> Fraction:
    degree, radicand = (self.value(a) for a in node.args)
    degree = integer(degree, 60)
    if degree < 2:
      raise Outside('degree of a root')
    return self._nth_root(radicand, degree)

  def _fact(self, node: Node) -> Fraction:
    n = integer(self.value(node.args[0]), MAX_FACTORIAL)
    return Fraction(math.factorial(n))

  def _call(self, node: Node) -> Fraction:
    function = CALLS.get(node.value)
    if function is None:
      raise Outside(node.value)
    values = [self.value(a) for a in node.args]
    try:
      return Fraction(function(*values))
    except TypeError as e:  # a wrong number of arguments
      raise Outside(node.value) from e


def _binomial(n: Fraction, k: Fraction) -> int:
  return math.comb(integer(n, 10**6), integer(k, 1_000))


def _permutations(n: Fraction, k: Fraction) -> int:
  return math.perm(integer(n, 10**6), integer(k, 1_000))


def _sign(x: Fraction) -> int:
  return (x > 0) - (x < 0)


def _gcd(*xs: Fraction) -> int:
  return math.gcd(*(integer(x) for x in xs))


def _lcm(*xs: Fraction) -> int:
  return math.lcm(*(integer(x, 10**100) for x in xs[:8]))


CALLS = {
  'abs': abs,
  'floor': math.floor,
  'ceil': math.ceil,
  'sgn': _sign,
  'max': max,
  'min': min,
  'gcd': _gcd,
  'lcm': _lcm,
  'binom': _binomial,
  'perm': _permutations,
}


class Modular(Exact):
  """Computes rational functions at a point, modulo a prime.

  `salt` selects the point, and `field` the prime.
  """

  def __init__(self, budget, salt: int, field: int = 0):
    super().__init__(budget)
    self.salt = salt
    self.prime = chance.prime(field)
    self.exponents = Exact(budget)

  def value(self, node: Node) -> int:
    return Evaluator.value(self, node)

  def number(self, value: Fraction) -> int:
    if value.denominator == 1:
      return value.numerator % self.prime
    return self.divide(
      value.numerator % self.prime, value.denominator % self.prime
    )

  def divide(self, above: int, below: int) -> int:
    if below % self.prime == 0:
      raise Undefined('division by zero')
    self.budget.spend(10)
    return above * pow(below, -1, self.prime) % self.prime

  def _sym(self, node: Node) -> int:
    return self.random(node.value)

  def _opaque(self, node: Node) -> int:
    return self.random(repr(node))  # treats the node as a variable

  def _const(self, node: Node) -> int:
    # Transcendental, so a variable (pi and e together: not known to be
    # related).
    if node.value in ('pi', 'e'):
      return self.random(node.value)
    raise Outside(node.value)

  def unit(self, base: str, factor: Fraction) -> int:
    if base == 'pct' or base in PLAIN:
      return self.number(super().unit(base, factor))
    if base == 'deg':
      return self.divide(self.random('pi'), 180)
    return self.random(f'unit {base}') * self.number(factor) % self.prime

  def random(self, name: str) -> int:
    """Returns this process's residue for a name."""
    return chance.share(f'{self.salt} {name}') % self.prime

  def _add(self, node: Node) -> int:
    return super()._add(node) % self.prime

  def _mul(self, node: Node) -> int:
    product = 1
    for factor in node.args:
      product = product * self.value(factor) % self.prime
    return product

  def _neg(self, node: Node) -> int:
    return -self.value(node.args[0]) % self.prime

  def _pow(self, node: Node) -> int:
    base = self.value(node.args[0])
    exponent = integer(self.exponents.value(node.args[1]))
    self.budget.spend(1 + exponent.bit_length() // 20)
    if exponent < 0:
      base, exponent = self.divide(1, base), -exponent
    return pow(base, exponent, self.prime)

  def _root(self, node: Node) -> int:
    return self.number(self.exponents.value(node))

  def _fact(self, node: Node) -> int:
    n = integer(self.exponents.value(node.args[0]), MAX_MODULAR_FACTORIAL)
    self.budget.spend(1 + n // 20)
    product = 1
    for factor in range(2, n + 1):
      product = product * factor % self.prime
    return product

  def _call(self, node: Node) -> int:
    return self.number(self.exponents.value(node))
