"""Compares two answers: lists, tuples, sets, equations, matrices.

These may differ: the order of solutions, `x = 5` for `5`, (1, 2) for `1, 2` in
that order, the bound variable of a set, and a constant factor of an equation.
These must agree: brackets of intervals, the number of elements, and the order
in a tuple.
"""

import itertools

from jaxrl_reason.verifiers.math.expr import chains, scalars, sets, solved
from jaxrl_reason.verifiers.math.expr.forms import (
  assignments,
  both_functions,
  constants_renamed,
  elements,
  is_equation,
  is_many,
  is_name,
  is_set,
  is_tuple,
  tidy,
)
from jaxrl_reason.verifiers.math.expr.nodes import (
  ONE,
  ZERO,
  Budget,
  Node,
  names,
  replace,
  symbol,
)
from jaxrl_reason.verifiers.math.expr.proportional import (
  difference,
  proportional,
)
from jaxrl_reason.verifiers.math.expr.tree_walk import Outside

MAX_RESTATED = 5  # largest number of values of both sides together
CONGRUENT = ('=', 'mod')  # n = 2 (mod 5)
ARGUMENT = symbol('argument of a function')
AXES = tuple(symbol(f'unit vector {axis}') for axis in 'ijk')


def equal(a: Node, b: Node, budget: Budget) -> bool:
  """Returns whether two answers are equal. Symmetric."""
  a, b = tidy(a, b)
  if a == b or _mirrored(a) == b or _dispatch(a, b, budget):
    return True
  return any(_dispatch(c, b, budget) for c in constants_renamed(a, b))


def _mirrored(node: Node) -> Node:
  """Rewrites c > b > a as a < b < c."""
  if node.kind != 'rel' or any(op not in sets.FLIPPED for op in node.value):
    return node
  flipped = tuple(sets.FLIPPED[op] for op in reversed(node.value))
  return node._replace(args=node.args[::-1], value=flipped)


def _dispatch(a: Node, b: Node, budget: Budget) -> bool:
  budget.spend(5)
  if a.kind == 'matrix' or b.kind == 'matrix':
    return _matrices(a, b, budget)
  if is_equation(a) and is_equation(b) and not (a.has('pm') or b.has('pm')):
    return _equations(a, b, budget)
  if ('mod',) in (a.value, b.value) and (a.kind == 'rel') != (b.kind == 'rel'):
    residue, other = (a, b) if a.kind == 'rel' else (b, a)
    return equal(residue.args[0], other, budget)  # 2 (mod 5) against 2
  if CONGRUENT in (a.value, b.value) and a.kind == b.kind == 'rel':
    return _congruent(a, b, budget)
  if CONGRUENT in (a.value, b.value):
    congruence, other = (a, b) if a.kind == 'rel' else (b, a)
    return equal(congruence.args[1], other, budget)  # n = 2 (mod 5) and 2
  if is_equation(a) != is_equation(b):
    value, other = (a, b) if is_equation(a) else (b, a)
    return any(equal(v, other, budget) for v in chains.values(value, budget))
  if sets.is_set_like(a) or sets.is_set_like(b):
    outcome = _sets(a, b, budget)
    if outcome is not None:
      return outcome
  if is_many(a) or is_many(b):
    return _many(a, b, budget)
  if 'ratio' in (a.kind, b.kind) and max(len(a.args), len(b.args)) > 2:
    return _ratios(a, b, budget)
  if is_tuple(a) and is_tuple(b):
    return _brackets(a) == _brackets(b) and _in_order(a.args, b.args, budget)
  if is_tuple(a) != is_tuple(b):
    return _vector(a, b, budget)
  if _has_axes(a) != _has_axes(b):
    a, b = _with_axes(a), _with_axes(b)
  if {a.kind, b.kind} & {'rel', 'opaque', 'builder', 'setop'}:
    return _same_shape(a, b, budget)
  return scalars.equal(a, b, budget)


# --- equations -------------------------------------------------------------


