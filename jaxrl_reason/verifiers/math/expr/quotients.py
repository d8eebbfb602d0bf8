"""Builds products and quotients, and reads remarks in brackets after a
value.
"""

from jaxrl_reason.verifiers.math.expr.nodes import (
  Node,
  ParseError,
  names,
  symbol,
)

EQUALS = frozenset(('=', '~'))
INTEGERS = frozenset('nmk')


def quotient(above: list[Node], below: list[Node]) -> Node:
  """Returns the product of factors, divided by the product of divisors."""
  above = [n for n in above if n is above[0] or not _is_case(n, above[0])]
  notes = [n for n in above[1:] if n.kind == 'rel' and EQUALS & set(n.value)]
  if notes:
    return _noted(above, below, notes)
  # "2k pi (k in Z)": a condition is not a factor.
  if len(above) > 1:
    above = [n for n in above if n.kind != 'rel'] or above
  top = above[0] if len(above) == 1 else Node('mul', tuple(above))
  if not below:
    return top
  bottom = below[0] if len(below) == 1 else Node('mul', tuple(below))
  return Node('div', (top, bottom))


def _is_case(node: Node, value: Node) -> bool:
  """Returns whether a bracket is the case of a number: 12 (n = 3).

  With letters that are not typical of integers, it may be a second answer.
  """
  return (
    node.kind == 'rel'
    and node.value == ('=',)
    and [arg.kind for arg in node.args] == ['sym', 'num']
    and node.args[0].value in INTEGERS
    and not names(value)
  )


def _noted(above: list[Node], below: list[Node], notes: list[Node]) -> Node:
  """Reads 5 (= 10/2), where the bracket repeats the value."""
  if len(notes) > 1 or notes[0].args[0] != symbol(''):
    raise ParseError('an equation as a factor')
  value = quotient([n for n in above if n is not notes[0]], below)
  repeated = notes[0].args[1:]
  return Node('rel', (value, *repeated), ('note',) * len(repeated))
