"""Compares equations and inequalities up to a constant factor."""

from fractions import Fraction

from jaxrl_reason.verifiers.math.expr import scalars
from jaxrl_reason.verifiers.math.expr.exact import Modular
from jaxrl_reason.verifiers.math.expr.nodes import (
  ONE,
  Budget,
  Node,
  Overflow,
  Undefined,
  names,
)
from jaxrl_reason.verifiers.math.expr.numeric import Numeric
from jaxrl_reason.verifiers.math.expr.tree_walk import Outside

# (low, width) of points. Values may be too large or undefined at some of them.
POINTS = tuple(
  {'scale': (low + Fraction(1, 7), Fraction(2))} for low in (1, 3, 6, 0)
)
ENOUGH = 3


def difference(equation: Node) -> Node:
  left, right = equation.args
  return Node('add', (left, Node('neg', (right,))))


def proportional(
  a: Node, b: Node, budget: Budget, *, positive: bool = False
) -> bool:
  """Returns whether a / b is a constant other than 0, or above 0 if
  `positive`.
  """
  if names(a) != names(b) or not names(a):
    return False
  if not positive:
    a, b = cleared(a)[0], cleared(b)[0]
    try:
      return _proportional_modular(a, b, budget)
    except Outside:
      pass  # not a polynomial: at real points, below
  ratios = [_ratio(a, b, budget, point) for point in POINTS]
  secret = _ratio(a, b, budget, {'secret': True})
  ratios = [ratio for ratio in ratios if ratio is not None]
  if len(ratios) < ENOUGH:
    return False
  ratios += [secret] if secret is not None else []
  first = ratios[0]
  mp = Numeric(budget).mp
  return all(scalars.near(mp, first, r) is True for r in ratios[1:]) and (
    not positive or (scalars.is_real(mp, first) and mp.re(first) > 0)
  )


def _proportional_modular(a: Node, b: Node, budget: Budget) -> bool:
  pairs = []
  for salt in (1, 2, 3):
    domain = Modular(budget, salt)
    try:
      pairs.append((domain.value(a), domain.value(b)))
    except Undefined:
      return False
  (x, y), *rest = pairs
  domain = Modular(budget, 0)
  same = all(domain.number(x * v) == domain.number(u * y) for u, v in rest)
  return same and x != 0 and y != 0


def _ratio(a: Node, b: Node, budget: Budget, point: dict):
  domain = Numeric(budget, **point)
  try:
    x, y = domain.value(a), domain.value(b)
  except (ArithmeticError, Overflow):
    return None
  return x / y if x and y else None


def cleared(node: Node) -> tuple[Node, Node]:
  """Returns (numerator, denominator) of sums and products of quotients."""
  if node.kind == 'div':
    above, below = (cleared(a) for a in node.args)
    return _times(above[0], below[1]), _times(above[1], below[0])
  if node.kind == 'neg':
    above, below = cleared(node.args[0])
    return Node('neg', (above,)), below
  if node.kind not in ('add', 'mul'):
    return _power(node)
  total = cleared(node.args[0])
  for arg in node.args[1:]:
    other = cleared(arg)
    below = _times(total[1], other[1])
    if node.kind == 'mul':
      total = _times(total[0], other[0]), below
    else:
      crossed = _times(total[0], other[1]), _times(other[0], total[1])
      total = Node('add', crossed), below
  return total


def _power(node: Node) -> tuple[Node, Node]:
  if node.kind == 'pow' and node.args[1].kind == 'neg':
    return ONE, Node('pow', (node.args[0], node.args[1].args[0]))
  return node, ONE


def _times(a: Node, b: Node) -> Node:
  if a == ONE or b == ONE:
    return b if a == ONE else a
  return Node('mul', (a, b))
