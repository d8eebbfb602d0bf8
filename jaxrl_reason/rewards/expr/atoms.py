"""The smallest pieces of the grammar: numbers, names, brackets, commands."""

from fractions import Fraction

from jaxrl_reason.rewards.expr import units
from jaxrl_reason.rewards.expr import vocabulary as v
from jaxrl_reason.rewards.expr.nodes import (
  EMPTY,
  TWO,
  Limit,
  Node,
  ParseError,
  number,
  symbol,
)

FRACTIONS = frozenset(('frac', 'dfrac', 'tfrac', 'cfrac', 'nicefrac', 'sfrac'))
BINOMIALS = frozenset(('binom', 'dbinom', 'tbinom'))
BIG_OPERATORS = frozenset(('sum', 'prod', 'int', 'iint', 'oint', 'lim'))
ALPHABETS = frozenset(
  ('mathbb', 'mathbf', 'Bbb', 'boldsymbol', 'bm', 'mathcal')
)
HATS = frozenset(
  'vec hat overrightarrow widehat overline bar tilde underline dot'.split()
)
FENCES = {'lfloor': 'rfloor', 'lceil': 'rceil'}
FENCE_NAMES = {'lfloor': 'floor', 'lceil': 'ceil'}
TRIGONOMETRIC = frozenset(('sin', 'cos', 'tan', 'cot', 'sec', 'csc'))
MAX_EXPONENT_DIGITS = 6


