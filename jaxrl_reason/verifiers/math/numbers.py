"""Verifies answers that are one decimal number: GSM8K and arithmetic tasks.

  completion -> the response after the last thought
             -> the first side of an equation after '####' (see `prose.hashed`)
                that begins with a whole number: 18 in '#### 9 * 2 = 18'; else
                the last number
             -> canonical digits -> equal text

A number is `[-]digits[.digits]` with optional commas or spaces for thousands.
Without a mark or a currency sign, plain spaces separate thousands only before
a group such as 000. Other notations, such as 1/2, 10^3, 1e3, 3½ and 12:30, have
no number. A currency sign before it and text after it (percent, units, a full
stop) are ignored. A minus belongs to the number unless it may be a subtraction,
after a digit, letter or closing bracket. Digits are compared exactly, for
numbers of any length: 18 = 18.00 = 018, and 0.1 is not 0.10000001.
"""

import collections
import re

from jaxrl_reason.verifiers import fields, thoughts
from jaxrl_reason.verifiers.math import prose, second_guesses
from jaxrl_reason.verifiers.verdict import Verdict

# Linear, since no two neighbouring parts match the same character. `_read`
# checks commas for thousands, because a regex for that backtracks.
NUMBER = re.compile(
  r'((?<![\w)\]}.])[-\u2212])?'
  r'(?:\\?[$\u20ac\u00a3\u00a5] ?([-\u2212])?)?'
  r'([0-9]+(?:,[0-9]+|[ \xa0\u202f][0-9]{3}(?![0-9]))*(?:\.[0-9]+)?'
  r'|(?<![0-9])\.[0-9]+)'
)
GROUPED = re.compile(
  r'[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?'  # 1,234,567.8
  r'|[0-9]{1,3}(?:[ \xa0\u202f][0-9]{3})+(?:\.[0-9]+)?'  # 1 234 567.8
  r'|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?:\.[0-9]+)?'  # 12,34,567 (India)
)
SEPARATOR = re.compile('[, \xa0\u202f]')
MAX_NOTATION = 12  # characters around a number that may be a part of it
# The number is a part of another notation: 1/2, 10^3, 1e3, 3½, 12:30, 1{,}234.
PART_BEFORE = re.compile(
  r'(?:[0-9)}] ?/ ?|[0-9]:|[0-9]\*\*|\^ ?[{(]?|[0-9][eE][-+]?|[}\]]\{'
  r'|(?:frac|sqrt)\{?|[0-9A-Za-z)}]_\{?|[0-9],?(?:\{,\}|\\[,!]))\Z'
)
PART_BEHIND = re.compile(
  r' ?/ ?[0-9]|:[0-9]|\*\*[0-9(]| ?\^(?!\{?\\circ)|[eE][-+]?[0-9]|_[0-9{]'
  r'|[\xb2\xb3\xb9\u2070-\u2079\xbc-\xbe\u2150-\u215e]| [0-9]+/[0-9]'
  r'|,?(?:\{,\}|\\[,!])[0-9]'
)
OPERATOR = r' ?(?:[-+*x\xd7\xf7]|\\(?:times|cdot|div)) ?'
# A plain space separates thousands behind these: '#### 1 234', not 'in 1 234'.
MAX_ANNOUNCED = 24  # characters of such a mark
ANNOUNCED = re.compile(
  r'(?:####|=|\banswer\W{0,6}(?:is)?)[\s:*$({\\]{0,6}\Z', re.I
)
# The number is the exponent of a unit: 18 m^2.
MAX_UNIT = 40  # characters before such an exponent
UNIT_BEFORE = re.compile(
  r'[0-9] ?(?:\\[ ,;])?(?:\\(?:text|mathrm|mbox)\{ ?)?(?:[a-z]{1,4}/)?'
  r'(?:[cdkmn]?m|in|ft|yd|mi|s|sec|min|hr?|inch(?:es)?|feet|foot|yards?|miles?'
  r'|(?:centi|kilo|milli)?met(?:er|re)s?|units?)\}? ?\^ ?\{?\Z'
)
# Between equals signs, arrows and signs of approximation.
SIDE = re.compile('(?:[^=\u2192\u2248-]|-(?!>))+')
OPERAND_BEFORE = re.compile(rf'[0-9)}}]{OPERATOR}\Z')
OPERAND_BEHIND = re.compile(rf'{OPERATOR}\\?[$(]?[0-9]')


