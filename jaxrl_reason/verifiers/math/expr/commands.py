"""Parses LaTeX commands with arguments and scripts, and functions."""

from jaxrl_reason.verifiers.math.expr import vocabulary as v
from jaxrl_reason.verifiers.math.expr.nodes import (
  EMPTY,
  TWO,
  Node,
  ParseError,
  decimal,
  number,
  replace,
  symbol,
)

BINOMIALS = frozenset(('binom', 'dbinom', 'tbinom'))
SYMBOLS = {'partial': 'd', 'nabla': 'nabla', 'hbar': 'hbar', 'ell': 'l'}
BIG_OPERATORS = frozenset(('sum', 'prod', 'int', 'iint', 'oint', 'lim'))
ALPHABETS = frozenset(
  ('mathbb', 'mathbf', 'Bbb', 'boldsymbol', 'bm', 'mathcal')
)
HATS = frozenset(
  'vec hat overrightarrow widehat overline bar tilde widetilde underline dot '
  'ddot'.split()
)
# A vector has one name with and without its arrow. These marks change the name.
PRIMES = {'dot': "'", 'ddot': "''"}
OTHER_NAMES = {'widehat': 'hat', 'hat': 'hat', 'widetilde': 'tilde'}
OTHER_NAMES |= {'tilde': 'tilde'}
FENCES = {'lfloor': 'rfloor', 'lceil': 'rceil'}
FENCE_NAMES = {'lfloor': 'floor', 'lceil': 'ceil'}
TRIGONOMETRIC = frozenset(('sin', 'cos', 'tan', 'cot', 'sec', 'csc'))


class Commands:
  """A mixin of `parser.Parser`, which has the token position."""

  def _atom_cmd(self) -> Node:
    name = self.next().value
    if name in v.FRACTIONS:
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
    if name in SYMBOLS:
      return symbol(SYMBOLS[name])
    if name in ('boxed', 'fbox'):
      return self.argument()
    raise ParseError(f'unknown command \\{name}')

  def argument(self) -> Node:
    """Parses a TeX argument: a group, or the next single digit, letter or
    command.
    """
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
    """Parses what ^ or _ applies to; x^12 and x^-1 without braces mean
    x^{12}.
    """
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
    if name.isdecimal():
      return decimal(name)
    return self._named(name) if name else EMPTY

  def _at_end_after(self) -> bool:
    return self.peek().kind == 'end' or self.peek().value in (')', '}', ',')

  def _decorated(self, name: str) -> Node:
    if name == 'underline':
      return self.argument()
    text = self._raw_script()
    if name in ('hat', 'vec') and text in ('i', 'j', 'k', 'imath', 'jmath'):
      return symbol(f'unit vector {text[0]}')
    if name in ('overline', 'bar') and len(text) == 1 and text.islower():
      return Node('call', (symbol(text),), 'conj')
    if name == 'overline' and text.isalpha() and text.isupper():
      return Node('mul', tuple(symbol(letter) for letter in text))
    if not text.isalnum():
      raise ParseError(f'\\{name} over {text!r}')
    mark = OTHER_NAMES.get(name)
    return symbol(f'{mark} {text}' if mark else text + PRIMES.get(name, ''))

  def _fenced(self, name: str) -> Node:
    inner = self.listing()
    if self.next().value != FENCES[name]:
      raise ParseError(f'unclosed \\{name}')
    return Node('call', (inner,), FENCE_NAMES[name])

  def _figure(self, name: str) -> Node:
    if self.on('{'):
      return symbol(f'{name} {self._raw_script()}')
    letters = ''
    while self.token.kind == 'letter' and len(letters) < 4:
      letters += self.next().value
    return symbol(f'{name} {letters}') if letters else self.atom()

  def _big_operator(self, name: str) -> Node:
    scripts = []
    while self.on('_', '^') and len(scripts) < 2:
      self.next()
      scripts.append(self.script(chained=False))
    body = self.product()
    return _written_out(name, scripts, body) or Node(
      'opaque', (*scripts, body), name
    )

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
    """Parses 2 pi x of `sin 2 pi x`, up to the next function or bracket."""
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


MAX_TERMS, MAX_NODES = 100, 2000  # of a sum or product written out


def _written_out(name: str, scripts: list[Node], body: Node) -> Node | None:
  """Expands a sum or product between two numbers into its terms."""
  if name not in ('sum', 'prod') or len(scripts) != 2:
    return None
  start, stop = scripts
  if start.kind != 'rel' or start.value != ('=',) or stop.kind != 'num':
    return None
  index, first = start.args
  if (
    first.kind != 'num' or 1 < first.value.denominator * stop.value.denominator
  ):
    return None
  low, high = int(first.value), int(stop.value)
  size = sum(1 for _ in body.walk())
  terms = high - low + 1
  if not 1 <= terms <= MAX_TERMS or terms * size > MAX_NODES:
    return None
  parts = [replace(body, index, number(i)) for i in range(low, high + 1)]
  kind = 'add' if name == 'sum' else 'mul'
  return parts[0] if terms == 1 else Node(kind, tuple(parts))
