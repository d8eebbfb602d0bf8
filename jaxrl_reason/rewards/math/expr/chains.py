"""What a chain of sides says: x = 2 + 3 = 5, A = 4 pi ~ 12.57, 5 (= 10/2).

Of a chain of equations the last side counts; where a name ends it, the other
sides, which must agree. With an approximation two sides count: what was
rounded and its rounding, and only the latter where the rounding is poor. Sides
that do not approximate each other say nothing: else a chain would be a list
of guesses.
"""

from fractions import Fraction

from jaxrl_reason.rewards.math.expr import forms, scalars
from jaxrl_reason.rewards.math.expr.nodes import Budget, Node, Overflow, names
from jaxrl_reason.rewards.math.expr.numeric import Numeric

NEARLY = 0.1  # relative gap of sides that can be the same quantity
DIGITS = 0.005  # the same where no last digit is in sight
ROUNDED = frozenset(('~', 'note'))


def values(equation: Node, budget: Budget) -> list[Node]:
  """Tells what `x = 5` says when it is held against `5`: at most two values."""
  sides, operators = list(equation.args), list(equation.value)
  first = _is_label(sides[0])
  last = not first and _is_label(sides[-1])
  if first:
    del sides[0], operators[0]
  elif last:
    del sides[-1], operators[-1]
  if ROUNDED & set(operators):
    return _rounded(sides, operators, budget)
  if not (first or last) and names(equation):
    return []
  if last and not all(scalars.equal(sides[0], s, budget) for s in sides[1:]):
    return []
  return [sides[-1]]


def _is_label(node: Node) -> bool:
  """What names the value: P(A), but not ln 2, which is one."""
  constant = node.kind == 'call' and not names(node)
  return forms.is_name(node) and not constant


def _rounded(sides: list, operators: list, budget: Budget) -> list[Node]:
  """[4 pi, 12.57] of pi r^2 = 4 pi ~ 12.57."""
  start = next(i for i, o in enumerate(operators) if o in ROUNDED)
  kept = sides[start:]
  if not names(kept[-1]):
    kept = kept[1:] if names(kept[0]) else kept  # pi r^2 ~ 12.57
    if any(names(side) for side in kept):
      return []  # 5 ~ x ~ 6
  if all(_rounds(kept[0], side, budget) for side in kept[1:]):
    return [kept[0], kept[-1]]
  near = all(_gap(x, y, budget) <= NEARLY for x, y in zip(kept, kept[1:]))
  return [kept[-1]] if near and 'note' not in operators else []


def _rounds(exact: Node, side: Node, budget: Budget) -> bool:
  """Is `side` the value of `exact`, rounded or cut off where it ends?"""
  if scalars.equal(exact, side, budget):
    return True
  pair = [_items(node) for node in (exact, side)]
  if None not in pair:
    return len(pair[0]) == len(pair[1]) and all(
      _rounds(x, y, budget) for x, y in zip(*pair)
    )
  gap, step = _gap(exact, side, budget), _step(side)
  if step is None:
    return gap <= DIGITS
  return gap <= min(step if step < NEARLY else step / 2, NEARLY)


def _items(node: Node) -> list[Node] | None:
  several = forms.is_many(node) or forms.is_tuple(node)
  if not several:
    return None
  return list(node.args) if forms.is_tuple(node) else forms.elements(node)


def _gap(a: Node, b: Node, budget: Budget) -> float:
  """|a - b| / |b|, infinite where one has no value."""
  domain = Numeric(budget)
  try:
    x, y = domain.value(a), domain.value(b)
    return float(abs(x - y) / abs(y)) if y else float('inf')
  except (ArithmeticError, Overflow):
    return float('inf')


def _step(node: Node) -> float | None:
  """The place of the last digit, relative: 0.1 / 3.1 for 3.1 cm."""
  while node.kind in ('neg', 'mul'):
    node = node.args[0]
  if node.kind not in ('num', 'dec'):
    return None
  value, places = node.value if node.kind == 'dec' else (node.value, 0)
  while places < 6 and (value * 10**places).denominator > 1:
    places += 1
  while places <= 0 and value and (value * Fraction(10) ** places) % 10 == 0:
    places -= 1
  return float(Fraction(10) ** -places / abs(value)) if value else None
