"""Converts intervals, unions and inequalities to sets of reals.

`x > 5`, `5 < x`, `(5, inf)`, `{x | x > 5}` and `R \\ (-inf, 5]` become the same
sorted tuple of disjoint intervals with open or closed ends. Ends are compared
as expressions, so sqrt(2) is exact. Their order is computed numerically.
"""

from typing import Any, NamedTuple

from jaxrl_reason.verifiers.math.expr.exact import Exact
from jaxrl_reason.verifiers.math.expr.nodes import (
  EMPTY,
  INF,
  ZERO,
  Budget,
  Limit,
  Node,
  Undefined,
  names,
  number,
  replace,
  symbol,
)
from jaxrl_reason.verifiers.math.expr.numeric import Numeric
from jaxrl_reason.verifiers.math.expr.scalars import equal, near
from jaxrl_reason.verifiers.math.expr.tree_walk import Outside

MAX_INTERVALS = 40
NEGATIVE_INF = Node('neg', (INF,))
FLIPPED = {'<': '>', '>': '<', '<=': '>=', '>=': '<=', '=': '=', '!=': '!='}
INEQUALITIES = frozenset(('<', '>', '<=', '>=', '!='))
ORDER = INEQUALITIES | {'in', 'notin'}
LISTS = frozenset((',', 'or', 'and'))


class End(NamedTuple):
  node: Node
  value: Any  # mpf; None if it has variables


class Interval(NamedTuple):
  low: End
  low_closed: bool
  high: End
  high_closed: bool


class RealSet(NamedTuple):
  intervals: tuple[Interval, ...]
  variable: str  # '' without a variable


def is_set_like(node: Node) -> bool:
  """Returns whether a node can only be a set of reals."""
  if node == EMPTY or node.kind in ('setop', 'builder'):
    return True
  if node.kind == 'const':
    return str(node.value).startswith('set:')
  if node.kind == 'rel':
    return all(op in ORDER for op in node.value)
  if node.kind != 'seq':
    return False
  if node.value in LISTS:
    return all(is_set_like(item) for item in node.args)
  if len(node.args) != 2:
    return False
  infinite = any(a in (INF, NEGATIVE_INF) for a in node.args)
  return node.value in ('(]', '[)', '[]') or (node.value == '()' and infinite)


def same_set(a: RealSet, b: RealSet, budget: Budget) -> bool:
  if a.variable and b.variable and a.variable != b.variable:
    return False
  return len(a.intervals) == len(b.intervals) and all(
    (x.low_closed, x.high_closed) == (y.low_closed, y.high_closed)
    and _same_end(x.low, y.low, budget)
    and _same_end(x.high, y.high, budget)
    for x, y in zip(a.intervals, b.intervals)
  )


def _same_end(a: End, b: End, budget: Budget) -> bool:
  return a.node == b.node or equal(a.node, b.node, budget)