def _congruent(a: Node, b: Node, budget: Budget) -> bool:
  """Compares n = 2 (mod 5), n = 7 (mod 5) and 2 (mod 5)."""
  if {a.value, b.value} - {CONGRUENT, ('mod',)}:
    return False
  if len(a.args) == len(b.args) == 3 and a.args[0] != b.args[0]:
    return False
  (x, modulus), (y, other) = a.args[-2:], b.args[-2:]
  if not scalars.equal(modulus, other, budget):
    return False
  if x.kind == y.kind == modulus.kind == 'num' and modulus.value:
    return (x.value - y.value) % modulus.value == 0
  return scalars.equal(x, y, budget)


def _equations(a: Node, b: Node, budget: Budget) -> bool:
  if not solved.alike(a, b):
    return False
  if len(a.args) > 2 or len(b.args) > 2:
    return _chains(a, b, budget)
  a, b = _bound_alike(a, b)
  (left_a, right_a), (left_b, right_b) = a.args, b.args
  if left_a == left_b and is_name(left_a):
    if equal(right_a, right_b, budget):
      return True
  elif (
    is_name(left_a) and is_name(left_b) and '' in (left_a.value, left_b.value)
  ):
    return equal(right_a, right_b, budget)
  elif both_functions(a, b) and equal(right_a, right_b, budget):
    return True
  sides = (left_a, right_a, left_b, right_b)
  plain = not any(n.has('seq', 'rel', 'matrix', 'setop') for n in sides)
  return plain and proportional(difference(a), difference(b), budget)


def _chains(a: Node, b: Node, budget: Budget) -> bool:
  """Splits chains: x = 2 + 3 = 5 is x = 5; (x-1)/2 = y/3 = z is two
  equations.
  """
  first_a, first_b = a.args[0], b.args[0]
  if is_name(first_a) or is_name(first_b) or not (names(a) and names(b)):
    named = is_name(first_a) == is_name(first_b)
    same = first_a == first_b or not is_name(first_a)
    return (
      named
      and same
      and any(
        equal(x, y, budget)
        for x in chains.values(a, budget)
        for y in chains.values(b, budget)
      )
    )
  return len(a.args) == len(b.args) and all(
    _equations(Node('rel', x, ('=',)), Node('rel', y, ('=',)), budget)
    for x, y in zip(zip(a.args, a.args[1:]), zip(b.args, b.args[1:]))
  )


def _bound_alike(a: Node, b: Node) -> tuple[Node, Node]:
  """Renames the variables of f(x) = 2x and g(t) = 2t to the same name."""
  calls = [n.args[0] for n in (a, b)]
  bound = all(
    n.kind == 'call' and len(n.args) == 1 and n.args[0].kind == 'sym'
    for n in calls
  )
  if bound and (calls[0].value == calls[1].value or both_functions(a, b)):
    # An unused name, because the x of g(t) = t + x is another variable.
    a, b = (replace(n, n.args[0].args[0], ARGUMENT) for n in (a, b))
  return a, b


# --- several values --------------------------------------------------------


def _brackets(node: Node) -> str:
  """Returns the kind of bracket; <1, 2> and [1, 2, 3] are vectors."""
  vector = node.value == '<>' or (node.value == '[]' and len(node.args) > 2)
  return '()' if vector else node.value


def _many(a: Node, b: Node, budget: Budget) -> bool:
  if is_tuple(a) != is_tuple(b):
    return _list_and_tuple(a, b, budget)
  if {a.value, b.value} == {'and', 'or'} and all(
    item.kind == 'sym' for item in (*a.args, *b.args)
  ):
    return False  # p and q is not p or q
  assigned_a, assigned_b = assignments(a), assignments(b)
  if assigned_a and assigned_b and len(assigned_a) > 1:
    return _same_assignments(assigned_a, assigned_b, budget)
  for assigned, other in ((assigned_a, b), (assigned_b, a)):
    if assigned and len(assigned) > 1 and not assignments(other):
      return _in_order(_by_name(assigned), elements(other), budget)
  braces = all(n.kind == 'seq' and n.value == '{}' for n in (a, b))
  restated = 'or' in (a.value, b.value)
  if restated and _restated(elements(a), elements(b), budget):
    return True
  distinct = braces or restated or a.has('pm') or b.has('pm')
  return _same_elements(elements(a), elements(b), budget, distinct=distinct)


def _restated(a: list[Node], b: list[Node], budget: Budget) -> bool:
  """Compares 60 with "0.6 or 60%", which is one value in two notations."""
  if len(a) + len(b) > MAX_RESTATED:
    return False
  alike = all(
    equal(x, y, budget)
    for side in (a, b)
    for x, y in itertools.combinations(side, 2)
  )
  return alike and any(equal(x, y, budget) for x in a for y in b)


