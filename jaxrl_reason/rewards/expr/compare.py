"""Are two answers the same? Lists, tuples, sets, equations, matrices.

What is allowed to differ is what question and answer leave open: the order
of solutions, `x = 5` for `5`, (1, 2) for `1, 2` in that order, the bound
variable of a set, an equation's constant factor. What is not: brackets of
intervals, the number of elements, the order in a tuple.
"""

import itertools

from jaxrl_reason.rewards.expr import scalars, sets
from jaxrl_reason.rewards.expr.evaluate import Outside
from jaxrl_reason.rewards.expr.exact import Modular
from jaxrl_reason.rewards.expr.nodes import (
  ONE,
  ZERO,
  Budget,
  Limit,
  Node,
  Undefined,
  names,
  replace,
  symbol,
)
from jaxrl_reason.rewards.expr.numeric import Numeric

MAX_ITEMS = 40
MAX_SIGNS = 4  # plus-minus signs in one expression: 16 values
BARE = frozenset((',', 'or', 'and'))
EQUALITY = frozenset(('=', '~'))
NUMBER_SETS = frozenset('ZNQRC')
AXES = tuple(symbol(f'unit vector {axis}') for axis in 'ijk')


def equal(a: Node, b: Node, budget: Budget) -> bool:
  """Symmetric: the same answer, whichever is the gold one."""
  a, b = tidy(a, b)
  if a == b:
    return True
  return _dispatch(a, b, budget)


def _dispatch(a: Node, b: Node, budget: Budget) -> bool:
  budget.spend(5)
  if a.kind == 'matrix' or b.kind == 'matrix':
    return _matrices(a, b, budget)
  if sets.is_set_like(a) or sets.is_set_like(b):
    outcome = _sets(a, b, budget)
    if outcome is not None:
      return outcome
  if is_equation(a) and is_equation(b):
    return _equations(a, b, budget)
  if is_equation(a) or is_equation(b):
    value, other = (a, b) if is_equation(a) else (b, a)
    return any(equal(v, other, budget) for v in values_of(value, other))
  if is_many(a) or is_many(b):
    return _many(a, b, budget)
  if is_tuple(a) and is_tuple(b):
    return _brackets(a) == _brackets(b) and _in_order(a.args, b.args, budget)
  if is_tuple(a) != is_tuple(b):
    return _vector(a, b, budget)
  if {a.kind, b.kind} & {'rel', 'opaque', 'builder', 'setop'}:
    return _same_shape(a, b, budget)
  return scalars.equal(a, b, budget)


# --- dress -----------------------------------------------------------------


def tidy(a: Node, b: Node) -> tuple[Node, Node]:
  """Conditions dropped, free integers renamed, one-element sets opened."""
  a, integers_a = _without_conditions(a)
  b, integers_b = _without_conditions(b)
  a, b = _opened(a), _opened(b)
  return _renamed(a, b, integers_a, integers_b)


def _opened(node: Node) -> Node:
  while node.kind == 'seq' and len(node.args) == 1:
    node = node.args[0]
  return node


def _is_condition(node: Node) -> bool:
  """k in Z, x in R."""
  return (
    node.kind == 'rel'
    and node.value == ('in',)
    and node.args[1].kind in ('const', 'sym')
    and str(node.args[1].value).removeprefix('set:')[:1] in NUMBER_SETS
  )


def _without_conditions(node: Node) -> tuple[Node, list[str]]:
  """'x = k pi, k in Z' as (x = k pi, ['k'])."""
  if node.kind == 'builder':
    kept = [c for c in node.args[1:] if not _is_condition(c)]
    dropped = [c for c in node.args[1:] if _is_condition(c)]
    if dropped and not kept and node.args[0].kind == 'rel':
      node = node.args[0]  # {x | x = k pi, k in Z} written as {x = k pi | ...}
    elif dropped and kept:
      node = node._replace(args=(node.args[0], *kept))
  elif node.kind == 'seq' and node.value in BARE:
    dropped = [c for c in node.args if _is_condition(c)]
    kept = [c for c in node.args if not _is_condition(c)]
    if not dropped or not kept:
      return node, []
    node = kept[0] if len(kept) == 1 else node._replace(args=tuple(kept))
  else:
    return node, []
  return node, [c.args[0].value for c in dropped if c.args[0].kind == 'sym']


