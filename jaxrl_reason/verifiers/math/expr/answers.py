"""Compares two answers, given as texts, in all plausible readings.

equal text -> choices -> dates, times -> words -> trees: first in the usual
reading, then in other readings of the text (1,234 as a list, 1/2x as 1/(2x),
the m of "5 m" as a metre)
"""

import itertools
import re
from typing import NamedTuple

from jaxrl_reason.verifiers.math.expr import compare, forms, words
from jaxrl_reason.verifiers.math.expr.nodes import (
  MAX_CHARS,
  Budget,
  Limit,
  Node,
  ParseError,
)
from jaxrl_reason.verifiers.math.expr.parser import parse
from jaxrl_reason.verifiers.math.expr.text import clean

PLAIN_NUMBER = re.compile(
  r'(?:\\?\$ ?)?([-+]?) ?(?:\\?\$ ?)?'
  r'([0-9]+(?:,[0-9]{3})*(?:\.[0-9]*)?|\.[0-9]+)'
)
# "n is an integer" after a family of solutions.
INTEGER = re.compile(
  r'[,;]?[\s$]*(?:\\text\s*\{)?\s*(?:where|for|with)?[\s$}]*\b([a-z])[\s$]*'
  r'(?:\\text\s*\{)?\s*(?:is |be )?an? (?:arbitrary )?integer\s*\}?\s*$'
)
SPACES = re.compile(r'(?:\\[,;:! ]|\\q?quad|\\(?:left|right)(?![a-z])|[\s~$])+')


class Outcome(NamedTuple):
  same: bool
  parsed: bool  # True: both were parsed; False: their texts were compared


def plain_number(text: str) -> str | None:
  """Returns the canonical digits of a bare number of any size."""
  match = PLAIN_NUMBER.fullmatch(text)
  if match is None:
    return None
  whole, _, fraction = match[2].replace(',', '').partition('.')
  whole, fraction = whole.lstrip('0') or '0', fraction.rstrip('0')
  value = f'{whole}.{fraction}' if fraction else whole
  return f'-{value}' if match[1] == '-' and value != '0' else value


def squashed(text: str) -> str:
  """Removes spacing for a comparison as text. 1 2 does not become 12."""
  return SPACES.sub(_gap, text).replace('\\dfrac', '\\frac')


def _gap(match: re.Match) -> str:
  ends = (
    match.string[match.start() - 1 : match.start()],
    match.string[match.end() : match.end() + 1],
  )
  return ' ' if all(end.isdigit() for end in ends) else ''


def same(a: str, b: str) -> Outcome:
  """Returns whether the answer `a` is the answer `b`. Bounded and total."""
  if a == b:
    return Outcome(bool(a.strip()), True)
  number_a, number_b = plain_number(a), plain_number(b)
  if number_a is not None and number_b is not None:
    return Outcome(number_a == number_b, True)
  if max(len(a), len(b)) > MAX_CHARS:
    return Outcome(' '.join(a.split()) == ' '.join(b.split()), False)
  a, b = clean(a), clean(b)
  if not a or not b:
    return Outcome(False, False)
  a, b = (
    INTEGER.sub(r', \1\\in\\mathbb{Z}', t) if 'integer' in t else t
    for t in (a, b)
  )
  if squashed(a) == squashed(b):
    return Outcome(True, True)
  outcome = _special(a, b)
  return outcome if outcome is not None else _expressions(a, b)


def _special(a: str, b: str) -> Outcome | None:
  """Compares choices, times and dates. None: they are neither."""
  choice_a, choice_b = words.choice(a), words.choice(b)
  if choice_a and choice_b:
    return Outcome(choice_a == choice_b, True)
  for choice, other in ((choice_a, b), (choice_b, a)):
    labelled = words.labelled_choice(other) if choice else None
    if labelled:
      return Outcome(choice == labelled[0], True)
  several_a, several_b = words.choices(a), words.choices(b)
  if several_a and several_b:
    return Outcome(several_a == several_b, True)
  for read, compare_two in (
    (words.clock, words.same_clock),
    (words.date, words.same_date),
  ):
    value_a, value_b = read(a), read(b)
    if value_a and value_b:
      return Outcome(compare_two(value_a, value_b), True)
  for read in (words.hour, words.day):
    for time, other in ((read(a), b), (read(b), a)):
      if time and other.isdigit():  # 6 p.m. against 6
        return Outcome(str(time[0]) == other, True)
  return None


def _expressions(a: str, b: str) -> Outcome:
  text_a, text_b = words.is_text(a), words.is_text(b)
  if words.is_wordy(a) and words.is_wordy(b) and words.same_text(a, b):
    return Outcome(True, True)
  a, b = _unlabelled(a, b)
  budget = Budget()
  try:
    return Outcome(
      _any_reading(Readings(a, text_a), Readings(b, text_b), budget), True
    )
  except (ParseError, Limit):
    return Outcome(_as_text(a) == _as_text(b), False)


def _unlabelled(a: str, b: str) -> tuple[str, str]:
  """Compares "(B) 12" with "12": the letter is only a label."""
  labelled_a, labelled_b = words.labelled_choice(a), words.labelled_choice(b)
  if labelled_a and not labelled_b:
    return labelled_a[1], b
  if labelled_b and not labelled_a:
    return a, labelled_b[1]
  return a, b


def _as_text(text: str) -> str:
  return squashed(words.undressed(text)).casefold()


class Readings:
  """The trees of one text, parsed on demand."""

  def __init__(self, text: str, is_text: bool):
    self.text = text
    self.meant = words.as_node(text) if is_text else None
    self.is_text = is_text
    self.tree, self.others = (
      (self.meant, frozenset()) if self.meant else parse(text)
    )

  def variants(self, against: Node) -> list[dict]:
    """Returns parser arguments of the other readings, given the other
    answer.
    """
    readings = []
    # 1,200 may be the list of 1 and 200 if the other is a list with units or
    # names.
    if 'commas' in self.others and not (
      forms.is_tuple(against) or self._is_one_number(against)
    ):
      readings.append({'commas': False})
    if 'tight' in self.others:
      readings.append({'tight': True})
    if 'letters' in self.others or (
      'glued' in self.others and against.has('unit')
    ):
      readings.append({'letters': True})
    return readings

  def _is_one_number(self, against: Node) -> bool:
    """Returns whether a text such as 1,200 is compared with two numbers."""
    return self.text.count(',') == 1 and (
      against.kind == 'seq' and all(item.kind == 'num' for item in against.args)
    )


def _any_reading(a: Readings, b: Readings, budget: Budget) -> bool:
  if a.is_text and b.is_text and not (a.meant and b.meant):
    return False
  if compare.equal(a.tree, b.tree, budget):
    return True
  variants_a, variants_b = a.variants(b.tree), b.variants(a.tree)
  pairs = itertools.product([{}, *variants_a], [{}, *variants_b])
  for one, other in itertools.islice(pairs, 1, None):
    tree_a = parse(a.text, **one)[0] if one else a.tree
    tree_b = parse(b.text, **other)[0] if other else b.tree
    if compare.equal(tree_a, tree_b, budget):
      return True
  return False


def value(text: str) -> Node:
  """Returns the tree of an answer, or of the value of an equation."""
  node = parse(clean(text))[0]
  if forms.is_equation(node) and forms.is_name(node.args[0]):
    return node.args[-1]
  return node
