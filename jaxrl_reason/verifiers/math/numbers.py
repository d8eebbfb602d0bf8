"""Verifies answers that are one decimal number: GSM8K and arithmetic tasks.

  completion -> the response after the last thought
             -> the first number after the last '####', else the last number
             -> canonical digits -> equal text

A number is `[-]digits[.digits]` with optional commas for thousands. A currency
sign before it and text after it (percent, units, a full stop) are ignored. A
minus belongs to the number unless it may be a subtraction, after a digit,
letter or closing bracket. Digits are compared exactly, for numbers of any
length: 18 = 18.00 = 018, and 0.1 is not 0.10000001.
"""

import re

from jaxrl_reason.verifiers import fields, thoughts
from jaxrl_reason.verifiers.verdict import Verdict

MARK = '####'
# Linear, since no two neighbouring parts match the same character. `_read`
# checks commas for thousands, because a regex for that backtracks.
NUMBER = re.compile(
  r'((?<![\w)\]}.])[-\u2212])?'
  r'(?:\\?[$\u20ac\u00a3\u00a5] ?([-\u2212])?)?'
  r'([0-9]+(?:,[0-9]+)*(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)'
)
GROUPED = re.compile(
  r'[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?'  # 1,234,567.8
  r'|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?:\.[0-9]+)?'  # 12,34,567 (India)
)


def canonical(negative: bool, digits: str) -> str:
  """Returns digits without commas, leading and trailing zeros."""
  whole, _, fraction = digits.replace(',', '').partition('.')
  whole = whole.lstrip('0') or '0'
  fraction = fraction.rstrip('0')
  value = f'{whole}.{fraction}' if fraction else whole
  return f'-{value}' if negative and value != '0' else value


def _read(match: re.Match, place: int) -> str:
  sign, late_sign, digits = match.groups()
  negative = bool(sign or late_sign)
  if ',' in digits and not GROUPED.fullmatch(digits):
    digits = digits.split(',')[place]  # a list of numbers: "3,4"
    negative = negative and place == 0
  return canonical(negative, digits)


def extract(text: str) -> str | None:
  """Extracts the canonical digits of the answer, or None without a number.

  Numbers inside a thought are ignored.
  """
  text = text[slice(*thoughts.spoken(text))]
  mark = text.rfind(MARK)
  if mark >= 0:
    match = NUMBER.search(text, mark + len(MARK))
    return None if match is None else _read(match, 0)
  last = None
  for match in NUMBER.finditer(text):
    last = match
  return None if last is None else _read(last, -1)


def reward(completion: str, example: dict) -> Verdict:
  """Scores 1 if the completion's number is the gold answer's, else 0.

  A copy of the question, or of a part of it, has no answer.
  """
  gold = extract(example['answer'])
  if gold is None:
    raise ValueError(f'the gold answer {example["answer"]!r:.80} has no number')
  text = thoughts.in_context(completion, example)
  response = text[slice(*thoughts.spoken(text))]
  copies = MARK not in response and fields.is_passage(response, example)
  number = None if copies else extract(text)
  if number is None:
    return Verdict(0.0, 'no_answer')
  return Verdict(float(number == gold), 'parsed', number)
