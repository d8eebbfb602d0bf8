"""Computes values with 60 digits by mpmath, at points derived from names.

mpmath's global context is not used, because all threads share its precision.
The magnitude of operands is checked before every operation, because exp or sin
of a number with a million digits takes minutes.
"""

import threading
import zlib
from fractions import Fraction

import mpmath

from jaxrl_reason.verifiers.math.expr import chance
from jaxrl_reason.verifiers.math.expr.nodes import (
  Budget,
  Node,
  Overflow,
  Undefined,
  names,
)
from jaxrl_reason.verifiers.math.expr.tree_walk import Evaluator, Outside

BITS, MORE_BITS = 200, 1_400
MAX_MAGNITUDE = 1 << 20  # log2 of any value
MAX_ANGLE = 512  # log2 of an argument of sin: the reduction needs as many bits
MAX_LOG_EXPONENT = 20  # log2 of an argument of exp
_LOCAL = threading.local()


def context(bits: int):
  """Returns the mpmath context of this thread with a precision."""
  contexts = _LOCAL.__dict__
  if bits not in contexts:
    made = mpmath.MPContext()
    made.prec = bits
    contexts[bits] = made
  return contexts[bits]


class Numeric(Evaluator):
  """Computes values at one point; `signs` maps a symbol's place to its sign."""

  cost = 2

  def __init__(
    self,
    budget: Budget,
    bits: int = BITS,
    scale=None,
    signs=None,
    fixed=None,
    secret=False,
  ):
    super().__init__(budget)
    self.mp = context(bits)
    self.scale = scale or (Fraction(1, 5), Fraction(3, 5))
    self.signs = signs or {}
    self.fixed = fixed or {}  # symbols with a fixed value
    self.secret = secret  # the point is secret, sampled per process
    self.left_reals = False  # a root or log of a negative number was computed
    if bits > BITS:
      self.cost = 6

  def number(self, value: Fraction):
    if value.denominator == 1:
      return self.mp.mpf(value.numerator)
    return self.mp.mpf(value.numerator) / value.denominator

  def random(self, name: str):
    """Returns the number of a name, from scale[0] to scale[0] + scale[1]."""
    if name in self.fixed:
      return self.number(self.fixed[name])
    low, width = self.scale
    code = chance.share(name, 4) if self.secret else zlib.crc32(name.encode())
    share = Fraction(code * 2 + 1, 2**33)
    return self.number(low + width * share) * self.signs.get(name, 1)

  def _sym(self, node: Node):
    return self.random(node.value)

  def _opaque(self, node: Node):
    return self.random(repr(node))

  def _const(self, node: Node):
    constants = {
      'pi': self.mp.pi,
      'e': self.mp.e,
      'i': self.mp.j,
      'inf': self.mp.inf,
    }
    if node.value not in constants:
      raise Outside(node.value)
    return +constants[node.value]

  def unit(self, base: str, factor: Fraction):
    if base == 'deg':
      return self.mp.pi / 180
    if base in ('~', 'rad'):
      return self.mp.mpf(1)
    if base == 'pct':
      return self.number(factor / 100)
    return self.random(f'unit {base}') * self.number(factor)

  def _mul(self, node: Node):
    return self.checked(super()._mul(node))

  def checked(self, value):
    """Returns `value`. Raises an error if it is too large or not finite."""
    if self.mp.isnan(value):
      raise Undefined('not a number')
    if (
      value
      and not self.mp.isinf(value)
      and (abs(self.mp.mag(value)) > MAX_MAGNITUDE)
    ):
      raise Overflow('the value is too large')
    return value

  def magnitude(self, value) -> int:
    """Computes log2, at least 0."""
    if self.mp.isinf(value):
      raise Undefined('infinite')
    return max(0, int(self.mp.mag(value))) if value else 0

  def _pow(self, node: Node):
    base, exponent = (self.value(a) for a in node.args)
    return self.power(base, exponent)

  def power(self, base, exponent):
    self.budget.spend(20)
    if base == 0:
      if self.mp.re(exponent) <= 0:
        raise Undefined('0 to a power <= 0')
      return self.mp.mpf(0)
    if self.magnitude(exponent) > MAX_LOG_EXPONENT:
      raise Overflow('the exponent is too large')
    log2 = abs(int(self.mp.mag(base))) + 1
    if log2 * abs(exponent) > MAX_MAGNITUDE:
      raise Overflow('the power is too large')
    return self.tracked(self.checked(self.mp.power(base, exponent)), base)

  def _root(self, node: Node):
    degree, radicand = (self.value(a) for a in node.args)
    if degree == 2:
      self.budget.spend(5)
      return self.tracked(self.mp.sqrt(radicand), radicand)
    if degree == 0:
      raise Undefined('a root of degree 0')
    odd = self.mp.isint(degree) and int(degree) % 2 == 1
    if odd and self.mp.im(radicand) == 0 and self.mp.re(radicand) < 0:
      return -self.power(-radicand, 1 / degree)  # the real root
    return self.power(radicand, 1 / degree)

  def _fact(self, node: Node):
    self.budget.spend(50)
    return self.factorial(self.value(node.args[0]))

  def factorial(self, value):
    if self.magnitude(value) > 11:
      raise Overflow('the factorial is too large')
    if self.mp.isint(value) and self.mp.re(value) < 0:
      raise Undefined('the factorial of a negative integer')
    return self.checked(self.mp.gamma(value + 1))

  def _call(self, node: Node):
    self.budget.spend(20)
    values = [self.value(a) for a in node.args]
    function = FUNCTIONS.get(node.value)
    if node.value == 'conj' and names(node):
      function = None  # a variable may be complex, but its test points are real
    try:
      if function is None:
        return self.unknown(node.value, values)
      return self.checked(function(self, *values))
    except (ValueError, ZeroDivisionError) as e:  # mpmath's poles
      raise Undefined(str(e)) from e
    except TypeError as e:  # a wrong number of arguments, or complex order
      raise Outside(node.value) from e

  def unknown(self, name: str, values):
    """Computes f(x) of an undefined function, by some smooth function of x."""
    total = self.random(f'function {name}')
    for i, value in enumerate(values):
      total = total + SINE(self, value * (i + 2) + total)
    return total

  def ln(self, value):
    if value == 0:
      raise Undefined('log 0')
    return self.tracked(self.mp.log(value), value)

  def tracked(self, result, argument):
    """Records a complex result of a real argument, outside the real domain."""
    if self.mp.im(result) and not self.mp.im(argument):
      self.left_reals = True
    return result


