"""Compares the output of a program with the expected output.

Trailing blanks, blank lines at both ends, and the amount of white space between
words are ignored. A word that is a decimal in the expected output may differ by
1e-6, absolute or relative. A decimal equals a whole number of the same value.
All other words are compared as text.
"""

import decimal
import re

DECIMAL = re.compile(
  r'[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?'
)
NUMBER = re.compile(
  r'[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?'
)
MAX_NUMBER = 40  # largest length of a word that is read as a number
TOLERANCE = 1e-6


def same(printed: str, expected: str) -> bool:
  ours, theirs = printed.strip(), expected.strip()
  if ours == theirs:
    return True
  ours, theirs = ours.splitlines(), theirs.splitlines()
  return len(ours) == len(theirs) and all(
    _same_line(a.split(), b.split()) for a, b in zip(ours, theirs)
  )


def _same_line(ours: list[str], theirs: list[str]) -> bool:
  return len(ours) == len(theirs) and all(
    a == b or _near(a, b) for a, b in zip(ours, theirs)
  )


def _near(word: str, expected: str) -> bool:
  if max(len(word), len(expected)) > MAX_NUMBER:
    return False
  if not DECIMAL.fullmatch(expected):
    whole = NUMBER.fullmatch(expected) and DECIMAL.fullmatch(word)
    return bool(whole) and decimal.Decimal(word) == decimal.Decimal(expected)
  if not NUMBER.fullmatch(word):
    return False
  a, b = float(word), float(expected)
  # inf - inf is nan, and comparisons with nan are false.
  return abs(a - b) <= TOLERANCE * max(1.0, abs(b))