def _renamed(a: Node, b: Node, integers_a: list, integers_b: list):
  """n pi and k pi are the same family when n or k was declared an integer."""
  own_a, own_b = names(a) - names(b), names(b) - names(a)
  if len(own_a) == len(own_b) == 1 and (integers_a or integers_b):
    old, new = own_a.pop(), own_b.pop()
    if old in integers_a or new in integers_b:
      a = replace(a, symbol(old), symbol(new))
  return a, b


# --- equations -------------------------------------------------------------


def is_equation(node: Node) -> bool:
  return node.kind == 'rel' and all(op in EQUALITY for op in node.value)


def is_name(node: Node) -> bool:
  """x, f(x), (x, y), AB, angle A: what an answer can be the value of."""
  if node.kind == 'sym':
    return True
  if node.kind == 'call':
    return True
  if node.kind in ('seq', 'mul'):
    return all(a.kind == 'sym' for a in node.args) and (
      node.kind == 'seq' or all(a.value.isupper() for a in node.args)
    )
  return node.kind == 'opaque'


def values_of(equation: Node, other: Node) -> list[Node]:
  """What `x = 5` says when it is held against `5`."""
  first, *rest = equation.args
  if '~' in equation.value:
    return [n for n in equation.args if not is_name(n)]
  if is_name(first):
    return [rest[-1]]
  if is_name(rest[-1]):
    return [first]
  if not names(equation):
    return [rest[-1]]  # 2 + 3 = 5
  return []


def _equations(a: Node, b: Node, budget: Budget) -> bool:
  if len(a.args) > 2 or len(b.args) > 2:  # x = 2 + 3 = 5
    return is_name(a.args[0]) == is_name(b.args[0]) and (
      (not is_name(a.args[0]) or a.args[0] == b.args[0])
      and equal(a.args[-1], b.args[-1], budget)
    )
  (left_a, right_a), (left_b, right_b) = a.args, b.args
  if left_a == left_b and is_name(left_a):
    if equal(right_a, right_b, budget):
      return True
  elif (
    is_name(left_a) and is_name(left_b) and '' in (left_a.value, left_b.value)
  ):
    return equal(right_a, right_b, budget)
  elif _both_functions(a, b) and equal(right_a, right_b, budget):
    return True
  plain = not any(n.has('seq', 'rel', 'matrix', 'setop') for n in (a, b))
  return plain and proportional(_difference(a), _difference(b), budget)


def _both_functions(a: Node, b: Node) -> bool:
  """y = 2x and f(x) = 2x: named differently, and not just a number."""
  lefts = a.args[0], b.args[0]
  return (
    all(is_name(n) for n in lefts)
    and any(n.kind == 'call' for n in lefts)
    and bool(names(a.args[1]))
  )


def _difference(equation: Node) -> Node:
  left, right = equation.args
  return Node('add', (left, Node('neg', (right,))))


def proportional(
  a: Node, b: Node, budget: Budget, *, positive: bool = False
) -> bool:
  """Is a / b a constant other than 0 (above 0 if `positive`)?"""
  if names(a) != names(b) or not names(a):
    return False
  if not positive:
    try:
      return _proportional_modular(a, b, budget)
    except Outside:
      pass  # not a polynomial: at real points, below
  ratios = [_ratio(a, b, budget, salt) for salt in range(3)]
  if None in ratios:
    return False
  first = ratios[0]
  mp = Numeric(budget).mp
  return all(
    scalars.near(mp, first, r, final=False) is True for r in ratios[1:]
  ) and (not positive or (scalars.is_real(mp, first) and mp.re(first) > 0))


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


def _ratio(a: Node, b: Node, budget: Budget, salt: int):
  low = (1, 3, 6)[salt]
  domain = Numeric(budget, scale=(low + scalars.Fraction(1, 7), 2))
  try:
    x, y = domain.value(a), domain.value(b)
  except ArithmeticError:
    return None
  return x / y if x and y else None


# --- several values --------------------------------------------------------


def is_many(node: Node) -> bool:
  """A bare or braced list, or something with plus-minus signs."""
  if node.kind == 'seq':
    return node.value in BARE or node.value == '{}'
  return node.kind != 'seq' and node.has('pm')


def is_tuple(node: Node) -> bool:
  return node.kind == 'seq' and node.value not in BARE and node.value != '{}'


