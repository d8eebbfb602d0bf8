"""Defines the expression tree, its limits and its errors."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

MAX_CHARS = 2_000  # of one answer; longer ones are compared as text
MAX_TOKENS = 800
MAX_DEPTH = 40  # nested brackets; about 8 Python frames each
MAX_EXPONENT = 6_000  # exponent of ten, in 1e6000
MAX_BITS = 20_000  # of an exact integer, checked before it is computed
BUDGET = 30_000  # evaluated nodes per pair; mpmath needs 1-50 us per node


class ParseError(Exception):
  """The text is not in the grammar."""


class Limit(Exception):
  """The input is too long, too deep, too large or too expensive."""


class Overflow(Limit):
  """The value is too large at this point, but may not be at another one."""


class Undefined(ArithmeticError):
  """There is no value: division by zero, log 0, a pole at a test point."""


class Budget:
  """The remaining work. It bounds the time reproducibly, without a clock."""

  def __init__(self, left: int = BUDGET):
    self.left = left

  def spend(self, cost: int = 1):
    self.left -= cost
    if self.left < 0:
      raise Limit('the comparison is too expensive')


class Node(NamedTuple):
  """One node; `value` depends on the kind:

  num (Fraction)   dec (Fraction, decimal places)   sym (name)
  const (pi e i inf)   unit (name)   text (str)   base (digits, base)
  add mul div pow neg fact   root (degree, radicand)   call (name)
  pm (+1 for plus-minus, -1 for minus-plus)   ratio   time (minutes, half)
  seq (brackets: '()' '[]' '(]' '[)' '{}' '<>', or ',' 'or' 'and' for none)
  setop (union inter minus)   rel (operators between the operands)
  builder (element, conditions...)   matrix ((rows, columns))   opaque (name)
  """

  kind: str
  args: tuple = ()
  value: Any = None

  def walk(self) -> Iterator['Node']:
    stack = [self]
    while stack:
      node = stack.pop()
      yield node
      stack.extend(node.args)

  def has(self, *kinds: str) -> bool:
    return any(node.kind in kinds for node in self.walk())


def number(value) -> Node:
  return Node('num', (), Fraction(value))


def decimal(text: str) -> Node:
  """Parses digits, with a point or an exponent, to an exact number."""
  mantissa, _, exponent = text.lower().partition('e')
  whole, _, fraction = mantissa.partition('.')
  scale = int(exponent or 0) - len(fraction)
  value = int(whole + fraction) if whole + fraction else 0
  if abs(scale) > MAX_EXPONENT:
    raise Limit('the exponent is too large')
  exact = Fraction(value) * Fraction(10) ** scale
  if len(fraction.rstrip('0')) >= 6 and not exponent:
    return Node('dec', (), (exact, len(fraction)))
  return Node('num', (), exact)


def symbol(name: str) -> Node:
  return Node('sym', (), name)


def names(node: Node, kind: str = 'sym') -> set[str]:
  return {n.value for n in node.walk() if n.kind == kind}


def replace(node: Node, old: Node, new: Node) -> Node:
  """Returns `node` with every `old` replaced by `new`."""
  if node == old:
    return new
  if not node.args:
    return node
  return node._replace(args=tuple(replace(a, old, new) for a in node.args))


ZERO, ONE, TWO = number(0), number(1), number(2)
INF = Node('const', (), 'inf')
EMPTY = Node('seq', (), '{}')
REALS = Node('seq', (Node('neg', (INF,)), INF), '()')
