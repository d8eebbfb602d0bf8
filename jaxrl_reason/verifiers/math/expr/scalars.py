"""Compares two expressions as functions of their variables.

  rational constants    compared as fractions
  rational functions    compared at random points modulo a large prime
  everything else       compared at up to six points with 60 digits, 420
                        where digits cancel

A decimal is exact: 0.33 is not 1/3. A decimal with six or more places also
equals an irrational or repeating value, if it is that value rounded or
truncated.
"""

from fractions import Fraction

from jaxrl_reason.verifiers.math.expr import steps
from jaxrl_reason.verifiers.math.expr.exact import Exact, Modular, bits
from jaxrl_reason.verifiers.math.expr.nodes import (
  INF,
  ONE,
  Budget,
  Node,
  Overflow,
  Undefined,
  names,
  number,
  replace,
)
from jaxrl_reason.verifiers.math.expr.numeric import BITS, MORE_BITS, Numeric
from jaxrl_reason.verifiers.math.expr.tree_walk import Outside

# Values are equal if log2 of the relative difference is below SAME, and
# different if it is above DIFFERENT. In between, more digits are computed.
SAME, DIFFERENT = -110, -25
SAME_MORE = -700
MAX_REPEATING_BITS = 200  # of a fraction that a decimal may approximate
HITS = 3  # number of equal real values that prove equality
MONEY = (('$', '¢'), ('€', 'eurocent'), ('£', 'pence'))
HUNDREDTH = number(Fraction(1, 100))
TEMPERATURES = frozenset(('Celsius', 'Fahrenheit'))
SYMBOLS_OF_INTEGERS = frozenset('nmk')


def equal(a: Node, b: Node, budget: Budget) -> bool:
  """Returns whether two scalars are equal.

  Units on one side, the percent sign and the base of log may differ.
  """
  if a == b:
    return True
  if INF in a.walk() or INF in b.walk():
    return False  # infinity is not a number
  a, b = _same_scale(a, b), _same_scale(b, a)
  if decide(a, b, budget):
    return True
  if (a.kind == 'base') != (b.kind == 'base'):
    return decide(without_base(a), without_base(b), budget)
  units_a, units_b = units_of(a), units_of(b)
  if bool(units_a) != bool(units_b):
    one = a if units_a else b
    for pair in MONEY:
      if units_of(one) == set(pair):
        cent = Node('unit', (), pair[1])
        a, b = (without_units(replace(x, cent, HUNDREDTH)) for x in (a, b))
        return decide(a, b, budget)
    if strippable(one) and decide(without_units(a), without_units(b), budget):
      return True
  if 'log' in names(a, 'call') | names(b, 'call'):
    return decide(decimal_logs(a), decimal_logs(b), budget)
  return False


def _same_scale(node: Node, other: Node) -> Node:
  """Reads 20 degrees as 20 degrees Celsius if the other is a temperature."""
  scales = units_of(other) & TEMPERATURES
  if len(scales) != 1 or units_of(node) != {'°'}:
    return node
  return replace(node, Node('unit', (), '°'), Node('unit', (), scales.pop()))


def decide(a: Node, b: Node, budget: Budget) -> bool:
  if not has_variables(a) and not has_variables(b):
    try:
      exact = Exact(budget)
      return exact.value(a) == exact.value(b) or rounded(a, b, budget)
    except Outside:
      pass  # not both rational
    except Undefined:
      return False
  try:
    same = modular(a, b, budget)
  except Outside:
    same = numeric(a, b, budget)
  return same or rounded(a, b, budget)


def has_variables(node: Node) -> bool:
  return node.has('sym', 'unit', 'opaque')


def modular(a: Node, b: Node, budget: Budget) -> bool:
  """Compares rational functions. Raises Outside for other functions."""
  for field in (1, 2):  # the second prime checks the first
    domain = Modular(budget, salt=field, field=field)
    try:
      if domain.value(a) != domain.value(b):
        return False
    except Undefined:
      return False
  return True


# --- numeric ---------------------------------------------------------------


