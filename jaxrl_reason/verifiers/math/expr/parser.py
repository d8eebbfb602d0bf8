"""Parses tokens to a tree by recursive descent, one function per precedence.

listing    a, b and c          relation   a < x <= b, x in S, x = 5
setop      A union B           ratio      3:4
additive   + - plus-minus      product    * / and juxtaposition
signed     -x                  power      x^2, 5!, 30 degrees, 50%
"""

import math

from jaxrl_reason.verifiers.math.expr import vocabulary as v
from jaxrl_reason.verifiers.math.expr.atoms import Atoms
from jaxrl_reason.verifiers.math.expr.brackets import Brackets
from jaxrl_reason.verifiers.math.expr.commands import Commands
from jaxrl_reason.verifiers.math.expr.nodes import (
  INF,
  MAX_DEPTH,
  Limit,
  Node,
  ParseError,
  number,
  symbol,
)
from jaxrl_reason.verifiers.math.expr.quantities import Quantities
from jaxrl_reason.verifiers.math.expr.quotients import quotient
from jaxrl_reason.verifiers.math.expr.tokens import Reader, Token

RELATIONS = frozenset(
  '= < > <= >= != ~ in notin subset to imply iff parallel perp'.split()
)
SEPARATORS = frozenset((',', ';', 'and', 'or', '\\\\'))
SET_OPERATORS = frozenset(('union', 'inter', 'minus'))
# Operators that can begin an atom, and so an implicit product.
OPENERS = frozenset(('(', '[', '{', '\\{', '|'))
MAX_POSTFIX = 6
MAX_DOUBLE = 300  # of n in n!!
MODULO = frozenset(('pmod', 'bmod', 'mod'))
CLOSERS = frozenset(('rangle', 'rfloor', 'rceil', 'choose', 'atop')) | MODULO


def parse(
  text: str,
  *,
  commas: bool = True,  # 1,234 at top level is one number
  tight: bool = False,  # 1/2x is 1/(2x)
  letters: bool = False,  # the m of "5 m" is a metre
) -> tuple[Node, frozenset[str]]:
  """Parses a cleaned answer. Returns its tree and the names of other readings.

  The names are those of the arguments; 'glued' is `letters` without a space.
  """
  reader = Reader(text, commas=commas)
  parser = Parser(reader.read(), tight=tight, letters=letters)
  node = parser.listing()
  if parser.token.kind != 'end':
    raise ParseError(f'unexpected {parser.token.value!r}')
  readings = parser.ambiguous | ({'commas'} if reader.ambiguous else set())
  return node, frozenset(readings)