def _brackets(node: Node) -> str:
  return '()' if node.value == '<>' else node.value


def expand(node: Node) -> list[Node]:
  """The values of an expression with plus-minus signs."""
  signs = [n for n in node.walk() if n.kind == 'pm']
  if not signs:
    return [node]
  if len(signs) > MAX_SIGNS:
    raise Limit('too many plus-minus signs')
  # With a minus-plus, all signs move together.
  if any(n.value < 0 for n in signs):
    return [_signed(node, iter([s] * len(signs))) for s in (1, -1)]
  choices = itertools.product((1, -1), repeat=len(signs))
  return [_signed(node, iter(choice)) for choice in choices]


def _signed(node: Node, choice) -> Node:
  if node.kind == 'pm':
    positive = next(choice) * node.value > 0
    inner = _signed(node.args[0], choice)
    return inner if positive else Node('neg', (inner,))
  return node._replace(args=tuple(_signed(a, choice) for a in node.args))


def elements(node: Node) -> list[Node]:
  """All values of a list, its plus-minus signs written out."""
  items = node.args if node.kind == 'seq' and is_many(node) else (node,)
  found = [value for item in items for value in _expanded(item)]
  if len(found) > MAX_ITEMS:
    raise Limit('too many elements')
  return found


def _expanded(item: Node) -> list[Node]:
  if item.kind == 'seq' and is_many(item):
    return elements(item)
  if is_equation(item) and is_many(item.args[-1]):
    left = item.args[:-1]
    return [
      item._replace(args=(*left, value)) for value in elements(item.args[-1])
    ]
  return expand(item) if not is_tuple(item) or item.has('pm') else [item]


def _many(a: Node, b: Node, budget: Budget) -> bool:
  if is_tuple(a) != is_tuple(b):
    return _list_and_tuple(a, b, budget)
  assigned_a, assigned_b = assignments(a), assignments(b)
  if assigned_a and assigned_b and len(assigned_a) > 1:
    return _same_assignments(assigned_a, assigned_b, budget)
  for assigned, other in ((assigned_a, b), (assigned_b, a)):
    if assigned and len(assigned) > 1 and not assignments(other):
      return _in_order(_by_name(assigned), elements(other), budget)
  braces = all(n.kind == 'seq' and n.value == '{}' for n in (a, b))
  return _same_elements(
    _unnamed(elements(a)), _unnamed(elements(b)), budget, distinct=braces
  )


def _list_and_tuple(a: Node, b: Node, budget: Budget) -> bool:
  """(1, 2) against `1, 2` or against `x = 1, y = 2`."""
  ordered, listed = (a, b) if is_tuple(a) else (b, a)
  if listed.has('pm') or ordered.has('pm'):
    return _same_elements(elements(ordered), elements(listed), budget)
  if listed.kind != 'seq' or listed.value == '{}':
    return False
  if ordered.value not in ('()', '<>') and len(ordered.args) < 3:
    return False
  assigned = assignments(listed)
  items = _by_name(assigned) if assigned else listed.args
  return _in_order(ordered.args, items, budget)


def assignments(node: Node) -> dict[str, Node] | None:
  """{'x': 1, 'y': 2} of 'x = 1, y = 2'; None if anything else is in it."""
  if node.kind != 'seq' or node.value == 'or':
    return None
  found: dict[str, Node] = {}
  for item in node.args:
    if not is_equation(item) or item.args[0].kind != 'sym':
      return None
    found[item.args[0].value] = item.args[-1]
  return found if len(found) == len(node.args) else None


def _by_name(assigned: dict[str, Node]) -> list[Node]:
  return [assigned[name] for name in sorted(assigned)]


def _same_assignments(a: dict, b: dict, budget: Budget) -> bool:
  return a.keys() == b.keys() and all(
    equal(a[name], b[name], budget) for name in a
  )


def _unnamed(items: list[Node]) -> list[Node]:
  """'x = 1, 2' and 'x = 1 or x = 2' as 1, 2: one name, or none."""
  found = {n.args[0] for n in items if is_equation(n) and is_name(n.args[0])}
  if len(found) != 1:
    return items
  return [
    n.args[-1] if is_equation(n) and n.args[0] in found else n for n in items
  ]