def numeric(a: Node, b: Node, budget: Budget) -> bool:
  """Compares values at points where both are real, or else complex values."""
  symbols = sorted(names(a) | names(b))
  points = Points(a, b, budget)
  try:
    outcome = points.decide(symbols, ())
    if outcome is None:
      whole = tuple(s for s in symbols if s[0] in SYMBOLS_OF_INTEGERS)
      outcome = bool(whole) and points.decide(symbols, whole)
  except Outside:
    return False
  if outcome is None and points.overflow is not None:
    raise points.overflow  # no point was conclusive
  return bool(outcome) and points.survive(symbols)


def _points(a: Node, b: Node, symbols: list[str]):
  """Returns (scale, signs) of points: in (0, 1), above all constants, and with
  mixed signs.
  """
  numbers = (abs(n.value) for n in (*a.walk(), *b.walk()) if n.kind == 'num')
  far = min(max(numbers, default=Fraction(0)), Fraction(10**6))
  far = (far + Fraction(37, 10), Fraction(4))
  unit = (Fraction(1, 5), Fraction(3, 5))
  wide = (Fraction(13, 10), Fraction(2))
  yield unit, {}
  yield far, {}
  yield far, dict.fromkeys(symbols, -1)
  yield wide, {s: -1 for s in symbols[::2]}
  yield wide, {s: -1 for s in symbols[1::2]}
  yield (far[0] * 2, far[1]), {}


class Points:
  """Two expressions, and the results at points where both have values."""

  def __init__(self, a: Node, b: Node, budget: Budget):
    self.a, self.b, self.budget = a, b, budget
    self.overflow: Overflow | None = None

  def decide(self, symbols: list[str], whole: tuple) -> bool | None:
    """Returns whether they are equal, or None if no point was conclusive."""
    real = both_complex = 0
    different = False
    # Pieces of |x| and similar functions agree on half of the points.
    pieces = self.a.has('call', 'root') or self.b.has('call', 'root')
    enough = 5 if pieces else HITS
    for i, (scale, signs) in enumerate(_points(self.a, self.b, symbols)):
      integers = {name: 2 + i + 3 * j for j, name in enumerate(whole)}
      outcome = self.at(scale=scale, signs=signs, fixed=integers)
      if outcome is None:
        continue
      is_real, same = outcome
      if is_real and not same:
        return False
      real += is_real
      both_complex += not is_real
      different |= not same
      if real >= enough or not symbols:
        break
    if real >= 2 or (real and not symbols):
      return True
    if different or not (real or both_complex):
      return None
    return True

  def survive(self, symbols: list[str]) -> bool:
    """Returns whether both are equal where floors jump and at a secret
    point.
    """
    if not symbols:
      return True
    points = [
      {'fixed': fixed} for fixed in steps.points(self.a, self.b, self.budget)
    ]
    outcomes = (self.at(**point) for point in ({'secret': True}, *points))
    return not any(outcome == (True, False) for outcome in outcomes)

  def at(self, **point) -> tuple[bool, bool] | None:
    """Returns (both real, equal), or None if one of them has no value."""
    for precision in (BITS, MORE_BITS):
      domain = Numeric(self.budget, precision, **point)
      try:
        x, y = domain.value(self.a), domain.value(self.b)
      except Undefined:
        return None
      except Overflow as e:
        self.overflow = e
        return None
      if precision == BITS:
        same, size = near(domain.mp, x, y), larger(domain.mp, x, y)
      else:
        same = nearer(domain.mp, x, y, size)
      if same is not None:
        real = not domain.left_reals and all(
          is_real(domain.mp, v) for v in (x, y)
        )
        return real, same
    return None


def is_real(mp, value) -> bool:
  imaginary = mp.im(value)
  return not imaginary or mp.mag(imaginary) < mp.mag(value) - 100


def larger(mp, x, y) -> int:
  """Computes log2 of the larger magnitude."""
  return max(int(mp.mag(v)) if v else -(10**6) for v in (x, y))


