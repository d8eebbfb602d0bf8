"""Parses units, and values with units."""

from jaxrl_reason.verifiers.math.expr import units, vocabulary
from jaxrl_reason.verifiers.math.expr.nodes import (
  Node,
  ParseError,
  number,
  replace,
)

CURRENCIES = frozenset(('eur', 'gbp', 'cny', 'inr'))


class Quantities:
  """A mixin of `parser.Parser`, which has the token position."""

  def quantity(self, above: list[Node]) -> Node:
    """Parses the next factor. It is a unit if numbers or units precede it."""
    measured = above[-1].has('num', 'dec', 'const', 'unit')
    if not self._at_unit() or (
      self.token.kind == 'unit' and not measured and self._letters_ahead()
    ):
      return self.power()
    return self.unit()

  def _compound_quantity(self, factors: list[Node]) -> str | None:
    """Returns the unit of 3 hours, if 20 minutes follow: they are added.

    With "and" or a comma between, and behind dollars, the number has a smaller
    unit of the same kind: 3 hours and 4 hours are two values.
    """
    joined = int(self.on('and', ','))
    last = factors[-1]
    if len(factors) == 2 and last.kind == 'num':
      last = factors[0]  # $5
    if last.kind != 'unit' or self.peek(joined).kind != 'num':
      return None
    prefixed = last.value in units.CURRENCY
    if joined or prefixed or units.BASE[last.value][0] in CURRENCIES:
      unit = str(self.peek(joined + 1).value)
      return last.value if units.is_smaller(unit, last.value) else None
    return last.value if last is factors[-1] else None

  def _smaller_part(self, larger: str) -> Node:
    """Parses the 20 minutes of 3 hours and 20 minutes."""
    self.take('and', ',')
    cents = units.beside('¢', larger)
    return replace(
      self.product(), Node('unit', (), '¢'), Node('unit', (), cents)
    )

  def _at_unit(self) -> bool:
    token = self.token
    if token.kind == 'unit' or (token.kind == 'func' and token.value == 'min'):
      return True
    if token.value == 'in' and self._inch_ahead():
      return True
    if token.kind == 'cmd' and token.value == 'Omega':
      self.ambiguous.add('letters')
      return self.letters
    if token.kind == 'letter' and token.value in units.LETTERS:
      if token.roman or self.letters:
        return True
      per = self.at > 1 and self.tokens[self.at - 2].kind == 'unit'  # km/h
      self.ambiguous.add('letters' if token.spaced or per else 'glued')
    if token.roman and token.value in units.ROMAN_LETTERS:
      return True
    return token.kind == 'word'

  def _inch_ahead(self) -> bool:
    following = self.peek()
    return following.kind == 'end' or following.value in ('^', ',', ')')

  def _at_real_unit(self) -> bool:
    return self._at_unit() and self.token.kind != 'word'

  def temperature(self) -> Node:
    """Parses the C of 20 degrees C, and returns the unit."""
    token, following = self.token, self.peek()
    named = token.kind == 'unit' and token.value.title() in (
      units.TEMPERATURES.values()
    )
    if token.kind == 'letter' and token.value in units.TEMPERATURES:
      named = not token.spaced or token.roman or following.kind == 'end'
    if not named:
      return Node('unit', (), '°')
    scale = self.next().value
    return Node('unit', (), units.TEMPERATURES.get(scale, scale.title()))

  def _atom_unit(self) -> Node:
    if self._letters_ahead():
      self._split_unit()
      return self.atom()
    currency = self.token.value in units.CURRENCY
    unit = self.unit()
    if currency and self.on('-'):  # $-5
      return Node('mul', (unit, self.signed_factor()))
    return unit

  def _letters_ahead(self) -> bool:
    """Parses cm without a number before it: c times m."""
    token = self.token
    return not token.roman and len(token.value) == 2 and token.value.isalpha()

  def _split_unit(self):
    first, second = self.token.value
    spaced = self.token.spaced
    self.tokens[self.at : self.at + 1] = [
      self.token._replace(kind='letter', value=first, spaced=spaced),
      self.token._replace(kind='letter', value=second, spaced=False),
    ]
    self.token = self.tokens[self.at]

  def unit(self) -> Node:
    """Parses one unit with its power; unknown words after a number count
    things.
    """
    token = self.next()
    spelling = token.value
    if spelling in ('squared', 'cubed'):
      raise ParseError(f'a number {spelling}')
    if token.kind == 'word':
      if spelling in vocabulary.HEDGES:
        raise ParseError(f'{spelling} between numbers')
      name = units.VAGUE
    else:
      name = units.UNITS[spelling]
    node = Node('unit', (), name)
    power = {'square': 2, 'sq': 2, 'cubic': 3, 'cu': 3}.get(spelling)
    if name == '°':
      node = self.temperature()
    if power and self._at_real_unit():
      return Node('pow', (self.unit(), number(power)))
    if self.token.value in ('squared', 'cubed'):
      return Node(
        'pow', (node, number(2 if self.next().value == 'squared' else 3))
      )
    if self.on('^'):
      self.next()
      node = self.raised(node)
    return node
