"""Evaluates a tree in a domain of numbers, which a subclass defines.

A domain defines `number`, `symbol`, `unit`, `pow`, `root` and `call`. Sums,
products and quotients are Python's operators on its values.
"""

from fractions import Fraction

from jaxrl_reason.verifiers.math.expr import units
from jaxrl_reason.verifiers.math.expr.nodes import Budget, Node, Undefined


class Outside(ArithmeticError):
  """The value is not in this domain. The caller tries the next one."""


class Evaluator:
  """Computes `value(node)` in one domain, for one budget unit per node."""

  cost = 1

  def __init__(self, budget: Budget):
    self.budget = budget

  def value(self, node: Node):
    self.budget.spend(self.cost)
    method = getattr(self, f'_{node.kind}', None)
    if method is None:
      raise Outside(node.kind)
    return method(node)

  def number(self, value: Fraction):
    raise NotImplementedError

  def unit(self, base: str, factor: Fraction):
    raise NotImplementedError

  def divide(self, above, below):
    if below == 0:
      raise Undefined('division by zero')
    return above / below

  def _num(self, node: Node):
    return self.number(node.value)

  def _dec(self, node: Node):
    return self.number(node.value[0])

  def _base(self, node: Node):
    digits, base = node.value
    if any(int(d) >= base for d in digits):
      raise Undefined(f'{digits} has no value in base {base}')
    return self.number(Fraction(int(digits, base)))

  def _unit(self, node: Node):
    base, factor = units.BASE[node.value]
    return self.unit(base, factor)

  def _add(self, node: Node):
    total = self.value(node.args[0])
    for term in node.args[1:]:
      total = total + self.value(term)
    return total

  def _mul(self, node: Node):
    product = self.value(node.args[0])
    for factor in node.args[1:]:
      product = product * self.value(factor)
    return product

  def _neg(self, node: Node):
    return -self.value(node.args[0])

  def _div(self, node: Node):
    return self.divide(self.value(node.args[0]), self.value(node.args[1]))

  def _ratio(self, node: Node):
    value = self.value(node.args[0])
    for below in node.args[1:]:
      value = self.divide(value, self.value(below))
    return value