class Parser(Atoms, Brackets, Commands, Quantities):
  """The state: the position, the open brackets, and the ambiguous readings."""

  def __init__(self, tokens: list[Token], *, tight: bool, letters: bool):
    self.tokens = tokens
    self.tight = tight
    self.letters = letters
    self.at = 0
    self.token = tokens[0]
    self.depth = 0
    self.bars = 0  # open | of absolute values
    self.builders = 0  # open { in which | means "such that"
    self.angles = 0  # open < of vectors
    self.french = 0  # open ] of ]1, 2[
    self.ambiguous: set[str] = set()

  def next(self) -> Token:
    token = self.token
    if token.kind != 'end':
      self.at += 1
      self.token = self.tokens[self.at]
    return token

  def peek(self, ahead: int = 1) -> Token:
    return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

  def on(self, *operators: str) -> bool:
    return self.token.kind == 'op' and self.token.value in operators

  def take(self, *operators: str) -> bool:
    matches = self.on(*operators)
    if matches:
      self.next()
    return matches

  def expect(self, *operators: str):
    if not self.take(*operators):
      raise ParseError(f'expected {operators[0]}, not {self.token.value!r}')

  def enter(self):
    self.depth += 1
    if self.depth > MAX_DEPTH:
      raise Limit('nested too deeply')

  def listing(self) -> Node:
    """Parses one answer or several, with the words between them."""
    if self.token.kind in ('word', 'unit') and self.peek().value == ':':
      self.next()  # "domain: (0, 1)", "total: 12"
      self.next()
    items = [self.relation()]
    kinds = set()
    while self.on(*SEPARATORS):
      while self.on(*SEPARATORS):
        kinds.add(self.next().value)
      if self._at_close():
        break  # a trailing comma
      items.append(self.relation())
    if len(items) == 1:
      return items[0]
    kind = 'or' if 'or' in kinds else 'and' if 'and' in kinds else ','
    return Node('seq', tuple(items), kind)

  def _at_close(self) -> bool:
    return (
      self.token.kind in ('end', 'close')
      or self.on(')', ']', '}', '\\}', '>')
      or (self.token.kind == 'cmd' and self.token.value in CLOSERS)
      or (self.on('|') and self.bars > 0)
    )

  def relation(self) -> Node:
    # "= 5" and "> 5" have no left side. <1, 2> is a vector.
    bare = self.on(*RELATIONS) and not (self.on('<') and self._op_ahead('>'))
    left = symbol('') if bare else self.setop()
    operands, operators = [left], []
    while self.token.kind == 'op' and self._relation_here():
      negated = self.token.value == 'not'
      if negated:
        self.next()
      operator = self.next().value
      operators.append(
        {'=': '!=', 'in': 'notin'}.get(operator, operator)
        if negated
        else operator
      )
      operands.append(self.setop())
    if self.token.kind == 'cmd' and self.token.value in MODULO:
      inside = self.next().value != 'pmod'
      modulus = self.argument()
      whole = all(n.kind == 'num' for n in (left, modulus))
      if inside and whole and modulus.value:  # 17 mod 5 is a number
        return number(left.value % modulus.value)
      operators.append('mod')
      operands.append(modulus)
    if not operators:
      return left
    return Node('rel', tuple(operands), tuple(operators))

  def _relation_here(self) -> bool:
    return (
      self.token.value in RELATIONS or self.token.value == 'not'
    ) and not (self.angles and self.token.value in '<>')

  def _op_ahead(self, operator: str) -> bool:
    rest = self.tokens[self.at :]
    return any(t.kind == 'op' and t.value == operator for t in rest)

  def setop(self) -> Node:
    left = self.ratio()
    while self._set_operator() is not None:
      operator = self._set_operator()
      self.next()
      right = self.ratio()
      if left.kind == 'setop' and left.value == operator != 'minus':
        left = left._replace(args=(*left.args, right))
      else:
        self.enter()
        left = Node('setop', (left, right), operator)
    return left

  def _set_operator(self) -> str | None:
    token = self.token
    if token.kind == 'op' and token.value in SET_OPERATORS:
      return token.value
    if token.kind == 'letter' and token.value in 'Uu':
      return 'union'  # reached only after a closing bracket: see `product`
    return None

  def ratio(self) -> Node:
    parts = [self.additive()]
    while self.on(':') and not self.builders:
      self.next()
      parts.append(self.additive())
    return parts[0] if len(parts) == 1 else Node('ratio', tuple(parts))

  def additive(self) -> Node:
    terms = [self.signed()]
    while self.on('+', '-', 'pm', 'mp'):
      operator = self.next().value
      term = self.signed()
      if operator == '-':
        term = Node('neg', (term,))
      elif operator in ('pm', 'mp'):
        term = Node('pm', (term,), 1 if operator == 'pm' else -1)
      terms.append(term)
    return terms[0] if len(terms) == 1 else Node('add', tuple(terms))

  def signed(self) -> Node:
    if not self.on('+', '-', 'pm', 'mp'):
      return self.product()
    self.enter()
    operator = self.next().value
    inner = self.signed()
    self.depth -= 1
    if operator == '+':
      return inner
    if operator == '-':
      return Node('neg', (inner,))
    return Node('pm', (inner,), 1 if operator == 'pm' else -1)

  def product(self) -> Node:
    """Parses factors and divisors of one term, flat: a/b/c is a/(bc)."""
    above, below = [self.power()], []
    while True:
      last = (below or above)[-1]
      if self.on('*'):
        self.next()
        above.append(self.unit() if self._at_real_unit() else self.factor())
      elif self.on('/'):
        self.next()
        if self.token.kind == 'word' and last.kind == 'sym':
          raise ParseError('true/false')
        below.append(self.divisor())
      elif larger := self._compound_quantity(below or above):
        return Node('add', (quotient(above, below), self._smaller_part(larger)))
      elif self._starts_factor(last):
        above.append(self.quantity(above))
      else:
        return quotient(above, below)

  def factor(self) -> Node:
    """Parses a factor; after an explicit operator a sign may follow: 3 * -2."""
    if self.on('-', '+'):
      return self.signed_factor()
    return self.power()

  def signed_factor(self) -> Node:
    self.enter()
    negative = self.next().value == '-'
    inner = self.factor()
    self.depth -= 1
    return Node('neg', (inner,)) if negative else inner

  def divisor(self) -> Node:
    if self._at_unit():
      return self.unit()
    first = self.factor()
    parts = [first]
    while self._starts_factor(parts[-1]) and not self._at_unit():
      if not self.tight:
        self.ambiguous.add('tight')
        return first
      parts.append(self.power())
    return first if len(parts) == 1 else Node('mul', tuple(parts))

  def _starts_factor(self, last: Node) -> bool:
    token = self.token
    if token.kind == 'num' or token.kind == 'fraction':
      return last.kind not in ('num', 'dec')
    if token.kind == 'letter':
      is_union = token.value in 'Uu' and last.kind in ('seq', 'setop')
      return not is_union
    if token.kind in ('func', 'word', 'begin', 'scale'):
      return True
    if token.kind == 'unit':
      return True
    if token.kind == 'cmd':
      return token.value not in CLOSERS
    if token.value == 'in':
      return self._inch_ahead()
    if token.value == '|':
      return self.bars == 0 and not self.builders
    if token.value == '[' and self.french:
      return False
    return token.kind == 'op' and token.value in OPENERS

  def power(self) -> Node:
    """Parses an atom with its suffixes: ! % degrees ' ^ and _."""
    base = self.atom()
    for _ in range(MAX_POSTFIX):
      if self.on('^'):
        self.next()
        base = self.raised(base)
      elif self.on('_') and base.kind == 'num':
        self.next()
        base = self.in_base(base)
      elif self.on("'") and base.kind == 'num':  # 6'2'' tall
        self.next()
        inches = self.take("'")
        unit = Node('unit', (), 'inch' if inches else 'ft')
        base = Node('mul', (base, unit))
      elif self.on('!'):
        self.next()
        double = self.on('!') and not self.token.spaced
        base = self._double_factorial(base) if double else Node('fact', (base,))
      elif self.on('%', '°'):
        percent = self.next().value == '%'
        unit = Node('unit', (), '%') if percent else self.temperature()
        base = Node('mul', (base, unit))
      else:
        return base
    raise Limit('too many operators behind one atom')

  def _double_factorial(self, base: Node) -> Node:
    """Computes 7!! = 7 * 5 * 3 * 1. For a variable, !! is a function."""
    self.next()
    if base.kind != 'num':
      return Node('call', (base,), 'double factorial')
    if base.value > MAX_DOUBLE or base.value.denominator > 1:
      raise Limit('a double factorial that is large or of no integer')
    return number(math.prod(range(int(base.value), 0, -2)))

  def raised(self, base: Node) -> Node:
    if self.on('circ', '°') or self._is_degree_group(base):
      self._skip_group()
      return Node('mul', (base, self.temperature()))
    if self._is_ordinal():
      self._skip_group()
      return base
    if self.on("'"):
      self.next()
      return base
    self.enter()
    exponent = self.script()
    self.depth -= 1
    if base.kind == 'seq' and exponent == symbol('T'):
      return base  # a row written as the transpose of a column
    if exponent == INF:
      raise ParseError('an infinite exponent')
    return Node('pow', (base, exponent))

  def _is_degree_group(self, base: Node) -> bool:
    if self.token.value == 'o':
      return base.kind == 'num'  # 30^o
    following, closed = self.peek(), self.peek(2)
    return (
      self.on('{')
      and closed.value == '}'
      and following.value in ('circ', '°', 'o')
    )

  def _is_ordinal(self) -> bool:
    start = 1 if self.on('{') else 0
    token = self.peek(start)
    if token.kind == 'word':
      return token.value in v.ORDINALS
    pair = f'{token.value}{self.peek(start + 1).value}'
    return start == 1 and pair in v.ORDINALS

  def _skip_group(self):
    if self.take('{'):
      while not self.on('}') and self.token.kind != 'end':
        self.next()
    self.next()
