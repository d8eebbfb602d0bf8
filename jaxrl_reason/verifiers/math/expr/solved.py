"""Checks that an answer is solved, and does not repeat the problem.

3x + 7 = 22 and x = 5 are equivalent, but only the second one is an answer.
"""

from jaxrl_reason.verifiers.math.expr.nodes import ZERO, Node, names

ORDER = frozenset(('<', '>', '<=', '>='))
MEMBERSHIP = frozenset(('in', 'notin'))


def alike(a: Node, b: Node) -> bool:
  """Returns whether both relations of one variable are solved, or neither."""
  if len(names(a) | names(b)) > 1:
    return True
  return is_solved(a) == is_solved(b)


def is_solved(node: Node) -> bool:
  """Returns whether every relation has its variable alone on one side only."""
  return all(_isolates(part) for part in node.walk() if part.kind == 'rel')


def _isolates(relation: Node) -> bool:
  if _is_moved(relation):
    return True
  sides = relation.args
  if MEMBERSHIP & set(relation.value):
    sides = sides[:1]  # x in {x | ...}: the condition inside is checked too
  named = [side for side in sides if names(side)]
  return not named or (len(named) == 1 and _alone(named[0]))


def _is_moved(relation: Node) -> bool:
  """Returns whether an inequality is solved up to a sign or a constant.

  Examples are `-x > -1`, and `x - 1 > 0` with 0 as its other side: the variable
  has no coefficient. `x + 1 > 5` and `2x > 4` are not solved.
  """
  if len(relation.args) != 2 or relation.value[0] not in ORDER:
    return False
  left, right = relation.args
  side, other = (left, right) if names(left) else (right, left)
  if names(other):
    return False
  terms = side.args if side.kind == 'add' and other == ZERO else (side,)
  unsigned = [t.args[0] if t.kind == 'neg' else t for t in terms]
  named = [term for term in unsigned if names(term)]
  return len(named) == 1 and named[0].kind == 'sym'


def _alone(node: Node) -> bool:
  """Returns whether a side is x, f(x), |x| or the distance |x - 2|."""
  if node.kind == 'call' and node.value == 'abs':
    inner = node.args[0]
    terms = inner.args if inner.kind == 'add' else node.args
    unsigned = (n.args[0] if n.kind == 'neg' else n for n in terms)
    return all(n.kind == 'sym' or not names(n) for n in unsigned)
  if node.kind == 'call':
    return all(argument.kind == 'sym' for argument in node.args)
  return node.kind == 'sym'
