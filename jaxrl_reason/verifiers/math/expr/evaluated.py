r"""Checks that an answer is evaluated.

`\log_4 16` equals 2, but it is the problem of a question, not its answer. If
the gold answer is numeric, an answer that equals it must be a numeral, a
fraction or a surd, without operations on rational numbers.
"""

import re

from jaxrl_reason.verifiers.math.expr import (
  forms,
  scalars,
  sets,
  words,
)
from jaxrl_reason.verifiers.math.expr.exact import Exact
from jaxrl_reason.verifiers.math.expr.nodes import (
  MAX_CHARS,
  Budget,
  Limit,
  Node,
  ParseError,
  Undefined,
  names,
  number,
)
from jaxrl_reason.verifiers.math.expr.parser import parse
from jaxrl_reason.verifiers.math.expr.text import clean
from jaxrl_reason.verifiers.math.expr.tree_walk import Outside

LARGE = 10**6  # from here on 2^100, 20! and C(50, 6) may stay
DEGREE = '°'
LITERALS = frozenset(('num', 'dec'))
ORDERED = frozenset(('add', 'mul'))
FOLDED = re.compile(r'mod|!!')  # the parser computes 17 mod 5 and 7!!
# Between the sides of chains and the items of lists.
SEPARATOR = re.compile(
  r'=|\\(?:approx|simeq|sim)(?![a-z])|≈|\\text\s*\{\s*or\s*\}|\bor\b'
  r'|;|,(?![0-9]{3})'
)
# 10:30 a.m. is no ratio, and 1.2 thousand is written as people say it.
NUMERAL = re.compile(
  rf'{words.CLOCK.pattern}|[0-9.,]+ (?:thousand|[mb]illion|trillion)', re.I
)
DIGIT = re.compile('[0-9]')


def is_evaluated(answer: str, gold: str) -> bool:
  """Returns whether an answer is evaluated as far as a numeric gold answer.

  True if the gold answer is not numeric, or not evaluated.
  """
  trees = tree_of(answer), tree_of(gold)
  if None in trees or NUMERAL.fullmatch(words.undressed(clean(answer))):
    return True
  if names(trees[0]) and not names(trees[1]):
    trees = tree_of(answer, letters=True), trees[1]  # the K of 5 K
  if FOLDED.search(answer) and _is_folded(answer, trees[0]):
    return bool(FOLDED.search(gold))
  if _joins_sets(trees[0]) and not trees[1].has('setop'):
    return False
  values, gold_values = (_values(tree) for tree in trees)
  if not gold_values or any(names(node) for node in gold_values):
    return True
  style = Style(gold_values)
  if not all(style.is_final(node) for node in gold_values):
    return True
  if trees[0].kind == 'rel' and not sets.is_set_like(trees[0]):
    return any(style.is_final(node) for node in values)  # 7 - 3 = 4
  return all(style.is_final(node) for node in values)


def segments(text: str) -> list[str]:
  """Returns the sides of a chain and the items of a list that have a digit."""
  return [part for part in SEPARATOR.split(clean(text)) if DIGIT.search(part)]


def _is_folded(answer: str, tree: Node) -> bool:
  """Returns whether each value is such as 17 mod 5, which the parser computes.

  n = 2 (mod 5) is a class of numbers.
  """
  chain = tree.kind == 'rel' and set(tree.value) <= forms.EQUALITY
  if not (chain or tree.kind in ('num', 'seq')):
    return False
  return all(FOLDED.search(part) for part in segments(answer))


def _joins_sets(node: Node) -> bool:
  r"""Returns whether (1, 5) \cap (3, 8) or {1} \cup {2} is not evaluated."""
  return node.kind == 'setop' and (
    node.value == 'inter'
    or all(a.kind == 'seq' and a.value == '{}' for a in node.args)
  )


def tree_of(text: str, *, letters: bool = False) -> Node | None:
  text = clean(text)
  if len(text) > MAX_CHARS or words.is_text(text):
    return None
  try:
    return parse(text, letters=letters)[0]
  except (ParseError, Limit):
    return None


def without_units(node: Node) -> Node:
  """Removes the units that multiply the whole value."""
  if node.kind == 'mul':
    kept = tuple(arg for arg in node.args if not is_unit(arg))
    if kept and len(kept) < len(node.args):
      return kept[0] if len(kept) == 1 else node._replace(args=kept)
  if node.kind == 'div' and is_unit(node.args[1]):
    return without_units(node.args[0])
  return node


def is_unit(node: Node) -> bool:
  inner = node.args[0] if node.kind in ('pow', 'mul') else node
  return inner.kind == 'unit' and inner.value != DEGREE