class Reader:
  """Converts nodes to sets. Other nodes raise Outside."""

  def __init__(self, budget: Budget):
    self.budget = budget
    self.numeric = Numeric(budget)
    self.mp = self.numeric.mp

  def read(self, node: Node) -> RealSet:
    if node.kind == 'const' and node.value in NAMED:
      low, closed, high = NAMED[node.value]
      return self.interval(low, closed, high, False)
    method = getattr(self, f'_{node.kind}', None)
    if method is None:
      raise Outside(node.kind)
    return method(node)

  # --- making ends and intervals -------------------------------------------

  def end(self, node: Node) -> End:
    if names(node):
      return End(node, None)
    value = self.numeric.value(node)
    if self.mp.im(value):
      raise Outside('a complex end')
    return End(node, self.mp.re(value))

  def interval(
    self, low, low_closed, high, high_closed, variable=''
  ) -> RealSet:
    low, high = self.end(low), self.end(high)
    low_closed = low_closed and not self._infinite(low)
    high_closed = high_closed and not self._infinite(high)
    single = Interval(low, low_closed, high, high_closed)
    return RealSet(self.tidy((single,)), variable)

  def _infinite(self, end: End) -> bool:
    return end.value is not None and bool(self.mp.isinf(end.value))

  def point(self, node: Node, variable='') -> RealSet:
    return self.interval(node, True, node, True, variable)

  def order(self, a: End, b: End) -> int:
    """Returns the order of two ends: -1, 1, or 0 if equal up to rounding."""
    if a.value is None or b.value is None:
      raise Outside('ends with variables')
    if near(self.mp, a.value, b.value) is True:
      return 0
    return -1 if a.value < b.value else 1

  def tidy(self, intervals) -> tuple[Interval, ...]:
    """Sorts and joins intervals that are not empty. Intervals with variables
    are not changed.
    """
    if len(intervals) > MAX_INTERVALS:
      raise Limit('too many intervals')
    if any(e.value is None for i in intervals for e in (i.low, i.high)):
      return tuple(intervals)
    kept = []
    for one in sorted(intervals, key=lambda i: (i.low.value, not i.low_closed)):
      order = self.order(one.low, one.high)
      if order > 0 or (order == 0 and not (one.low_closed and one.high_closed)):
        continue
      if kept and self._touches(kept[-1], one):
        kept[-1] = self._joined(kept[-1], one)
      else:
        kept.append(one)
    return tuple(kept)

  def _touches(self, a: Interval, b: Interval) -> bool:
    order = self.order(b.low, a.high)
    return order < 0 or (order == 0 and (b.low_closed or a.high_closed))

  def _joined(self, a: Interval, b: Interval) -> Interval:
    order = self.order(a.high, b.high)
    if order == 0:
      a = a._replace(high_closed=a.high_closed or b.high_closed)
    elif order < 0:
      a = a._replace(high=b.high, high_closed=b.high_closed)
    if self.order(a.low, b.low) == 0:
      a = a._replace(low_closed=a.low_closed or b.low_closed)
    return a

  # --- algebra -------------------------------------------------------------

  def union(self, a: RealSet, b: RealSet) -> RealSet:
    variable = self._variable(a, b)
    return RealSet(self.tidy(a.intervals + b.intervals), variable)

  def complement(self, a: RealSet) -> RealSet:
    low, closed, gaps = self.end(NEGATIVE_INF), False, []
    for one in a.intervals:
      gaps.append(Interval(low, closed, one.low, not one.low_closed))
      low, closed = one.high, not one.high_closed
    gaps.append(Interval(low, closed, self.end(INF), False))
    if any(e.value is None for g in gaps for e in (g.low, g.high)):
      raise Outside('ends with variables')
    finite = [
      g._replace(
        low_closed=g.low_closed and not self._infinite(g.low),
        high_closed=g.high_closed and not self._infinite(g.high),
      )
      for g in gaps
    ]
    return RealSet(self.tidy(finite), a.variable)

  def intersection(self, a: RealSet, b: RealSet) -> RealSet:
    if len(a.intervals) == len(b.intervals) == 1:
      simple = self._symbolic_meet(a.intervals[0], b.intervals[0])
      if simple is not None:
        return RealSet((simple,), self._variable(a, b))
    outside = self.union(self.complement(a), self.complement(b))
    return self.complement(outside)

  def _symbolic_meet(self, a: Interval, b: Interval) -> Interval | None:
    """Intersects (a, inf) and (-inf, b) to (a, b), also for variables."""
    if all(e.value is not None for i in (a, b) for e in (i.low, i.high)):
      return None
    if self._infinite(a.high) and self._infinite(b.low):
      return Interval(a.low, a.low_closed, b.high, b.high_closed)
    if self._infinite(b.high) and self._infinite(a.low):
      return Interval(b.low, b.low_closed, a.high, a.high_closed)
    return None

  def _variable(self, a: RealSet, b: RealSet) -> str:
    if a.variable and b.variable and a.variable != b.variable:
      raise Outside('two variables')
    return a.variable or b.variable

  # --- kinds of nodes ------------------------------------------------------

  def _seq(self, node: Node) -> RealSet:
    if node.value in LISTS:
      return self._list(node)
    if node.value == '{}':
      points = [self.point(item) for item in node.args]
      return RealSet(self.tidy([i for p in points for i in p.intervals]), '')
    if len(node.args) != 2 or node.value == '<>':
      raise Outside('no interval')
    low, high = node.args
    interval = self.interval(
      low, node.value[0] == '[', high, node.value[1] == ']'
    )
    if not interval.intervals:
      raise Outside('(5, 1) is a pair, no interval')
    return interval

  def _list(self, node: Node) -> RealSet:
    if not any(n.kind in ('rel', 'seq', 'setop') for n in node.args):
      return self._seq(node._replace(value='{}'))
    sets = [self.read(item) for item in node.args]
    joined = self._fold(self.union, sets)
    if node.value == 'or' or any(item.kind != 'rel' for item in node.args):
      return joined
    met = self._fold(self.intersection, sets)
    # "x < 1, x > 3" can only mean "or".
    return met if met.intervals or node.value == 'and' else joined

  def _fold(self, join, sets: list[RealSet]) -> RealSet:
    total = sets[0]
    for other in sets[1:]:
      total = join(total, other)
    return total

  def _setop(self, node: Node) -> RealSet:
    sets = [self.read(item) for item in node.args]
    if node.value == 'minus':
      return self.intersection(sets[0], self.complement(sets[1]))
    join = self.union if node.value == 'union' else self.intersection
    return self._fold(join, sets)

  def _builder(self, node: Node) -> RealSet:
    element, *conditions = node.args
    sets = [self.read(condition) for condition in conditions]
    if element.kind == 'rel':  # {x in R | ...}
      sets.append(self.read(element))
      element = element.args[0]
    join = self.union if node.value == 'or' else self.intersection
    total = self._fold(join, sets)
    if element.kind != 'sym' or total.variable not in ('', element.value):
      raise Outside('a set of something else')
    return total._replace(variable='')

  def _rel(self, node: Node) -> RealSet:
    pairs = zip(node.args, node.value, node.args[1:])
    return self._fold(self.intersection, [self._pair(*pair) for pair in pairs])

  def _pair(self, left: Node, operator: str, right: Node) -> RealSet:
    if operator in ('in', 'notin'):
      if left.kind != 'sym':
        raise Outside('no variable')
      region = self.read(right)._replace(variable=left.value)
      return self.complement(region) if operator == 'notin' else region
    if operator not in FLIPPED:
      raise Outside(operator)
    if right.kind == 'sym' and left.kind != 'sym':
      left, operator, right = right, FLIPPED[operator], left
    if left.kind == 'sym' and left.value not in names(right):
      return self.half_line(left.value, operator, right)
    if left.kind == 'call' and left.value == 'abs' and not names(right):
      return self._distance(left.args[0], operator, right)
    return self._linear(left, operator, right)

  def half_line(self, variable: str, operator: str, node: Node) -> RealSet:
    if operator == '=':
      return self.point(node, variable)
    if operator == '!=':
      return self.complement(self.point(node, variable))
    closed = operator.endswith('=')
    if operator[0] == '<':
      return self.interval(NEGATIVE_INF, False, node, closed, variable)
    return self.interval(node, closed, INF, False, variable)

  def _distance(self, inner: Node, operator: str, bound: Node) -> RealSet:
    """Solves |x - a| < c and |x - a| > c."""
    if operator not in ('<', '<=', '>', '>='):
      raise Outside('no distance')
    inside = self.intersection(
      self._pair(inner, '<' + operator[1:], bound),
      self._pair(inner, '>' + operator[1:], Node('neg', (bound,))),
    )
    if operator[0] == '<':
      return inside
    strict = '<' if operator == '>=' else '<='
    return self.complement(self._distance(inner, strict, bound))

  def _linear(self, left: Node, operator: str, right: Node) -> RealSet:
    """Solves 2x + 1 > 5: slope and root follow from the values at 0, 1
    and 2.
    """
    variables = names(left) | names(right)
    if len(variables) != 1:
      raise Outside('several variables')
    variable = symbol(variables.pop())
    difference = Node('add', (left, Node('neg', (right,))))
    exact = Exact(self.budget)
    at = [
      exact.value(replace(difference, variable, number(x))) for x in range(3)
    ]
    slope = at[1] - at[0]
    if slope == 0 or at[2] - at[1] != slope:
      raise Outside('not linear')
    operator = operator if slope > 0 else FLIPPED[operator]
    return self.half_line(variable.value, operator, number(-at[0] / slope))


NAMED = {
  'set:R': (NEGATIVE_INF, False, INF),
  'set:R+': (ZERO, False, INF),
  'set:R_+': (ZERO, False, INF),
  'set:R-': (NEGATIVE_INF, False, ZERO),
}


def read(node: Node, budget: Budget) -> RealSet:
  """Converts a node to a set of reals, or raises Outside."""
  try:
    return Reader(budget).read(node)
  except Undefined as e:
    raise Outside(str(e)) from e