def _bounded(name: str, limit: int):
  """Returns mpmath's function, for arguments of at most `limit` bits."""

  def call(self, value):
    if self.magnitude(value) > limit:
      raise Overflow(f'{name} of a large number')
    return self.tracked(getattr(self.mp, name)(value), value)

  return call


SINE = _bounded('sin', MAX_ANGLE)


def _stepped(name: str):
  """Returns floor or ceil, which keeps values that are integers up to
  rounding.
  """

  def call(self, value):
    nearest = self.mp.nint(value)
    if abs(value - nearest) < self.mp.ldexp(1, -self.mp.prec // 2):
      return nearest
    return getattr(self.mp, name)(value)

  return call


def _of_mp(name: str):
  """Returns mpmath's function, for any argument."""

  def call(self, value):
    return getattr(self.mp, name)(value)

  return call


def _plain(function):
  """Returns a Python function that accepts mpmath's numbers."""

  def call(self, *values):
    return function(*values)

  return call


def _lg(self, value):
  return self.ln(value) / self.mp.log(10)


def _log(self, value, base=None):
  if base is None:
    return self.ln(value)
  below = self.ln(base)
  if below == 0:
    raise Undefined('log base 1')
  return self.ln(value) / below


def _binom(self, n, k):
  if max(self.magnitude(n), self.magnitude(k)) > 11:
    raise Overflow('the binomial is too large')
  return self.mp.binomial(n, k)


def _perm(self, n, k):
  return self.factorial(n) / self.factorial(n - k)


FUNCTIONS = {
  'ln': Numeric.ln,
  'log': _log,
  'lg': _lg,
  'abs': _plain(abs),
  'conj': _of_mp('conj'),
  'floor': _stepped('floor'),
  'ceil': _stepped('ceil'),
  'sgn': _of_mp('sign'),
  'max': _plain(max),
  'min': _plain(min),
  'binom': _binom,
  'perm': _perm,
}
FUNCTIONS |= {
  name: _bounded(name, MAX_ANGLE) for name in 'sin cos tan cot sec csc'.split()
}
FUNCTIONS |= {
  name: _bounded(name, MAX_LOG_EXPONENT)
  for name in 'exp sinh cosh tanh coth sech csch'.split()
}
FUNCTIONS |= {
  f'arc{name}': _bounded(f'a{name}', MAX_ANGLE)
  for name in 'sin cos tan cot sec csc sinh cosh tanh'.split()
}
