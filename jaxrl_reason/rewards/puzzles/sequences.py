"""Sorting, and longest increasing subsequences."""

import re
from fractions import Fraction

from jaxrl_reason.rewards.puzzles import answers, instances
from jaxrl_reason.tasks import lis as family

NUMBER = re.compile(r'[+-]?[0-9]{1,40}(?:\.[0-9]{1,40})?')
SPLITS = re.compile(r'[\s\[\](){},;"\'`]')


def sorting(text: str, *, items, descending=False) -> float | None:
  """Checks the items in order: numbers by value, words by code point.

  items: integers and decimals, or words without white space, commas, quotes
  and brackets. The share is that of the places that are right.
  """
  given = instances.items('items', items, 1)
  instances.flag('descending', descending)
  if all(isinstance(item, str) for item in given):
    if any(not item or SPLITS.search(item) for item in given):
      instances.refuse('items', 'a word is empty or has a separator in it')
    read = str
  else:
    given, read = [_exact(str(item)) for item in given], _exact
    if None in given:
      instances.refuse('items', 'neither numbers nor words')
  found = answers.words(text, len(given) + 1)
  if found is None:
    return None
  found = [read(item) for item in found]
  if None in found:
    return None
  wanted = sorted(given, reverse=descending)
  right = sum(a == b for a, b in zip(found, wanted))
  return right / max(len(found), len(wanted))


def _exact(text: str) -> Fraction | None:
  return Fraction(text) if NUMBER.fullmatch(text) else None


def lis(text: str, *, numbers) -> float | None:
  """Checks a longest strictly increasing subsequence.

  numbers: integers. The share of a shorter one is its length over the longest.
  """
  given = instances.integers('numbers', numbers)
  chosen = answers.integers(text, len(given))
  if chosen is None:
    return None
  if any(a >= b for a, b in zip(chosen, chosen[1:])):
    return 0.0
  rest = iter(given)
  if not all(number in rest for number in chosen):
    return 0.0
  return len(chosen) / max(family.lengths(given))
