"""Splits a text into tokens by one regular expression without backtracking.

Rules with context are applied here once: commas that group thousands, letters
that are words or a product, and the contents of `\\text{...}`.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from jaxrl_reason.verifiers.math.expr import vocabulary as v
from jaxrl_reason.verifiers.math.expr.nodes import MAX_CHARS, MAX_TOKENS, Limit
from jaxrl_reason.verifiers.math.expr.units import CURRENCY, UNITS


class Token(NamedTuple):
  """A token. Its kind is num (digits), fraction, word, letter, func, unit, cmd,
  op, begin, close (environments) or end.
  """

  kind: str
  value: object = None
  spaced: bool = False  # a space before it
  roman: bool = False  # inside \text{...}


END = Token('end')
# A thousands separator other than the ambiguous plain comma.
_SEPARATOR = r"(?: ?\{, ?\}|\\!,|,\\! ?|\\,|\\ |\\;|~|'| )"
_FRACTION = r'(?:\.\d+)?'
PATTERN = re.compile(
  r'(?P<space>[\s~]+|\\[,;:!> \n])'
  r'|(?P<repeat>\d*\.\d*\\(?:overline|bar|dot)(?:\{\d{1,40}\}|\d)'
  r'(?:\d{0,40}\\dot(?:\{\d\}|\d))?)'
  r'|(?P<dotted>\d*\.\d{3,40}(?:\.\.\.|\\ldots|\\cdots|\\dots))'
  rf'|(?P<grouped>[1-9]\d{{0,2}}(?:{_SEPARATOR}\d{{3}})+(?!\d){_FRACTION})'
  rf'|(?P<commas>[1-9]\d{{0,2}}(?:,\d{{3}})+(?!\d){_FRACTION})'
  r'|(?P<european>[1-9]\d{0,2}(?:\.\d{3}){2,}(?!\d|\.\d))'
  r'|(?P<decimal_comma>\d+\{,\}\d+)'
  r'|(?P<exponent>(?:\d+(?:\.\d+)?|\.\d+)[eE][+-]?\d{1,9}(?!\w|\.\d))'
  r'|(?P<number>\d+(?:\.\d+)?|\.\d+)'
  r'|(?P<begin>\\begin ?\{[a-zA-Z]{1,12}\*?\}'
  r'(?: ?\{[clr|@ ]{0,40}\}|\[[a-z]\])?)'
  r'|(?P<close>\\end ?\{[a-zA-Z]{1,12}\*?\})'
  r'|(?P<cmd>\\[A-Za-z]+)'
  r'|(?P<word>[A-Za-z]+|[\u4e00-\u9fff]+)'
  r'|(?P<op><=|>=|=<|!=|==|=>|->|\*\*|\.\.\.|\\[{}|\\%$#&_]'
  r"|[-+*/^_=<>(){}\[\]|,;:!%'&°.$€£¥¢₹?\"])"
)
OP_SPELLINGS = {
  '**': '^',
  '=<': '<=',
  '=>': 'imply',
  '->': 'to',
  '==': '=',
  '\\%': '%',
  '\\$': '$',
  '\\|': '|',
  '\\_': '_',
  '\\#': '#',
  '\\&': '&',
}
CLOSING = frozenset((')', ']', '}', '\\}', 'rangle', '>'))
BRACKETS = CLOSING | {'(', '[', '{', '\\{', 'langle', '<'}
ARGUMENT_AFTER = frozenset(('^', '_', '}', ']'))  # of a command, a script
VECTOR_AFTER = frozenset('( [ { , ; = + - \\{ in'.split())
SEVERAL_ARGUMENTS = frozenset('max min gcd lcm log'.split())
DIGITS = re.compile(r'\d+(?:\.\d+)?')
KEYWORDS: dict[str, tuple[str, object]] = {
  **{word: ('op', value) for word, value in v.WORD_OPERATORS.items()},
  **{word: ('scale', value) for word, value in v.SCALES.items()},
  **dict.fromkeys(v.APPROXIMATELY, ('op', '~')),
  'per': ('op', '/'),
}
SQUARE_CUBIC = {'平方': '2', '立方': '3'}
# Mass times gravity, mass times length: units only inside \\text.
PHYSICS = frozenset(('mg', 'ms', 'pt', 'mo', 'ha'))


class Reader:
  """One pass over a text; `ambiguous` is true if another reading is possible.

  `commas` selects the reading of `1,234` at top level: one number or a list.
  Inside brackets of a list, (1,234) is always a pair.
  """

  def __init__(self, text: str, *, commas: bool = True):
    if len(text) > MAX_CHARS:
      raise Limit(f'{len(text)} characters')
    self.text = text
    self.commas = commas
    self.ambiguous = False
    self.at = 0
    self.tokens: list[Token] = []
    # For each open bracket: its opening token, and whether its commas separate.
    self.open: list[tuple[str, bool]] = []
    # For each open {: whether it is removed (of \text), and whether it is
    # roman.
    self.braces: list[tuple[bool, bool]] = []
    self.text_next = False  # a \text was read, but not yet its {
    self.spaced = False
    # An odd dollar is a currency sign, a pair is a math delimiter.
    self.dollars = text.count('$') - text.count('\\$')

  def read(self) -> list[Token]:
    at, text = 0, self.text
    while at < len(text):
      self.at = at
      match = PATTERN.match(text, at)
      if match is None:
        self.add('op', text[at])
        at += 1
        continue
      at = getattr(self, '_' + match.lastgroup)(match[0], at) or match.end()
      if len(self.tokens) > MAX_TOKENS:
        raise Limit('too many tokens')
    self.tokens.append(END)
    return self.tokens

  @property
  def roman(self) -> bool:
    return bool(self.braces) and self.braces[-1][1]

  def add(self, kind: str, value):
    if value in BRACKETS and kind in ('op', 'cmd'):
      self._track(value)
    self.tokens.append(Token(kind, value, self.spaced, self.roman))
    self.spaced = False
    self.text_next = False

  def _track(self, value: str):
    """Updates `open`. In ]1, 2[ the first bracket opens if none is open."""
    last = self.tokens[-1] if self.tokens else END
    inside = self.open[-1] if self.open else ('', False)
    if value in CLOSING and (inside[0] or value != ']'):
      if self.open and (value != '>' or inside[0] == '<'):
        self.open.pop()
    elif value == '[' and inside[0] == ']':
      self.open.pop()
    elif value == '{':
      argument = last.kind in ('cmd', 'func') or last.value in ARGUMENT_AFTER
      self.open.append((value, inside[1] and not argument))
    elif value == '<':
      first = last is END or last.value in VECTOR_AFTER
      if first and '>' in self.text[self.at :]:
        self.open.append((value, True))
    else:
      single = value == '(' and (
        (last.kind == 'func' and last.value not in SEVERAL_ARGUMENTS)
        or last.value in ('sqrt', 'cbrt')
      )
      self.open.append((value, not single))

  def _space(self, text: str, at: int):
    self.spaced = text != '\\!'

  def _number(self, text: str, at: int):
    self.add('num', text)

  def _exponent(self, text: str, at: int):
    self.add('num', text)

  def _grouped(self, text: str, at: int):
    self.add('num', re.sub(r'[^\d.]', '', text))

  def _european(self, text: str, at: int):
    self.add('num', text.replace('.', ''))

  def _decimal_comma(self, text: str, at: int):
    self.add('num', text.replace('{,}', '.'))

  def _commas(self, text: str, at: int):
    separates = bool(self.open) and self.open[-1][1]
    # (10,000) can only be a number; (1,234) in brackets is a pair.
    self.ambiguous |= not separates
    if ',0' in text or (self.commas and not separates):
      self.add('num', text.replace(',', ''))
      return None
    first = text[: text.index(',')]
    self.add('num', first)
    self.add('op', ',')
    return self._rest(at + len(first) + 1)

  def _rest(self, at: int):
    """Skips a comma that separates. The next digits are another number."""
    match = DIGITS.match(self.text, at)
    self.add('num', match[0])
    return match.end()

  def _repeat(self, text: str, at: int):
    text = text.replace('\\overline', '(').replace('\\bar', '(')
    text = text.replace('\\dot', '(', 1).replace('\\dot', ' ')
    head, tail = text.split('(')
    self._repeating(head, ''.join(c for c in tail if c.isdigit()))

  def _dotted(self, text: str, at: int):
    digits = text.rstrip('.').split('\\')[0]
    head, _, decimals = digits.partition('.')
    for period in range(1, len(decimals) // 2 + 1):
      block = decimals[-period:]
      if decimals.endswith(block * 2) and len(decimals) >= 3:
        self._repeating(f'{head}.{decimals}', block)
        return
    self.add('num', digits)

  def _repeating(self, head: str, block: str):
    """Converts head.block block block ... to an exact fraction."""
    whole, _, start = head.partition('.')
    value = Fraction(int((whole or '0') + start), 10 ** len(start))
    repeated = Fraction(int(block), 10 ** len(block) - 1)
    self.add('fraction', value + repeated / 10 ** len(start))

  def _cmd(self, text: str, at: int):
    name = text[1:]
    if name in v.SKIPPED:
      # \left. and \right. are invisible brackets.
      if name in ('left', 'right') and self.text[at + len(text) :][:1] == '.':
        return at + len(text) + 1
      self.spaced = self.spaced or name.endswith('quad')
    elif name in v.TEXT_COMMANDS:
      self.text_next = True
    elif name in v.OPERATORS:
      self.add('op', v.OPERATORS[name])
    elif name in v.FUNCTIONS:
      self.add('func', v.FUNCTIONS[name])
    else:
      self.add('cmd', name)
    return None

  def _op(self, text: str, at: int):
    text = OP_SPELLINGS.get(text, text)
    if text in ('{', '}'):
      self._brace(text)
      return None
    if (
      text == '$'
      and self.text[at : at + 1] == '$'
      and not (self.dollars % 2 and self.text[at + 1 : at + 2].strip())
    ):
      return None  # a math delimiter
    if text == '.' and not self.text[at + 1 : at + 2].isdigit():
      return None  # a full stop
    self.add('unit' if text in CURRENCY else 'op', text)
    return None

  def _brace(self, text: str):
    if text == '{':
      dropped = self.text_next
      self.braces.append((dropped, dropped or self.roman))
    else:
      dropped = self.braces.pop()[0] if self.braces else False
    if dropped:  # \text{ cm} is a word, not a group
      self.spaced = True
      self.text_next = False
    else:
      self.add('op', text)

  def _begin(self, text: str, at: int):
    name = text.split('{')[1].split('}')[0].rstrip('*')
    # With &, a comma groups thousands. Without &, it may separate cells.
    self.open.append((name, 'matrix' in name and '&' not in self.text))
    self.add('begin', name)

  def _close(self, text: str, at: int):
    if self.open:
      self.open.pop()
    self.add('close', text.split('{')[1].split('}')[0].rstrip('*'))

  def _word(self, text: str, at: int):
    for kind, value in classify(text, self.roman):
      behind_number = self.tokens and self.tokens[-1].kind == 'num'
      if text.lower() in v.GROUPS and not behind_number:
        kind, value = 'word', text.lower()  # 95 average score
      self.add(kind, value)


def classify(word: str, roman: bool) -> list[tuple[str, object]]:
  """Classifies a run of letters as (kind, value): one word, or a product of
  letters.
  """
  lower = word.lower()
  if lower in KEYWORDS:
    return [KEYWORDS[lower]]
  if len(word) == 1 and (word.isascii() or word not in UNITS):
    return [('letter' if word.isascii() else 'word', word)]
  if v.ROMAN_NUMERAL.fullmatch(word) or (roman and lower in v.ORDINALS):
    return [('word', lower)]
  if roman and word == 'in':
    return [('op', 'in')]
  known = _mathematics(word, roman) or _unit(word, roman)
  if known:
    return known
  pieces = None if roman else v.segments(word)
  if pieces is not None:
    return [found for piece in pieces for found in classify(piece, False)]
  if not roman and (len(word) <= 3 or (word.isupper() and len(word) <= 6)):
    return [('letter', letter) for letter in word]
  return [('word', lower)]


def _mathematics(word: str, roman: bool) -> list[tuple[str, object]] | None:
  lower = word.lower()
  if lower in ('sqrt', 'cbrt', 'root'):
    return [('cmd', 'cbrt' if lower == 'cbrt' else 'sqrt')]
  minutes = roman and word == 'min'
  if word in v.FUNCTIONS and word not in v.COMMAND_ONLY and not minutes:
    return [('func', v.FUNCTIONS[word])]
  if lower in v.CONSTANTS or word in v.GREEK_NAMES:
    return [('cmd', lower if lower in v.CONSTANTS else word)]
  return None


def _unit(word: str, roman: bool) -> list[tuple[str, object]] | None:
  if word[:2] in SQUARE_CUBIC and word[2:] in UNITS:
    return [('unit', word[2:]), ('op', '^'), ('num', SQUARE_CUBIC[word[:2]])]
  if word in UNITS and (roman or word not in PHYSICS):
    return [('unit', word)]
  if len(word) > 2 and word.lower() in UNITS:
    return [('unit', word.lower())]
  return None