def _values(node: Node) -> list[Node]:
  """Returns the scalars of an answer: elements, ends, cells, sides."""
  if node.kind == 'rel':
    sides = [s for s in node.args if not forms.is_name(s) or not names(s)]
    if sets.is_set_like(node):  # also the 1 of x - 1 > 0
      terms = [t for s in sides for t in (s.args if s.kind == 'add' else (s,))]
      sides = [term for term in terms if not names(term)]
    return [value for side in sides for value in _values(side)]
  if node.kind in ('seq', 'matrix', 'setop'):
    return [value for arg in node.args for value in _values(arg)]
  if node.kind == 'mul' and any(arg.kind == 'matrix' for arg in node.args):
    return [value for arg in node.args for value in _values(arg)]
  if node.kind == 'builder' or (node.kind == 'const' and node.value != 'inf'):
    return [] if node.kind == 'builder' else [node]
  return [without_units(node)]


class Style:
  """The forms that the gold answer's values allow."""

  def __init__(self, wanted: list[Node]):
    self.calls = any(node.has('call', 'opaque') for node in wanted)
    self.rational = all(rational(node) is not None for node in wanted)
    self.digits = {str(node.value) for node in wanted if node.kind == 'num'}
    self.bases = any(node.has('base') for node in wanted)

  def is_final(self, node: Node) -> bool:
    """Returns whether a value is a numeral or an evaluated surd."""
    node = without_units(node)
    if names(node):
      return False
    if node.kind in ('neg', 'pm'):
      inner = node.args[0]
      return inner.kind != 'neg' and self.is_final(inner)
    if node.has('base'):
      return self.bases or (
        node.kind == 'base' and node.value[0] in self.digits
      )
    if node.kind == 'add' and all(scalars.units_of(a) for a in node.args):
      return all(self.is_final(arg) for arg in node.args)  # 3 h 20 min
    value = rational(scalars.without_units(node))
    if value is not None:
      return is_numeral(node, value)
    if node.kind in ('const', 'unit', 'time', 'ratio'):
      return True
    return not self.rational and self._is_surd(node)

  def _is_surd(self, node: Node) -> bool:
    called = {n.value for n in node.walk() if n.kind == 'call'}
    if not self.calls and (called - {'exp'} or node.has('opaque')):
      return False
    if any(_is_open_product(part) for part in node.walk()):
      return False
    if node.kind not in ORDERED:
      return node.kind == 'pow' or all(_is_written_out(a) for a in node.args)
    exact = [arg for arg in node.args if rational(arg) is not None]
    return len(exact) < 2 and all(_is_written_out(arg) for arg in exact)


def _is_open_product(node: Node) -> bool:
  """Returns whether a node is (1 + i)^2, (1 + i)(2 - i), or 2i + 3i."""
  sums = [arg for arg in node.args if arg.kind == 'add']
  if node.kind == 'add':
    imaginary = [arg for arg in node.args if 'i' in names(arg, 'const')]
    return bool(sums) or len(imaginary) > 1
  if node.kind == 'pow':
    return node.args[0].kind == 'add' and rational(node.args[1]) is not None
  return node.kind == 'mul' and len(sums) > 1


def _is_written_out(node: Node) -> bool:
  value = rational(node)
  return value is None or is_numeral(node, value)


def rational(node: Node):
  """Returns the exact value of a node; None if it is not rational."""
  try:
    return Exact(Budget()).value(node)
  except (Outside, Undefined, Limit):
    return None


def is_numeral(node: Node, value) -> bool:
  """Returns whether a rational value is written as a number.

  A fraction has two literals and no integer value. A power of ten, with a
  factor or without, is a number. Values from LARGE on may be powers,
  factorials, binomials and their products.
  """
  if node.kind == 'neg':
    return is_numeral(node.args[0], -value)
  if node.kind in LITERALS or node.kind == 'unit':
    return True
  if node.kind in ('div', 'ratio'):
    is_integer = value.denominator == 1
    return not is_integer and all(_is_literal(arg) for arg in node.args)
  if node.kind == 'pow' and node.args[0] == number(10):
    return _is_literal(node.args[1])
  if node.kind == 'mul':
    parts = [a for a in node.args if not is_unit(a) and a.kind != 'unit']
    tens = [p for p in parts if p.kind == 'pow' and p.args[0] == number(10)]
    rest = [part for part in parts if part not in tens]
    if len(rest) <= 1 and len(tens) <= 1:
      return all(is_numeral(p, rational(p)) for p in parts)
  large = max(abs(value.numerator), value.denominator) >= LARGE
  is_product = node.kind in ('pow', 'mul', 'fact', 'call', 'div')
  return large and is_product and not node.has('add')


def _is_literal(node: Node) -> bool:
  return (node.args[0] if node.kind == 'neg' else node).kind in LITERALS
