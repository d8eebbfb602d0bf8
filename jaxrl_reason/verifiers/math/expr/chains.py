r"""Computes the values of chains: x = 2 + 3 = 5, A = 4 pi ~ 12.57, 5 (= 10/2).

In a chain of equations the last side is the answer. If a name ends the chain,
the other sides are the answer, and they must agree. In a chain with an
approximation two sides count: the exact value and its rounding. If the rounding
is poor, only the rounding counts. A side that is not a rounding of the first
side makes the chain invalid, because otherwise a chain could list several
guesses: `204 \approx 205` has no value.
"""

from fractions import Fraction

from jaxrl_reason.verifiers.math.expr import forms, scalars, units
from jaxrl_reason.verifiers.math.expr.nodes import (
  Budget,
  Node,
  Overflow,
  names,
)
from jaxrl_reason.verifiers.math.expr.numeric import Numeric

NEARLY = 0.1  # relative gap of sides that can be the same quantity
DIGITS = 0.005  # the same for sides without a last digit
MAX_PLACES = 30  # largest number of decimals that counts as finite
SIGNIFICANT = 40  # digits of a value that are read, of 60 correct ones
ENDLESS = 10**6
ROUNDED = frozenset(('~', 'note'))


def values(equation: Node, budget: Budget) -> list[Node]:
  """Returns at most two values of `x = 5` for a comparison with `5`."""
  sides, operators = list(equation.args), list(equation.value)
  first = _is_label(sides[0])
  last = not first and _is_label(sides[-1])
  if first:
    del sides[0], operators[0]
  elif last:
    del sides[-1], operators[-1]
  if ROUNDED & set(operators):
    return _rounded(sides, operators, budget)
  named = not (first or last) and names(equation)  # x^2 - 4 = (x - 2)(x + 2)
  agree = not (named or last) or all(
    scalars.equal(sides[0], s, budget) for s in sides[1:]
  )
  return [sides[-1]] if agree else []


def _is_label(node: Node) -> bool:
  """Returns whether a side is a name of the value: P(A), but not ln 2."""
  constant = node.kind == 'call' and not names(node)
  return forms.is_name(node) and not constant


def _rounded(sides: list, operators: list, budget: Budget) -> list[Node]:
  """Returns [4 pi, 12.57] for pi r^2 = 4 pi ~ 12.57."""
  start = next(i for i, o in enumerate(operators) if o in ROUNDED)
  kept = sides[start:]
  if not names(kept[-1]):
    kept = kept[1:] if names(kept[0]) else kept  # pi r^2 ~ 12.57
    if any(names(side) for side in kept):
      return []  # 5 ~ x ~ 6
  if len(kept) == 2 and _decimals(kept[1], budget) == ENDLESS:
    kept = kept[::-1]  # 12.57 ~ 4 pi
  if all(_rounds(kept[0], side, budget) for side in kept[1:]):
    return [kept[0], kept[-1]]
  poor = 'note' not in operators and all(
    _is_poor(x, y, budget) for x, y in zip(kept, kept[1:])
  )
  return [kept[-1]] if poor else []


def _rounds(exact: Node, side: Node, budget: Budget) -> bool:
  """Returns whether `side` is `exact`, or `exact` with fewer decimals."""
  if _same_value(exact, side, budget):
    return True
  pair = [_items(node) for node in (exact, side)]
  if None not in pair:
    return len(pair[0]) == len(pair[1]) and all(
      _rounds(x, y, budget) for x, y in zip(*pair)
    )
  return any(_is_rounding(x, y, budget) for x, y in _readings(exact, side))


def _is_rounding(exact: Node, side: Node, budget: Budget) -> bool:
  """Returns whether `side` is `exact` rounded to fewer decimals."""
  gap, step = _gap(exact, side, budget), _step(side)
  if not _is_coarser(exact, side, budget):
    return False
  if step is None:
    return gap <= DIGITS
  cut_off = step < NEARLY and _places(side) > 0
  return gap <= min(step if cut_off else step / 2 * 1.000001, NEARLY)


