"""Are two expressions the same function of their variables?

  rational constants    compared as fractions
  rational functions    compared at random points modulo a large prime
  everything else       compared at up to five points with 60 digits, 300
                        where digits cancel

A decimal is exact: 0.33 is not 1/3. Only one with six decimals or more may
stand for an irrational or repeating value, if it is that value rounded or
cut off.
"""

from fractions import Fraction

from jaxrl_reason.rewards.expr.evaluate import Outside
from jaxrl_reason.rewards.expr.exact import Exact, Modular
from jaxrl_reason.rewards.expr.nodes import (
  INF,
  ONE,
  Budget,
  Node,
  Undefined,
  names,
  number,
)
from jaxrl_reason.rewards.expr.numeric import BITS, MORE_BITS, Numeric

# log2 of the relative difference below which values are equal, and above
# which they are not; between them more digits decide.
SAME, DIFFERENT = -110, -25
SAME_MORE = -700
HITS = 3  # equal real values that prove equality
SYMBOLS_OF_INTEGERS = frozenset('nmk')


def equal(a: Node, b: Node, budget: Budget) -> bool:
  """Equality, with the freedoms answers take: units, percent, log base."""
  if a == b:
    return True
  if INF in a.walk() or INF in b.walk():
    return False  # infinity is no number to compute with
  if decide(a, b, budget):
    return True
  if (a.kind == 'base') != (b.kind == 'base'):
    return decide(without_base(a), without_base(b), budget)
  units_a, units_b = units_of(a), units_of(b)
  if bool(units_a) != bool(units_b):
    one = a if units_a else b
    if strippable(one) and decide(without_units(a), without_units(b), budget):
      return True
  if 'log' in names(a, 'call') | names(b, 'call'):
    return decide(decimal_logs(a), decimal_logs(b), budget)
  return False


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
  """Rational functions; Outside if either is none."""
  for salt in (1, 2):
    domain = Modular(budget, salt)
    try:
      if domain.value(a) != domain.value(b):
        return False
    except Undefined:
      return False
  return True


# --- numeric ---------------------------------------------------------------


def numeric(a: Node, b: Node, budget: Budget) -> bool:
  """Equal wherever both are real; if never real, equal as complex values."""
  symbols = sorted(names(a) | names(b))
  try:
    outcome = _at_points(a, b, symbols, budget, ())
    if outcome is None:
      whole = tuple(s for s in symbols if s[0] in SYMBOLS_OF_INTEGERS)
      outcome = bool(whole) and _at_points(a, b, symbols, budget, whole)
    return bool(outcome)
  except Outside:
    return False


def _points(a: Node, b: Node, symbols: list[str]):
  """(scale, signs): inside (0, 1), beyond every constant, of mixed signs."""
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


def _at_points(a, b, symbols, budget, whole) -> bool | None:
  """True or False; None when no point was conclusive."""
  real = both_complex = 0
  different = False
  # Pieces of |x| and its like agree on half of the points.
  pieces = a.has('call', 'root') or b.has('call', 'root')
  enough = 5 if pieces else HITS
  for i, (scale, signs) in enumerate(_points(a, b, symbols)):
    integers = {name: 2 + i + 3 * j for j, name in enumerate(whole)}
    outcome = _at_point(a, b, budget, scale, signs, integers)
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


def _at_point(a, b, budget, scale, signs, whole) -> tuple[bool, bool] | None:
  """(both real, equal) or None where either has no value."""
  for bits in (BITS, MORE_BITS):
    domain = Numeric(budget, bits, scale, signs, whole)
    try:
      x, y = domain.value(a), domain.value(b)
    except Undefined:
      return None
    same = near(domain.mp, x, y, final=bits == MORE_BITS)
    if same is not None:
      real = not domain.left_reals and all(
        is_real(domain.mp, v) for v in (x, y)
      )
      return real, same
  return None


def is_real(mp, value) -> bool:
  imaginary = mp.im(value)
  return not imaginary or mp.mag(imaginary) < mp.mag(value) - 100


def near(mp, x, y, *, final: bool) -> bool | None:
  """Equality up to rounding; None when more digits are needed."""
  if x == y:
    return True
  if mp.isinf(x) or mp.isinf(y):
    return False
  size = max(int(mp.mag(v)) if v else -(10**6) for v in (x, y))
  gap = int(mp.mag(x - y))
  close = gap < -40 + min(
    size, 0
  )  # of large values the units must agree as well
  if final:
    return (gap - size < SAME_MORE and close) or size < SAME_MORE
  if size > -60 and gap - size < SAME and close:
    return True
  return False if size > -60 and gap - size > DIFFERENT else None


# --- decimals --------------------------------------------------------------


def rounded(a: Node, b: Node, budget: Budget) -> bool:
  """Is one a long decimal and the other a value that rounds to it?"""
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
  try:
    value = Exact(budget).value(node)
    terminates = _terminates(value)
  except Outside:
    domain = Numeric(budget)
    try:
      value = domain.value(node)
    except ArithmeticError:
      return False
    if not is_real(domain.mp, value) or domain.mp.isinf(value):
      return False
    sign, mantissa, exponent, _ = domain.mp.mpf(domain.mp.re(value))._mpf_
    value = Fraction((-1) ** sign * int(mantissa)) * Fraction(2) ** exponent
    terminates = False
  except Undefined:
    return False
  if _bar_left_out(value, places):
    return False
  gap = abs(value - decimal) * 10**places
  cut_off = abs(decimal) < abs(value) and gap < 1
  return not terminates and (gap <= Fraction(1, 2) or cut_off)


def _bar_left_out(value: Fraction, places: int) -> bool:
  """0.142857 for 1/7 is one period of its digits: a bar may be missing."""
  for period in range(1, places + 1):
    if _terminates((10**period - 1) * value):
      return 2 < period and places < 2 * period
  return False


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
  """No sum of different units: 3 h 20 min is not 23."""
  for part in node.walk():
    if part.kind == 'add':
      sets = [units_of(term) for term in part.args]
      if len({frozenset(s) for s in sets if s}) > 1:
        return False
  return True


def without_base(node: Node) -> Node:
  """101_2 as its digits: where the question names the base."""
  return number(int(node.value[0])) if node.kind == 'base' else node


def without_units(node: Node) -> Node:
  """Units to 1, except in arguments: sin 30 degrees stays what it is."""
  if node.kind == 'unit':
    return ONE
  if node.kind == 'call' or not node.args:
    return node
  return node._replace(args=tuple(without_units(a) for a in node.args))


def decimal_logs(node: Node) -> Node:
  """log without a base as log base 10."""
  args = tuple(decimal_logs(a) for a in node.args)
  is_bare_log = node.kind == 'call' and node.value == 'log' and len(args) == 1
  return node._replace(args=args, value='lg' if is_bare_log else node.value)
