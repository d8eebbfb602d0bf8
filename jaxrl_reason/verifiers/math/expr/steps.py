"""Chooses points where floor, ceiling and sign jump.

ceil(x) and floor(x) + 1 differ only at integers, which random points never are.
At these points, the arguments are integers.
"""

import itertools
from fractions import Fraction

from jaxrl_reason.verifiers.math.expr.exact import Exact
from jaxrl_reason.verifiers.math.expr.nodes import (
  Budget,
  Node,
  names,
  number,
  replace,
  symbol,
)

JUMPS = frozenset(('floor', 'ceil', 'sgn'))
# A power of two that is a square and a cube, multiples of small numbers.
INTEGERS = (64, 0, -120, 1, 729)
HALVES = (Fraction(5, 2), Fraction(-1, 2))
TARGETS = (0, 1, -2)  # of an argument that is linear in a variable
MAX_SOLVED = 4  # pairs of an argument and a variable


def points(a: Node, b: Node, budget: Budget) -> list[dict[str, Fraction]]:
  """Yields values of the variables; none if no function jumps."""
  inner = {
    call.args[0]
    for call in (*a.walk(), *b.walk())
    if call.kind == 'call' and call.value in JUMPS
  }
  variables = sorted(names(a) | names(b))
  if not any(names(argument) for argument in inner):
    return []
  candidates = [
    {name: Fraction(value) for name in variables}
    for value in (*INTEGERS, *HALVES)
  ]
  arguments = sorted(inner, key=repr)
  pairs = [(n, v) for n in arguments for v in sorted(names(n))]
  for argument, variable in itertools.islice(pairs, MAX_SOLVED):
    candidates += _solved(argument, variable, variables, budget)
  return candidates


def _solved(argument: Node, variable: str, variables: list[str], budget):
  """Returns points where a linear argument is one of TARGETS."""
  others = {
    name: Fraction(i)
    for i, name in enumerate((v for v in variables if v != variable), 1)
  }
  for name, value in others.items():
    argument = replace(argument, symbol(name), number(value))
  exact = Exact(budget)
  try:
    low, middle, high = (
      exact.value(replace(argument, symbol(variable), number(x)))
      for x in (0, 1, 2)
    )
  except ArithmeticError:  # not rational, or without a value there
    return []
  slope = middle - low
  if not slope or high - middle != slope:
    return []
  return [
    {**others, variable: (Fraction(target) - low) / slope} for target in TARGETS
  ]