def _in_order(a, b, budget: Budget) -> bool:
  return len(a) == len(b) and all(equal(x, y, budget) for x, y in zip(a, b))


def _same_elements(
  a: list[Node], b: list[Node], budget: Budget, *, distinct: bool = False
) -> bool:
  """A one-to-one match in any order; sets ignore repetitions."""
  if distinct or len(a) != len(b):
    a, b = _distinct(a, budget), _distinct(b, budget)
  if len(a) != len(b):
    return False
  left = list(b)
  for item in a:
    # The same place first: most lists are in the same order.
    match = next((x for x in left if equal(item, x, budget)), None)
    if match is None:
      return False
    left.remove(match)
  return True


def _distinct(items: list[Node], budget: Budget) -> list[Node]:
  kept: list[Node] = []
  for item in items:
    if not any(equal(item, other, budget) for other in kept):
      kept.append(item)
  return kept


# --- sets, matrices, vectors, the rest -------------------------------------


def _sets(a: Node, b: Node, budget: Budget) -> bool | None:
  """None when one of them is no set of reals after all."""
  if is_tuple(a) and is_tuple(b) and len(a.args) > 2:
    return None
  try:
    return sets.same_set(sets.read(a, budget), sets.read(b, budget), budget)
  except Outside:
    return None


def as_matrix(node: Node) -> tuple[tuple[int, int], tuple[Node, ...]] | None:
  """(shape, cells); a tuple is a column, nested lists are rows."""
  if node.kind == 'matrix':
    return node.value, node.args
  if not is_tuple(node) and not (node.kind == 'seq' and node.args):
    return None
  rows = [as_row for as_row in node.args if is_tuple(as_row)]
  if not rows:
    return (len(node.args), 1), node.args
  widths = {len(row.args) for row in rows}
  if len(rows) != len(node.args) or len(widths) != 1:
    return None
  cells = tuple(cell for row in rows for cell in row.args)
  return (len(rows), widths.pop()), cells


def _matrices(a: Node, b: Node, budget: Budget) -> bool:
  if is_equation(a) or is_equation(b):
    a, b = (n.args[-1] if is_equation(n) else n for n in (a, b))
  one, other = as_matrix(a), as_matrix(b)
  if one is None or other is None:
    return _same_shape(a, b, budget)
  (shape_a, cells_a), (shape_b, cells_b) = one, other
  if shape_a != shape_b and not (
    # A tuple is a row vector as well as a column.
    (a.kind != 'matrix' or b.kind != 'matrix')
    and sorted(shape_a) == sorted(shape_b)
    and 1 in shape_a
  ):
    return False
  return _in_order(cells_a, cells_b, budget)


def _vector(a: Node, b: Node, budget: Budget) -> bool:
  """(1, 2) against i + 2j."""
  ordered, other = (a, b) if is_tuple(a) else (b, a)
  if not any(axis in set(other.walk()) for axis in AXES):
    return False
  if not 2 <= len(ordered.args) <= 3:
    return False
  parts = []
  for axis in AXES:
    part = other
    for one in AXES:
      part = replace(part, one, ONE if one == axis else ZERO)
    parts.append(part)
  while len(parts) > len(ordered.args):
    if not scalars.equal(parts.pop(), ZERO, budget):
      return False
  return _in_order(ordered.args, parts, budget)


def _same_shape(a: Node, b: Node, budget: Budget) -> bool:
  """Inequalities in several variables, and whatever is only structure."""
  if a.kind != b.kind:
    return False
  if a.kind == 'rel' and len(a.args) == len(b.args) == 2:
    return _same_inequality(a, b, budget)
  if a.kind == 'builder':
    b = replace(b, b.args[0], a.args[0])
  if a.value != b.value or len(a.args) != len(b.args):
    return False
  return all(equal(x, y, budget) for x, y in zip(a.args, b.args))


def _same_inequality(a: Node, b: Node, budget: Budget) -> bool:
  (op_a,), (op_b,) = a.value, b.value
  if op_a != op_b and sets.FLIPPED.get(op_a) == op_b:
    b = Node('rel', (b.args[1], b.args[0]), (op_a,))
  elif op_a != op_b:
    return False
  if op_a not in sets.INEQUALITIES:
    return _in_order(a.args, b.args, budget)
  free = op_a == '!='
  return proportional(_difference(a), _difference(b), budget, positive=not free)