def canonical(negative: bool, digits: str) -> str:
  """Returns digits without separators, leading and trailing zeros."""
  whole, _, fraction = SEPARATOR.sub('', digits).partition('.')
  whole = whole.lstrip('0') or '0'
  fraction = fraction.rstrip('0')
  value = f'{whole}.{fraction}' if fraction else whole
  return f'-{value}' if negative and value != '0' else value


def _is_grouped(match: re.Match) -> bool:
  """Returns whether separators in a number are those of thousands."""
  digits = match[3]
  before = match.string[max(match.start() - MAX_ANNOUNCED, 0) : match.start()]
  return bool(GROUPED.fullmatch(digits)) and (
    ' ' not in digits
    or ' 0' in digits
    or not match[0].lstrip('-\u2212')[0].isdigit()  # a currency sign
    or bool(ANNOUNCED.search(before))
  )


def _is_exponent(match: re.Match) -> bool:
  start = match.start()
  before = match.string[max(start - MAX_UNIT, 0) : start]
  return before.endswith(('^', '^ ', '^{')) and bool(UNIT_BEFORE.search(before))


def _read(match: re.Match, place: int) -> str:
  sign, late_sign, digits = match.groups()
  negative = bool(sign or late_sign)
  if SEPARATOR.search(digits) and not _is_grouped(match):
    digits = SEPARATOR.split(digits)[place]  # a list of numbers: "3,4"
    negative = negative and place == 0
  return canonical(negative, digits)


def _is(match: re.Match, before: re.Pattern, behind: re.Pattern) -> bool:
  """Returns whether the text before or behind a number has a pattern."""
  start = max(match.start() - MAX_NOTATION, 0)
  return bool(
    before.search(match.string[start : match.start()])
    or behind.match(match.string, match.end())
  )


def _number(match: re.Match | None, place: int) -> str | None:
  """Reads a number, unless it is a part of another notation."""
  if match is None or _is(match, PART_BEFORE, PART_BEHIND):
    return None
  return _read(match, place)


def extract(text: str) -> str | None:
  """Extracts the canonical digits of the answer, or None without a number.

  Numbers inside a thought are ignored.
  """
  text = second_guesses.without_denied(text[slice(*thoughts.spoken(text))])
  marked = prose.hashed(text)
  if marked is None:
    found = (m for m in NUMBER.finditer(text) if not _is_exponent(m))
    last = collections.deque(found, maxlen=1)
    return _number(last.pop() if last else None, -1)
  for side in SIDE.finditer(text, *marked.span(1)):
    match = NUMBER.search(text, *side.span())
    number = _number(match, 0)
    if number and not _is(match, OPERAND_BEFORE, OPERAND_BEHIND):
      return number
  return None


def reward(completion: str, example: dict) -> Verdict:
  """Scores 1 if the completion's number is the gold answer's, else 0.

  A copy of the question, or of a part of it, has no answer.
  """
  gold = extract(example['answer'])
  if gold is None:
    raise ValueError(f'the gold answer {example["answer"]!r:.80} has no number')
  text = thoughts.in_context(completion, example)
  response = text[slice(*thoughts.spoken(text))]
  marked = prose.hashed(response) is not None
  copies = not marked and fields.is_passage(response, example)
  number = None if copies else extract(text)
  if number is None:
    return Verdict(0.0, 'no_answer')
  return Verdict(float(number == gold), 'parsed', number)