def _readings(a: Node, b: Node) -> list[tuple[Node, Node]]:
  """Returns two sides, also without a unit that only one of them has."""
  if bool(scalars.units_of(a)) == bool(scalars.units_of(b)):
    return [(a, b)]
  return [(a, b), (scalars.without_units(a), scalars.without_units(b))]


def _same_value(a: Node, b: Node, budget: Budget) -> bool:
  """Returns whether two sides are equal, with digits in a base as a value."""
  if 'base' in (a.kind, b.kind):
    return scalars.decide(a, b, budget)
  return scalars.equal(a, b, budget)


def _is_poor(exact: Node, side: Node, budget: Budget) -> bool:
  """Returns whether `side` is near `exact` and has fewer digits: 2.3 ~ 3."""
  fewer = _places(side) < min(0, _places(exact))  # 1234 ~ 1200
  for x, y in _readings(exact, side):
    gap, coarser = _gap(x, y, budget), _is_coarser(x, y, budget)
    if gap <= NEARLY and (fewer or coarser):
      return True
    if coarser and gap <= (_step(y) or 0):
      return True
  return False


def _is_coarser(exact: Node, side: Node, budget: Budget) -> bool:
  """Returns whether a side has fewer decimals than the value it rounds.

  Integers have no decimals: 1999 ~ 2000 is a rounding to thousands, but
  accepting it would accept two neighbouring integers, as in 9 ~ 10. A percent
  sign moves the point on both sides, or changes which side has fewer decimals.
  """
  return _decimals(side, budget) < _decimals(exact, budget)


def _decimals(node: Node, budget: Budget) -> int:
  """Counts the decimals of a value; ENDLESS if they do not end.

  sqrt(2) sqrt(8) has no decimals: the digits of the value count.
  """
  items = _items(node)
  if items:
    return max(_decimals(item, budget) for item in items)
  domain = Numeric(budget)
  try:
    value = domain.value(scalars.without_units(node))
    if names(node) or not scalars.is_real(domain.mp, value):
      return ENDLESS
    digits = Fraction(domain.mp.nstr(domain.mp.re(value), SIGNIFICANT))
  except (ArithmeticError, Overflow):
    return ENDLESS
  return _terminating(digits) + (2 if _is_percent(node) else 0)


def _is_percent(node: Node) -> bool:
  return 'pct' in {units.BASE[name][0] for name in names(node, 'unit')}


def _terminating(value: Fraction) -> int:
  places = 0
  while places < MAX_PLACES and (value * 10**places).denominator > 1:
    places += 1
  return places if places < MAX_PLACES else ENDLESS


def _items(node: Node) -> list[Node] | None:
  several = forms.is_many(node) or forms.is_tuple(node)
  if not several:
    return None
  return list(node.args) if forms.is_tuple(node) else forms.elements(node)


def _gap(a: Node, b: Node, budget: Budget) -> float:
  """Computes |a - b| / |b|; infinite if a side has no value."""
  domain = Numeric(budget)
  try:
    x, y = domain.value(a), domain.value(b)
    return float(abs(x - y) / abs(y)) if y else float('inf')
  except (ArithmeticError, Overflow):
    return float('inf')


def _literal(node: Node) -> Node | None:
  """Returns the number of 3.1 and of -3.1 cm."""
  while node.kind in ('neg', 'mul'):
    node = node.args[0]
  return node if node.kind in ('num', 'dec') else None


def _places(node: Node) -> int:
  """Counts the decimals of a literal; negative for trailing zeros."""
  literal = _literal(node)
  if literal is None:
    return 0
  value, places = literal.value if literal.kind == 'dec' else (literal.value, 0)
  while places < 6 and (value * 10**places).denominator > 1:
    places += 1
  while places <= 0 and value and (value * Fraction(10) ** places) % 10 == 0:
    places -= 1
  return places


def _step(node: Node) -> float | None:
  """Returns the place of the last digit, relative: 0.1 / 3.1 for 3.1 cm."""
  literal = _literal(node)
  if literal is None:
    return None
  value = literal.value[0] if literal.kind == 'dec' else literal.value
  return float(Fraction(10) ** -_places(node) / abs(value)) if value else None
