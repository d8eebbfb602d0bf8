r"""Checks that an answer does not repeat a formula of the question.

An answer that equals the gold answer repeats the problem if each of its values
contains a formula of the question that has the same value, is no number, and is
not in the gold answer: `\sqrt{50}`, `x = 1 \cdot \sqrt{50} + 0` and
`\{\sqrt{50}\}` for "Simplify \sqrt{50}". A chain such as `\sqrt{50} = 5\sqrt2`
has another value too. A number of the question counts only if the question asks
for another form of it.
"""

import collections
import re

from jaxrl_reason.verifiers.math.expr import (
  compare,
  forms,
  scalars,
  sets,
  units,
  vocabulary,
)
from jaxrl_reason.verifiers.math.expr.evaluated import (
  ORDERED,
  is_numeral,
  rational,
  segments,
  tree_of,
  without_units,
)
from jaxrl_reason.verifiers.math.expr.nodes import (
  MAX_CHARS,
  ONE,
  ZERO,
  Budget,
  Limit,
  Node,
  names,
  number,
  replace,
  symbol,
)
from jaxrl_reason.verifiers.math.expr.text import clean

MAX_FORMULAS = 40  # largest number of formulas of a question
SPACES = re.compile(
  r'[\s${}]+|\\[,;:! ]|\\(?:left|right|displaystyle)(?![a-z])'
)
FORMULA = re.compile(
  r'\$\$(.+?)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]', re.S
)
# Words of a question, between which there are formulas without dollars.
WORD = re.compile(
  rf'(?<![^\s,.;:?!(])(?!(?:{"|".join(vocabulary.FUNCTIONS)})\b)'
  r"(?:[A-Za-z]{2,}(?:['’-][A-Za-z]+)*|[aAI])(?![^\s,.;:?!)])"
)
# Before a number, or anywhere: the question asks for another form of it.
ASKED = re.compile(
  r'\b(?:what is|compute|evaluate|calculate|find|determine)\s*'
  r'(?:the (?:exact )?(?:value|form) of\s*)?[\s$(\\\[]*$',
  re.I,
)
NEW_FORM = re.compile(
  r'fraction|decimal|percent|mixed number|simpl|lowest terms|notation'
  r'|\b(?:reduce|convert|express|rewrite|write)\b',
  re.I,
)
_ARGUMENT = r'\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))'
FRACTION = re.compile(
  rf'\\[dt]?frac{_ARGUMENT}{_ARGUMENT}'
  r'|\(?([0-9]+)\)?\s*(?:/|\\div)\s*\(?([0-9]+)\)?'
)
NEXT_ARGUMENT = re.compile(r'\}\s*\{')
THOUSANDS = re.compile(r'(?<=[0-9])(?:,|\{,\}|\\,|\\!)+(?=[0-9]{3}(?![0-9]))')
ZEROS = re.compile(r'(\.[0-9]*?)0+(?![0-9\\])')
NO_WHOLE = re.compile(r'(?<![0-9])\.(?=[0-9])')
NEUTRAL = {'add': ZERO, 'mul': ONE, 'div': ONE, 'pow': ONE}


def restates(answer: str, gold: str, question: str) -> bool:
  """Returns whether an answer is a formula of the question and not the gold."""
  tree, gold_tree = tree_of(answer), tree_of(gold)
  if tree is None or gold_tree is None:
    return False
  core, gold_core = forms.tidy(_core(tree), _core(gold_tree))
  core, gold_core = canonical(core), canonical(gold_core)
  if core == gold_core or core.kind in ('sym', 'const'):
    return False
  question = question[-MAX_CHARS:]
  value = rational(core)
  if value is None or not is_numeral(core, value):
    if squashed(clean(answer)) in squashed(question):
      return True
  spans = _spans(question)
  if _repeats_number(answer, gold, _asked(question, spans)):
    return True
  return Echoes(gold_tree, list(_formulas(spans))).in_each(tree)


class Echoes:
  """The formulas of a question that equal the gold answer."""

  def __init__(self, gold: Node, formulas: list[Node]):
    self.budget = Budget()
    self.gold = gold
    shown = canonical(gold)
    self.formulas = [f for f in formulas if not _contains(shown, f)]

  def in_each(self, node: Node) -> bool:
    """Returns whether each value of a list or of a chain has a formula."""
    if canonical(node) in self.formulas:
      return True
    if node.kind == 'seq' and node.value in (*forms.BARE, '{}'):
      return bool(node.args) and all(self.in_each(arg) for arg in node.args)
    if node.kind == 'rel' and set(node.value) <= forms.EQUALITY:
      sides = [side for side in node.args if not forms.is_name(side)]
      sides = sides or list(node.args)  # x = \sin 2x
      sides = [side for side in sides if self._is_gold(side)] or sides
      return bool(sides) and all(self._has(side) for side in sides)
    if node.kind == 'rel' and node.value == ('in',):
      return self._has(node.args[1])
    return self._has(node)

  def _has(self, node: Node) -> bool:
    """Returns whether a value contains a formula that equals the gold."""
    return any(
      form == formula or (_contains(form, formula) and self._is_gold(formula))
      for form in map(canonical, (node, scalars.without_units(node)))
      for formula in (_same_variable(f, form) for f in self.formulas)
    )

  def _is_gold(self, node: Node) -> bool:
    try:
      return compare.equal(node, self.gold, self.budget)
    except (Limit, ArithmeticError):
      return False


