"""Countdown, game of 24, base conversion."""

import re
from collections import Counter

from jaxrl_reason.rewards.puzzles import instances
from jaxrl_reason.tasks import countdown as family

MAX_NUMBERS = 20
MAX_CHARS = 4000  # of an expression
MAX_BASE_DIGITS = 1000
DIGITS = '0123456789abcdefghijklmnopqrstuvwxyz'
SIGNS = {
  '×': '*', '·': '*', '\\times': '*', '\\cdot': '*', '÷': '/', '\\div': '/',
  '−': '-', '\\left': '', '\\right': '', '$': '', '`': '',
}  # fmt: skip
NUMERAL = re.compile(r'([+-]?)(0[box])?([0-9a-z]+)(?:_\{?([0-9]{1,2})\}?)?')
PREFIX = {'0b': 2, '0o': 8, '0x': 16}


def countdown(text: str, *, numbers, target, use='subset') -> float | None:
  """Checks an expression over the numbers whose value is the target.

  numbers: integers from 0. target: an integer. use: 'all' (each number exactly
  once) or 'subset' (at most once).

  The grammar is that of `tasks.countdown`, with room for larger numbers and
  more parentheses; ×, ÷ and LaTeX's signs are read, and `= target` may stand
  after it. Half for the right use of the numbers alone.
  """
  given = instances.integers('numbers', numbers, 0, 10**12, at_most=MAX_NUMBERS)
  target = instances.integer('target', target, -(10**15), 10**15)
  instances.choice('use', use, ('all', 'subset'))
  return _expression(text, given, target, use)


def game24(text: str, *, numbers) -> float | None:
  """Checks an expression over all of the numbers, each once, whose value is
  24.
  """
  given = instances.integers('numbers', numbers, 0, 10**12, at_most=MAX_NUMBERS)
  return _expression(text, given, 24, 'all')


def _expression(text, given: list[int], target: int, use: str) -> float | None:
  if len(text) > MAX_CHARS:
    return None
  for sign, plain in SIGNS.items():
    text = text.replace(sign, plain)
  text, equals, value = text.strip('* \n').partition('=')
  tokens = family.tokenize(text, 8 * len(given), max_digits=15)
  if not tokens or (found := family.evaluate(tokens)) is None:
    return None
  used = Counter(int(token) for token in tokens if token.isdigit())
  allowed = Counter(given)
  if not (used == allowed if use == 'all' else used <= allowed):
    return 0.0
  if equals and value.strip() != str(target):
    return 0.0
  return 1.0 if found == target else 0.5


def base_conversion(
  text: str, *, number, from_base=10, to_base=10
) -> float | None:
  """Checks the number in another base, in any case, with leading zeros or
  without.

  number: its numeral in from_base, as text (an integer, if that is 10). Bases
  from 2 to 36. 0b, 0o, 0x or a subscript may name the base, if it is the right
  one.
  """
  bases = [
    instances.integer(name, base, 2, 36)
    for name, base in (('from_base', from_base), ('to_base', to_base))
  ]
  if isinstance(number, int) and not isinstance(number, bool):
    number = str(instances.integer('number', number, -instances.MAX_INTEGER))
  if not isinstance(number, str):
    instances.refuse('number', f'{number!r:.60} is no numeral')
  wanted = _value(number, bases[0])
  if wanted is None:
    instances.refuse('number', f'{number!r:.60} is not in base {bases[0]}')
  found = _value(text.strip(' \n$.`'), bases[1])
  return None if found is None else float(found == wanted)


def _value(numeral: str, base: int) -> int | None:
  if len(numeral) > MAX_BASE_DIGITS:
    return None
  match = NUMERAL.fullmatch(numeral.lower())
  if match is None or (match[4] and int(match[4]) != base):
    return None
  sign, prefix, digits, _ = match.groups()
  if prefix and PREFIX[prefix] != base:
    digits = prefix + digits  # of a base in which b, o or x is a digit
  if digits.strip(DIGITS[:base]):
    return None
  return int(sign + digits, base)
