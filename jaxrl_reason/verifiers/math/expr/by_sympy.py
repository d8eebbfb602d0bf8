"""Compares sums, integrals and limits by sympy.

sympy's objects are built from the tree, never from a string. sympy bounds
neither time nor memory, so this runs only in a worker of the pool, which can be
killed, for `math.symbolic.reward`.
"""

import sympy

from jaxrl_reason.verifiers.math.expr.nodes import INF, Budget, Node, symbol
from jaxrl_reason.verifiers.math.expr.tree_walk import Evaluator, Outside

MAX_NODES = 80
MAX_EXPONENT = 1_000
FUNCTIONS = {
  'ln': sympy.log,
  'log': sympy.log,
  'abs': sympy.Abs,
  'exp': sympy.exp,
  'floor': sympy.floor,
  'ceil': sympy.ceiling,
  'sgn': sympy.sign,
  'conj': sympy.conjugate,
  'binom': sympy.binomial,
  'max': sympy.Max,
  'min': sympy.Min,
} | {
  name: getattr(sympy, name.replace('arc', 'a'))
  for name in (
    'sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot '
    'arcsec arccsc arcsinh arccosh arctanh'
  ).split()
}
CONSTANTS = {'pi': sympy.pi, 'e': sympy.E, 'i': sympy.I, 'inf': sympy.oo}


class Builder(Evaluator):
  """Converts trees to sympy expressions."""

  def number(self, value):
    return sympy.Rational(value.numerator, value.denominator)

  def divide(self, above, below):
    return above / below

  def unit(self, base, factor):
    return sympy.Symbol(f'unit {base}') * self.number(factor)

  def _sym(self, node: Node):
    return sympy.Symbol(node.value)

  def _const(self, node: Node):
    if node.value not in CONSTANTS:
      raise Outside(node.value)
    return CONSTANTS[node.value]

  def _pow(self, node: Node):
    base, exponent = (self.value(a) for a in node.args)
    return base ** self._small(exponent)

  def _small(self, value):
    """Bounds exponents, since sympy computes integer powers of any size."""
    if value.is_number and not abs(value) <= MAX_EXPONENT:
      raise Outside('a large exponent')
    return value

  def _root(self, node: Node):
    degree, radicand = (self.value(a) for a in node.args)
    return sympy.root(radicand, degree)

  def _fact(self, node: Node):
    return sympy.factorial(self._small(self.value(node.args[0])))

  def _call(self, node: Node):
    values = [self.value(a) for a in node.args]
    function = FUNCTIONS.get(node.value) or sympy.Function(node.value)
    return function(*values)

  def _opaque(self, node: Node):
    builder = getattr(self, f'_{node.value}', None)
    if builder is None:
      raise Outside(node.value)
    return builder(node.args)

  def _range(self, args):
    """Returns (k, 1, n) of the scripts k = 1 and n."""
    start, end = args[0], args[1]
    if start.kind != 'rel' or start.value != ('=',):
      raise Outside('the range')
    return tuple(self.value(n) for n in (*start.args, end))

  def _sum(self, args):
    return sympy.Sum(self.value(args[-1]), self._range(args)).doit()

  def _prod(self, args):
    return sympy.Product(self.value(args[-1]), self._range(args)).doit()

  def _lim(self, args):
    approach = args[0]
    if approach.kind != 'rel' or approach.value != ('to',):
      raise Outside('the limit')
    variable, point = (self.value(n) for n in approach.args)
    return sympy.limit(self.value(args[-1]), variable, point)

  def _int(self, args):
    *bounds, body = args
    factors = body.args if body.kind == 'mul' else (body,)
    if len(factors) < 2 or factors[-2] != symbol('d'):
      raise Outside('the variable of integration')
    variable = self.value(factors[-1])
    integrand = sympy.prod([self.value(f) for f in factors[:-2]])
    if not bounds:
      return sympy.integrate(integrand, variable)
    low, high = (self.value(b) for b in bounds)
    return sympy.integrate(integrand, (variable, low, high))


def equal(a: Node, b: Node) -> bool:
  """Returns whether sympy finds the difference to be zero."""
  if any(sum(1 for _ in n.walk()) > MAX_NODES or n == INF for n in (a, b)):
    return False
  build = Builder(Budget())
  difference = build.value(a) - build.value(b)
  return difference == 0 or sympy.simplify(difference) == 0