def _same_variable(formula: Node, node: Node) -> Node:
  """Writes a relation of one variable with the only variable of a node."""
  old, new = names(formula), names(node)
  if formula.kind != 'rel' or len(old) != 1 or len(new) != 1:
    return formula
  return canonical(replace(formula, symbol(old.pop()), symbol(new.pop())))


def _contains(node: Node, formula: Node) -> bool:
  """Returns whether a formula is a part of a node, or of its sum or product."""
  for part in node.walk():
    if part == formula:
      return True
    if part.kind == formula.kind and part.kind in ORDERED:
      parts, wanted = map(collections.Counter, (part.args, formula.args))
      if wanted <= parts:
        return True
  return False


# --- numbers of the question ---------------------------------------------


def _asked(question: str, spans: list) -> list[str]:
  """Returns the numbers of which the question asks for another form."""
  new_form = NEW_FORM.search(question)
  return [
    text for start, text in spans if new_form or ASKED.search(question[:start])
  ]


def _repeats_number(answer: str, gold: str, asked: list[str]) -> bool:
  """Returns whether every part of an answer has one of the numbers."""
  gold_value, shown = _number(gold), _digits(gold)
  if gold_value is None:
    return False
  numbers = [
    digits
    for text in asked
    if _number(text) == gold_value and (digits := _digits(text)) != shown
  ]
  pattern = '|'.join(map(re.escape, numbers))
  stands = re.compile(rf'(?<![0-9.])(?:{pattern})(?!\.?[0-9])')
  parts = [_digits(part) for part in segments(answer)]
  return bool(numbers and parts) and all(stands.search(p) for p in parts)


def _number(text: str):
  """Returns the value of a text that is a number; None otherwise."""
  tree = tree_of(text)
  if tree is None:
    return None
  node = canonical(_core(tree))
  value = rational(node)
  return value if value is not None and is_numeral(node, value) else None


def _digits(text: str) -> str:
  """Writes the fractions and decimals of a text in one form: 3&1/2 and 0.75."""
  text = FRACTION.sub(_fraction, THOUSANDS.sub('', clean(text)))
  text = squashed(NEXT_ARGUMENT.sub('/', text))
  return ZEROS.sub(r'\1', NO_WHOLE.sub('0.', text)).rstrip('.')


def _fraction(match: re.Match) -> str:
  return '&' + '/'.join(group for group in match.groups() if group)


# --- formulas of the question --------------------------------------------


def squashed(text: str) -> str:
  """Removes spacing and braces, and the size of fractions."""
  return SPACES.sub('', text).replace('dfrac', 'frac').replace('tfrac', 'frac')


def _formulas(spans: list[tuple[int, str]]):
  """Yields trees of formulas and of the sides of relations, not of numbers."""
  for _, text in spans:
    tree = tree_of(text)
    if tree is not None:
      sides = tree.args if forms.is_equation(tree) else ()
      for node in (tree, *sides):
        node = canonical(without_units(node))
        value = rational(node)
        if value is not None and is_numeral(node, value):
          continue
        if node.kind not in ('sym', 'const', 'unit'):
          yield node


def _spans(question: str) -> list[tuple[int, str]]:
  """Returns marked formulas, and all texts between words, with positions."""
  marked = [
    (match.start(), next(group for group in match.groups() if group))
    for match in FORMULA.finditer(question)
  ]
  matches = list(WORD.finditer(question))
  ends = [0, *(match.end() for match in matches)]
  starts = [*(match.start() for match in matches), None]
  between = [(a, question[a:b].strip(' ,;:.?!')) for a, b in zip(ends, starts)]
  return [*marked, *(span for span in between if span[1])][-MAX_FORMULAS:]


def canonical(node: Node) -> Node:
  """Returns a tree whose sums and products are flat and sorted.

  Zeros of sums, factors and divisors of 1, and counted things are removed.
  x^(1/2) becomes a root.
  """
  args = [canonical(arg) for arg in node.args]
  if node.kind in ORDERED:
    args = [
      part
      for arg in args
      for part in (arg.args if arg.kind == node.kind else (arg,))
    ]
    args = [arg for arg in args if not _is_neutral(arg, node.kind)] or args[:1]
    args.sort(key=repr)
  if node.kind == 'neg' and args[0].kind == 'num':
    return number(-args[0].value)
  if node.kind in NEUTRAL and (args[1:] == [] or args[1] == NEUTRAL[node.kind]):
    return args[0]
  if node.kind == 'pow' and (degree := _degree(args[1])):
    return Node('root', (degree, args[0]))
  if node.kind == 'rel' and all(op in sets.FLIPPED for op in node.value):
    flipped = tuple(sets.FLIPPED[op] for op in reversed(node.value))
    mirrored = node._replace(args=tuple(reversed(args)), value=flipped)
    return min(mirrored, node._replace(args=tuple(args)), key=repr)
  return node._replace(args=tuple(args))


def _degree(exponent: Node) -> Node | None:
  """Returns the n of an exponent 1/n."""
  value = rational(exponent)
  is_root = value is not None and value.numerator == 1 < value.denominator
  return number(value.denominator) if is_root else None


def _is_neutral(node: Node, kind: str) -> bool:
  vague = node.kind == 'unit' and node.value == units.VAGUE
  return node == NEUTRAL[kind] or (kind == 'mul' and vague)


def _core(node: Node) -> Node:
  """Returns the value of `x = 5 cm` and of `7 - 2 = 5`: 5."""
  if forms.is_equation(node):
    left = node.args[0]
    if forms.is_name(left) or not names(left):
      values = [side for side in node.args if not forms.is_name(side)]
      node = values[-1] if values else node.args[-1]
  return without_units(node)