def _list_and_tuple(a: Node, b: Node, budget: Budget) -> bool:
  """Compares (1, 2) with `1, 2` or with `x = 1, y = 2`."""
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


def _by_name(assigned: dict[str, Node]) -> list[Node]:
  return [assigned[name] for name in sorted(assigned)]


def _same_assignments(a: dict, b: dict, budget: Budget) -> bool:
  return a.keys() == b.keys() and all(
    equal(a[name], b[name], budget) for name in a
  )


def _in_order(a, b, budget: Budget) -> bool:
  return len(a) == len(b) and all(equal(x, y, budget) for x, y in zip(a, b))


def _same_elements(
  a: list[Node], b: list[Node], budget: Budget, *, distinct: bool = False
) -> bool:
  """Matches elements one-to-one in any order. Sets ignore repetitions."""
  if distinct:
    a, b = _distinct(a, budget), _distinct(b, budget)
  if len(a) != len(b):
    return False
  left = list(b)
  for item in a:
    # Try the same position first: most lists have the same order.
    # {1, {2}} is not {1, 2}, though {2} alone may be 2.
    alike = (x for x in left if is_set(x) == is_set(item))
    match = next((x for x in alike if equal(item, x, budget)), None)
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
  """Compares sets of reals. None: one of them is not a set of reals."""
  if is_tuple(a) and is_tuple(b) and len(a.args) > 2:
    return None
  try:
    both = sets.read(a, budget), sets.read(b, budget)
    return solved.alike(a, b) and sets.same_set(*both, budget)
  except Outside:
    return None


def as_matrix(node: Node) -> tuple[tuple[int, int], tuple[Node, ...]] | None:
  """Returns (shape, cells); a tuple is a column, nested lists are rows."""
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
  if _has_axes(a) or _has_axes(b):
    a, b = (_as_tuple(n) for n in (a, b))
    return is_tuple(a) != is_tuple(b) and _vector(a, b, budget)
  one, other = as_matrix(a), as_matrix(b)
  if one is None or other is None:
    return _same_shape(a, b, budget)
  (shape_a, cells_a), (shape_b, cells_b) = one, other
  if shape_a != shape_b and not (
    # A tuple is a row vector or a column vector.
    (a.kind != 'matrix' or b.kind != 'matrix')
    and sorted(shape_a) == sorted(shape_b)
    and 1 in shape_a
  ):
    return False
  return _in_order(cells_a, cells_b, budget)


def _as_tuple(node: Node) -> Node:
  """Converts a row or column to a tuple. Returns other nodes unchanged."""
  if node.kind == 'matrix' and 1 in node.value:
    return Node('seq', node.args, '()')
  return node


def _has_axes(node: Node) -> bool:
  return any(part in AXES for part in node.walk())


def _with_axes(node: Node) -> Node:
  """Converts 4i - 3j, with plain letters for the unit vectors."""
  if symbol('j') not in node.walk():
    return node
  node = replace(node, Node('const', (), 'i'), AXES[0])
  return replace(replace(node, symbol('j'), AXES[1]), symbol('k'), AXES[2])


def _vector(a: Node, b: Node, budget: Budget) -> bool:
  """Compares (1, 2) with i + 2j."""
  ordered, other = (a, b) if is_tuple(a) else (b, a)
  if other.kind == 'call' and other.value in ('binom', 'perm'):
    return _in_order(ordered.args, other.args, budget)  # a point C or P
  other = _with_axes(other)
  if not _has_axes(other):
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


def _ratios(a: Node, b: Node, budget: Budget) -> bool:
  """Compares ratios: 1:2:3 equals 2:4:6."""
  if a.kind != b.kind or len(a.args) != len(b.args):
    return False
  return all(
    scalars.equal(
      Node('mul', (x, b.args[0])), Node('mul', (y, a.args[0])), budget
    )
    for x, y in zip(a.args[1:], b.args[1:])
  )


def _same_shape(a: Node, b: Node, budget: Budget) -> bool:
  """Compares inequalities in several variables, and other structures."""
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
  return proportional(difference(a), difference(b), budget, positive=not free)
