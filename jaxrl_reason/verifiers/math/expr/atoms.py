"""Parses the atoms of the grammar: numbers, names, brackets, commands."""

from fractions import Fraction

from jaxrl_reason.verifiers.math.expr import vocabulary as v
from jaxrl_reason.verifiers.math.expr.nodes import (
  Node,
  ParseError,
  decimal,
  number,
  symbol,
)

COUNTS = {'C': 'binom', 'P': 'perm'}


class Atoms:
  """A mixin of `parser.Parser`, which has the token position."""

  def atom(self) -> Node:
    token = self.token
    reader = getattr(self, f'_atom_{token.kind}', None)
    if reader is None:
      raise ParseError('unfinished')
    self.enter()
    node = reader()
    self.depth -= 1
    return node

  # --- numbers and names ---------------------------------------------------

  def _atom_num(self) -> Node:
    node = decimal(self.next().value)
    if node.kind == 'num' and node.value.denominator == 1:
      fraction = self._mixed_fraction()
      if fraction is not None:
        return Node('num', (), node.value + fraction)
    self._ordinal()
    return node

  def in_base(self, digits: Node) -> Node:
    base = self.script(chained=False)
    if base.kind == 'sym' and base.value in v.BASES:
      base = number(v.BASES[base.value])
    if base.kind != 'num' or not 2 <= base.value <= 36:
      raise ParseError('not a base')
    return Node('base', (), (str(int(digits.value)), int(base.value)))

  def _mixed_fraction(self) -> Fraction | None:
    """Parses the 1/2 of 3 1/2 and of 3\\frac{1}{2}, if it follows."""
    tokens = [self.peek(i) for i in range(8)]
    kinds = [t.kind for t in tokens]
    if kinds[:3] == ['num', 'op', 'num'] and tokens[1].value == '/':
      parts, used = (tokens[0].value, tokens[2].value), 3
    elif kinds[0] == 'cmd' and tokens[0].value in v.FRACTIONS:
      digits = [t.value for t in tokens if t.kind == 'num']
      shape = ''.join('#' if t.kind == 'num' else str(t.value) for t in tokens)
      shape = shape[len(tokens[0].value) :]
      if shape.startswith('{#}{#}'):
        parts, used = digits[:2], 7
      elif shape.startswith('#') and len(digits[0]) == 2:
        parts, used = digits[0], 2
      else:
        return None
    else:
      return None
    if not all(d.isdigit() and len(d) < 10 for d in parts):
      return None
    above, below = (int(d) for d in parts)
    if not 0 < above < below:
      return None
    for _ in range(used):
      self.next()
    return Fraction(above, below)

  def _ordinal(self):
    """Parses 15th: two letters directly after a number."""
    first, second = self.token, self.peek()
    if (
      first.kind == second.kind == 'letter'
      and not first.spaced
      and not second.spaced
      and first.value + second.value in v.ORDINALS
      and (self.peek(2).kind in ('end', 'word', 'unit') or self.peek(2).spaced)
    ):
      self.next()
      self.next()

  def _atom_fraction(self) -> Node:
    return Node('num', (), self.next().value)

  def _atom_scale(self) -> Node:
    return number(self.next().value)

  def _atom_word(self) -> Node:
    return symbol(self.next().value)

  def _atom_letter(self) -> Node:
    name = self.next().value
    if name in 'ei' and not self.on('_'):
      return Node('const', (), name)
    return self._named(name)

  def _named(self, name: str) -> Node:
    """Parses a variable with subscript and primes, or a function
    application.
    """
    if name == 'C' and self.on('_', '^') or name in 'AP' and self.on('_'):
      counted = self._combination(name)
      if counted is not None:
        return counted
    if self.on('_'):
      self.next()
      name = f'{name}_{self._raw_script()}'
    while self._prime_ahead():
      name += "'" * self._raw_script().count("'")
    if self.on('^') and name[0] in 'fgh' and self._inverse_ahead():
      self.script_after('^')
      name += '^-1'
    if self.on('(') and not self.token.spaced:
      if self._applies(name):
        return self._applied(name)
      if name[0].isupper() and self._pair_ahead():
        pair = self.bracketed('(')  # A(1, 2) names a point, C(5, 2) counts
        counts = name in COUNTS and len(pair.args) == 2
        return Node('call', pair.args, COUNTS[name]) if counts else pair
    return symbol(name)

  def _prime_ahead(self) -> bool:
    """Checks for ' or ^\\prime or ^{\\prime}, and stays at the script."""
    if self.on("'"):
      return True
    ahead = self.peek(2 if self.peek().value == '{' else 1)
    if self.on('^') and ahead.value == "'":
      self.next()
      return True
    return False

  def _applies(self, name: str) -> bool:
    if self.peek(2).value == ')' and self.peek(3).value == '=':
      return True  # y(x) = ...
    if name[0] in 'fgh' or name in ('phi', 'psi', 'varphi'):
      return True
    return name[0].isupper() and self.peek(2).value == ')'

  def _pair_ahead(self) -> bool:
    ahead = [self.peek(i) for i in range(1, 12)]
    for token in ahead:
      if token.value in ('(', ')', 'end'):
        return False
      if token.value == ',':
        return True
    return False

  def _applied(self, name: str) -> Node:
    inner = self.bracketed('(')
    args = inner.args if inner.kind == 'seq' else (inner,)
    return Node('call', args, name)

  def _inverse_ahead(self) -> bool:
    ahead = [self.peek(i).value for i in range(1, 5)]
    return ahead[:2] == ['-', '1'] or ahead == ['{', '-', '1', '}']

  def _combination(self, name: str) -> Node | None:
    """Parses C_5^2, A_5^2: n below, k above."""
    start = self.at
    first = self.next().value
    if first == '_' or name == 'C':
      one = self.script(chained=False)
      if self.on('_', '^') and not self.on(first):
        self.next()
        other = self.script(chained=False)
        n, k = (one, other) if first == '_' else (other, one)
        numeric = n.kind == k.kind == 'num'
        if (numeric and k.value <= n.value) or (name == 'C' and not numeric):
          kind = 'binom' if name == 'C' else 'perm'
          return Node('call', (n, k), kind)
    self.at, self.token = start, self.tokens[start]
    return None

  def _raw_script(self) -> str:
    """Returns a subscript as text, because it is part of a name."""
    if not self.take('{'):
      return str(self.next().value)
    parts, open_ = [], 1
    while open_:
      token = self.next()
      if token.kind == 'end':
        raise ParseError('unclosed {')
      open_ += (token.value == '{') - (token.value == '}')
      parts.append(str(token.value))
    return ''.join(parts[:-1])

  # --- operators and brackets ----------------------------------------------

  def _atom_op(self) -> Node:
    token = self.token
    if token.value in ('(', '[', ']'):
      return self.bracketed(token.value)
    if token.value in ('{', '\\{'):
      return self.braced()
    if token.value == '|':
      self.next()
      self.bars += 1
      inner = self.listing()
      self.bars -= 1
      self.expect('|')
      return Node('call', (inner,), 'abs')
    if token.value == '<':
      self.next()
      return self._vector('<', '>')
    if token.value == '...':
      self.next()
      return Node('opaque', (), '...')
    raise ParseError(f'unexpected {token.value!r}')