def near(mp, x, y) -> bool | None:
  """Compares values at BITS; None if more digits are needed."""
  if x == y:
    return True
  if mp.isinf(x) or mp.isinf(y):
    return False
  size, gap = larger(mp, x, y), int(mp.mag(x - y))
  if size <= -60:
    return None  # small, or zero with rounding noise
  if gap - size > DIFFERENT:
    return False
  # The ones digits of large values must agree as well: 2^500 + 1 is not 2^500.
  return True if gap - size < SAME and gap < -40 else None


def nearer(mp, x, y, size_before: int) -> bool:
  """Compares values at MORE_BITS, where only rounding noise is smaller."""
  if x == y:
    return True
  size, gap = larger(mp, x, y), int(mp.mag(x - y))
  if size < size_before - 500:
    return True  # both zero
  return gap - size < SAME_MORE and gap < min(size, 0) - 40


# --- decimals --------------------------------------------------------------


def rounded(a: Node, b: Node, budget: Budget) -> bool:
  """Returns whether one is a long decimal and the rounding of the other."""
  for decimal, other in ((a, b), (b, a)):
    sign, bare = (
      (-1, decimal.args[0]) if decimal.kind == 'neg' else (1, decimal)
    )
    if bare.kind == 'dec' and not other.has('dec', 'sym', 'unit'):
      return _rounds_to(other, sign * bare.value[0], bare.value[1], budget)
  return False


def _rounds_to(node: Node, decimal: Fraction, places: int, budget) -> bool:
  if abs(decimal) * 10**places < 10**5:
    return False  # too few significant digits
  value = _endless(node, places, budget)
  if value is None:
    return False
  gap = abs(value - decimal) * 10**places
  cut_off = abs(decimal) < abs(value) and gap < 1
  return gap <= Fraction(1, 2) or cut_off


def _endless(node: Node, places: int, budget: Budget) -> Fraction | None:
  """Returns a value with infinitely many decimals to 60 digits, or None."""
  try:
    value = Exact(budget).value(node)
    small = bits(value) < MAX_REPEATING_BITS
    return value if small and _repeats(value, places) else None
  except Outside:
    pass  # irrational
  except Undefined:
    return None
  domain = Numeric(budget)
  try:
    value = domain.value(node)
  except ArithmeticError:
    return None
  if not is_real(domain.mp, value) or domain.mp.isinf(value):
    return None
  sign, mantissa, exponent, _ = domain.mp.mpf(domain.mp.re(value))._mpf_
  return Fraction((-1) ** sign * int(mantissa)) * Fraction(2) ** exponent


def _repeats(value: Fraction, places: int) -> bool:
  """Compares repeating decimals. 0.142857 may be 1/7 without its bar."""
  if _terminates(value):
    return False
  for period in range(1, min(places, 40) + 1):
    if _terminates((10**period - 1) * value):
      return period <= 2 or places >= 2 * period
  return True


def _terminates(value: Fraction) -> bool:
  below = value.denominator
  for prime in (2, 5):
    while below % prime == 0:
      below //= prime
  return below == 1


# --- units -----------------------------------------------------------------


def units_of(node: Node) -> set[str]:
  return names(node, 'unit') - {'~'}


def strippable(node: Node) -> bool:
  """Returns whether a node has no sum of different units.

  3 h 20 min is not 23, and 30 m + 10 is not 40.
  """
  for part in node.walk():
    if part.kind == 'add':
      terms = [t for t in part.args if units_of(t) or not names(t)]
      sets = [units_of(term) for term in terms]
      if len({frozenset(s) for s in sets}) > 1:
        return False
  return True


def without_base(node: Node) -> Node:
  """Returns 101 for 101_2, if the question has the base."""
  return number(int(node.value[0])) if node.kind == 'base' else node


def without_units(node: Node) -> Node:
  """Sets units to 1, except in arguments such as sin 30 degrees."""
  if node.kind == 'unit':
    return ONE
  if node.kind == 'call' or not node.args:
    return node
  return node._replace(args=tuple(without_units(a) for a in node.args))


def decimal_logs(node: Node) -> Node:
  """Reads log without a base as log base 10."""
  args = tuple(decimal_logs(a) for a in node.args)
  is_bare_log = node.kind == 'call' and node.value == 'log' and len(args) == 1
  return node._replace(args=args, value='lg' if is_bare_log else node.value)