class Atoms:
  """Mixed into `parser.Parser`, which has the token position."""

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
    if self.on('_') and node.kind == 'num':
      self.next()
      return self._in_base(node)
    self._ordinal()
    return node

  def _in_base(self, digits: Node) -> Node:
    base = self.script(chained=False)
    if base.kind != 'num' or not 2 <= base.value <= 36:
      raise ParseError('not a base')
    return Node('base', (), (str(int(digits.value)), int(base.value)))

  def _mixed_fraction(self) -> Fraction | None:
    """The 1/2 of 3 1/2 and of 3\\frac{1}{2}, if that is what follows."""
    tokens = [self.peek(i) for i in range(8)]
    kinds = [t.kind for t in tokens]
    if kinds[:3] == ['num', 'op', 'num'] and tokens[1].value == '/':
      found, used = (tokens[0].value, tokens[2].value), 3
    elif kinds[0] == 'cmd' and tokens[0].value in FRACTIONS:
      digits = [t.value for t in tokens if t.kind == 'num']
      shape = ''.join('#' if t.kind == 'num' else str(t.value) for t in tokens)
      shape = shape[len(tokens[0].value) :]
      if shape.startswith('{#}{#}'):
        found, used = digits[:2], 7
      elif shape.startswith('#') and len(digits[0]) == 2:
        found, used = digits[0], 2
      else:
        return None
    else:
      return None
    if not all(d.isdigit() and len(d) < 10 for d in found):
      return None
    above, below = (int(d) for d in found)
    if not 0 < above < below:
      return None
    for _ in range(used):
      self.next()
    return Fraction(above, below)

  def _ordinal(self):
    """15th: two letters glued to a number."""
    first, second = self.token, self.peek()
    if (
      first.kind == second.kind == 'letter'
      and not first.spaced
      and not second.spaced
      and first.value + second.value in ('st', 'nd', 'rd', 'th')
      and (self.peek(2).kind in ('end', 'word', 'unit') or self.peek(2).spaced)
    ):
      self.next()
      self.next()

  def _atom_fraction(self) -> Node:
    return Node('num', (), self.next().value)

  def _atom_word(self) -> Node:
    return symbol(self.next().value)

  def _atom_unit(self) -> Node:
    return self.unit()

  def _atom_letter(self) -> Node:
    name = self.next().value
    if name in 'ei' and not self.on('_'):
      return Node('const', (), name)
    return self._named(name)

  def _named(self, name: str) -> Node:
    """A variable with its subscript and primes, or a function applied."""
    if name == 'C' and self.on('_', '^') or name in 'AP' and self.on('_'):
      counted = self._combination(name)
      if counted is not None:
        return counted
    if self.on('_'):
      self.next()
      name = f'{name}_{self._raw_script()}'
    while self.on("'"):
      self.next()
      name += "'"
    if self.on('^') and name[0] in 'fgh' and self._inverse_ahead():
      self.script_after('^')
      name += '^-1'
    if self.on('(') and not self.token.spaced:
      if self._applies(name):
        return self._applied(name)
      if name[0].isupper() and self._pair_ahead():
        return self.bracketed('(')  # A(1, 2) names a point
    return symbol(name)

  def _applies(self, name: str) -> bool:
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
    """C_5^2, A_5^2: n below, k above."""
    start = self.at
    first = self.next().value
    if first == '_' or name == 'C':
      one = self.script(chained=False)
      if self.on('_', '^') and not self.on(first):
        self.next()
        other = self.script(chained=False)
        n, k = (one, other) if first == '_' else (other, one)
        counts = all(x.kind == 'num' for x in (n, k))
        if counts or (name == 'C' and n.kind in ('num', 'sym')):
          kind = 'binom' if name == 'C' else 'perm'
          return Node('call', (n, k), kind)
    self.at, self.token = start, self.tokens[start]
    return None

  def _raw_script(self) -> str:
    """A subscript as text: names are not computed with."""
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

  # --- units ---------------------------------------------------------------

  def unit(self) -> Node:
    """One unit with its power; unknown words after a number count things."""
    token = self.next()
    spelling = token.value
    if token.kind == 'word':
      name = units.VAGUE
    else:
      name = units.UNITS[spelling]
    node = Node('unit', (), name)
    power = {'square': 2, 'sq': 2, 'cubic': 3, 'cu': 3}.get(spelling)
    if power and self.token.kind == 'unit':
      return Node('pow', (self.unit(), number(power)))
    if self.token.value in ('squared', 'cubed'):
      return Node(
        'pow', (node, number(2 if self.next().value == 'squared' else 3))
      )
    if self.on('^'):
      self.next()
      node = self.raised(node)
    return node

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

  # --- commands ------------------------------------------------------------

  def _atom_cmd(self) -> Node:
    name = self.next().value
    if name in FRACTIONS:
      return Node('div', (self.argument(), self.argument()))
    if name in BINOMIALS:
      return Node('call', (self.argument(), self.argument()), 'binom')
    if name in ('sqrt', 'cbrt'):
      return self._root(name)
    if name in v.CONSTANTS:
      return Node('const', (), v.CONSTANTS[name])
    if name in v.GREEK_NAMES:
      return self._named(v.GREEK_ALIASES.get(name, name))
    if name in v.EMPTY_COMMANDS:
      return EMPTY
    if name in ALPHABETS:
      return self._alphabet()
    if name in HATS:
      return self._decorated(name)
    if name in FENCES:
      return self._fenced(name)
    if name == 'langle':
      return self._vector('langle', 'rangle')
    if name in ('angle', 'triangle'):
      return self._figure(name)
    if name in BIG_OPERATORS:
      return self._big_operator(name)
    if name in ('boxed', 'fbox'):
      return self.argument()
    raise ParseError(f'unknown command \\{name}')

  def argument(self) -> Node:
    """A TeX argument: a group, or the next single digit, letter or command."""
    if self.token.kind == 'num' and len(self.token.value) > 1:
      digits = self.token.value
      if not digits.isdigit():
        raise ParseError('a decimal without braces')
      self.token = self.token._replace(value=digits[1:])
      self.tokens[self.at] = self.token
      return number(int(digits[0]))
    if self.on('{'):
      return self.braced()
    if self.token.kind == 'num':
      return number(int(self.next().value))
    return self.atom()

  def script_after(self, operator: str) -> Node:
    self.expect(operator)
    return self.script()

  def script(self, *, chained: bool = True) -> Node:
    """What ^ or _ applies to; x^12 and x^-1 without braces mean x^{12}."""
    if self.on('-', '+'):
      self.enter()
      negative = self.next().value == '-'
      inner = self.script()
      self.depth -= 1
      return Node('neg', (inner,)) if negative else inner
    if self.on('{'):
      return self.braced()
    if self.token.kind == 'num':
      node = decimal(self.next().value)
    else:
      node = self.atom()
    if chained and self.on('^'):  # 2^3^2 is 2^9
      self.next()
      self.enter()
      node = Node('pow', (node, self.script()))
      self.depth -= 1
    return node

  def _root(self, name: str) -> Node:
    degree = TWO if name == 'sqrt' else number(3)
    if name == 'sqrt' and self.on('['):
      self.next()
      degree = self.additive()
      self.expect(']')
    elif name == 'sqrt' and self.on('^'):
      degree = self.script_after('^')
    if self.token.kind == 'num':
      radicand = decimal(self.next().value)
    elif self.on('('):
      radicand = self.bracketed('(')
    elif self.on('{'):
      radicand = self.braced()
    else:
      radicand = self.atom()
    return Node('root', (degree, radicand))

  def _alphabet(self) -> Node:
    name = self._raw_script()
    if name in ('R', 'Z', 'N', 'Q', 'C'):
      while self.on('^', '_'):
        self.next()
        name += self._raw_script()
      if self.on('+', '*') and self._at_end_after():
        name += self.next().value
      return Node('const', (), f'set:{name}')
    if name in ('i', 'j', 'k'):
      return symbol(f'unit vector {name}')
    return self._named(name) if name else EMPTY

  def _at_end_after(self) -> bool:
    return self.peek().kind == 'end' or self.peek().value in (')', '}', ',')

  def _decorated(self, name: str) -> Node:
    text = self._raw_script()
    if name == 'hat' and text in ('i', 'j', 'k', 'imath', 'jmath'):
      return symbol(f'unit vector {text[0]}')
    if name in ('overline', 'bar') and len(text) == 1 and text.islower():
      return Node('call', (symbol(text),), 'conj')
    if not text.isalnum():
      raise ParseError(f'\\{name} over {text!r}')
    return symbol(text)

  def _fenced(self, name: str) -> Node:
    inner = self.listing()
    if self.next().value != FENCES[name]:
      raise ParseError(f'unclosed \\{name}')
    return Node('call', (inner,), FENCE_NAMES[name])

  def _figure(self, name: str) -> Node:
    letters = ''
    while self.token.kind == 'letter' and len(letters) < 4:
      letters += self.next().value
    return symbol(f'{name} {letters}') if letters else self.atom()

  def _big_operator(self, name: str) -> Node:
    scripts = []
    while self.on('_', '^') and len(scripts) < 2:
      self.next()
      scripts.append(self.script(chained=False))
    return Node('opaque', (*scripts, self.product()), name)

  # --- functions -----------------------------------------------------------

  def _atom_func(self) -> Node:
    name = self.next().value
    base = exponent = None
    for _ in range(2):
      if self.on('_') and base is None:
        self.next()
        base = self.script(chained=False)
      elif self.on('^') and exponent is None:
        exponent = self.script_after('^')
    if exponent == Node('neg', (number(1),)) and name in v.INVERSE:
      name, exponent = v.INVERSE[name], None
    call = Node('call', self._arguments(name), name)
    if base is not None:
      call = call._replace(args=(*call.args, base))
    return call if exponent is None else Node('pow', (call, exponent))

  def _arguments(self, name: str) -> tuple[Node, ...]:
    if self.on('('):
      inner = self.bracketed('(')
    elif self.on('{', '\\{'):
      inner = self.braced()
    else:
      return (self._bare_argument(name),)
    return inner.args if inner.kind == 'seq' else (inner,)

  def _bare_argument(self, name: str) -> Node:
    """2 pi x of `sin 2 pi x`; stops at the next function or bracket."""
    parts = [self.power()]
    while self._continues(parts):
      parts.append(self.power())
    node = parts[0] if len(parts) == 1 else Node('mul', tuple(parts))
    angle = any(p == Node('const', (), 'pi') for p in parts)
    if name in TRIGONOMETRIC and angle and self.on('/'):
      if self.peek().kind == 'num':  # sin pi/6
        self.next()
        node = Node('div', (node, decimal(self.next().value)))
    return node

  def _continues(self, parts: list[Node]) -> bool:
    token = self.token
    if not self._starts_factor(parts[-1]):
      return False
    if token.kind in ('letter', 'num'):
      return not token.roman
    numeric = all(p.kind in ('num', 'dec', 'const') for p in parts)
    if token.kind == 'cmd':
      named = token.value in v.GREEK_NAMES or token.value in v.CONSTANTS
      return named or numeric
    return numeric and self.on('(', '{')


def decimal(text: str) -> Node:
  """Digits, with a point or an exponent, as an exact number."""
  mantissa, _, exponent = text.lower().partition('e')
  whole, _, fraction = mantissa.partition('.')
  if len(exponent) > MAX_EXPONENT_DIGITS:
    raise Limit('the exponent is too large')
  scale = int(exponent or 0) - len(fraction)
  value = int(whole + fraction) if whole + fraction else 0
  if abs(scale) > 6_000:
    raise Limit('the exponent is too large')
  exact = Fraction(value) * Fraction(10) ** scale
  if len(fraction.rstrip('0')) >= 6 and not exponent:
    return Node('dec', (), (exact, len(fraction)))
  return Node('num', (), exact)
