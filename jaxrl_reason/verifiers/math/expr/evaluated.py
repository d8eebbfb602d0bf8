r"""Checks that an answer is evaluated, and does not repeat the problem.

`\log_4 16` equals 2, but it is the problem of a question, not its answer. There
are two checks of answers that equal the gold answer:

  is_evaluated   if the gold answer is numeric, the answer is a numeral, a
                 fraction or a surd, without operations on rational numbers
  restates       the answer is a formula of the question, and the gold answer
                 is another formula; a number only if the question asks for
                 another form of it
"""

import re

from jaxrl_reason.verifiers.math.expr import (
  forms,
  scalars,
  sets,
  units,
  vocabulary,
  words,
)
from jaxrl_reason.verifiers.math.expr.exact import Exact
from jaxrl_reason.verifiers.math.expr.nodes import (
  MAX_CHARS,
  ONE,
  ZERO,
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
MAX_FORMULAS = 40  # largest number of formulas of a question
DEGREE = '°'
LITERALS = frozenset(('num', 'dec'))
ORDERED = frozenset(('add', 'mul'))
SPACES = re.compile(
  r'[\s${}]+|\\[,;:! ]|\\(?:left|right|displaystyle)(?![a-z])'
)
FOLDED = re.compile(r'mod|!!')  # the parser computes 17 mod 5 and 7!!
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
  r'fraction|decimal|percent|mixed number|simpl|lowest terms'
  r'|\b(?:reduce|convert|express|rewrite|write)\b',
  re.I,
)
NUMBER_DRESS = re.compile(r'\\text[a-zA-Z]*|^[(\[+]+|[)\]]+$')
NEUTRAL = {'add': ZERO, 'mul': ONE, 'div': ONE, 'pow': ONE}


def is_evaluated(answer: str, gold: str) -> bool:
  """Returns whether an answer is evaluated as far as a numeric gold answer.

  True if the gold answer is not numeric, or not evaluated.
  """
  trees = _tree(answer), _tree(gold)
  if None in trees:
    return True
  if names(trees[0]) and not names(trees[1]):
    trees = _tree(answer, letters=True), trees[1]  # the K of 5 K
  if trees[0].kind == 'num' and FOLDED.search(answer):
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


def restates(answer: str, gold: str, question: str) -> bool:
  """Returns whether an answer is a formula of the question and not the gold."""
  restated, gold_tree = _tree(answer), _tree(gold)
  if restated is None or gold_tree is None:
    return False
  restated, gold_tree = forms.tidy(_core(restated), _core(gold_tree))
  restated, gold_tree = canonical(restated), canonical(gold_tree)
  if restated == gold_tree or restated.kind in ('sym', 'const'):
    return False
  question = question[-MAX_CHARS:]
  value = _rational(restated)
  is_number = value is not None and _is_numeral(restated, value)
  written = _squashed(clean(answer))
  if is_number:
    written = NUMBER_DRESS.sub('', written.rsplit('=', 1)[-1])
  stands = written in _squashed(question)
  if is_number and not stands:
    return False  # 3.5 if the question has 3 1/2
  if stands and not is_number:
    return True
  new_form = NEW_FORM.search(question)
  return any(
    restated == formula
    and (not is_number or new_form or ASKED.search(question[:start]))
    for start, formula in _formulas(question)
  )


def _joins_sets(node: Node) -> bool:
  r"""Returns whether (1, 5) \cap (3, 8) or {1} \cup {2} is not evaluated."""
  return node.kind == 'setop' and (
    node.value == 'inter'
    or all(a.kind == 'seq' and a.value == '{}' for a in node.args)
  )


def _tree(text: str, *, letters: bool = False) -> Node | None:
  text = clean(text)
  if len(text) > MAX_CHARS or words.is_text(text):
    return None
  try:
    return parse(text, letters=letters)[0]
  except (ParseError, Limit):
    return None


def _squashed(text: str) -> str:
  """Removes spacing and braces, and the size of fractions."""
  return SPACES.sub('', text).replace('dfrac', 'frac').replace('tfrac', 'frac')


def _formulas(question: str):
  """Yields (position, tree) of formulas and of the sides of relations."""
  for start, text in _spans(question):
    tree = _tree(text)
    if tree is not None:
      sides = tree.args if forms.is_equation(tree) else ()
      for node in (tree, *sides):
        yield start, canonical(_without_units(node))


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
  if node.kind == 'rel' and all(op in sets.FLIPPED for op in node.value):
    flipped = tuple(sets.FLIPPED[op] for op in reversed(node.value))
    mirrored = node._replace(args=tuple(reversed(args)), value=flipped)
    return min(mirrored, node._replace(args=tuple(args)), key=repr)
  return node._replace(args=tuple(args))


def _is_neutral(node: Node, kind: str) -> bool:
  vague = node.kind == 'unit' and node.value == units.VAGUE
  return node == NEUTRAL[kind] or (kind == 'mul' and vague)


def _core(node: Node) -> Node:
  """Returns the value of `x = 5 cm` and of `7 - 2 = 5`: 5."""
  if forms.is_equation(node):
    left = node.args[0]
    if forms.is_name(left) or not names(left):
      node = node.args[-1]
  return _without_units(node)


def _without_units(node: Node) -> Node:
  """Removes the units that multiply the whole value."""
  if node.kind == 'mul':
    kept = tuple(arg for arg in node.args if not _is_unit(arg))
    if kept and len(kept) < len(node.args):
      return kept[0] if len(kept) == 1 else node._replace(args=kept)
  if node.kind == 'div' and _is_unit(node.args[1]):
    return _without_units(node.args[0])
  return node


def _is_unit(node: Node) -> bool:
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
  return [_without_units(node)]


class Style:
  """The forms that the gold answer's values allow."""

  def __init__(self, wanted: list[Node]):
    self.calls = any(node.has('call', 'opaque') for node in wanted)
    self.rational = all(_rational(node) is not None for node in wanted)
    self.digits = {str(node.value) for node in wanted if node.kind == 'num'}
    self.bases = any(node.has('base') for node in wanted)

  def is_final(self, node: Node) -> bool:
    """Returns whether a value is a numeral or an evaluated surd."""
    node = _without_units(node)
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
    value = _rational(scalars.without_units(node))
    if value is not None:
      return _is_numeral(node, value)
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
    exact = [arg for arg in node.args if _rational(arg) is not None]
    return len(exact) < 2 and all(_is_written_out(arg) for arg in exact)


def _is_open_product(node: Node) -> bool:
  """Returns whether a node is (1 + i)^2, (1 + i)(2 - i), or 2i + 3i."""
  sums = [arg for arg in node.args if arg.kind == 'add']
  if node.kind == 'add':
    imaginary = [arg for arg in node.args if 'i' in names(arg, 'const')]
    return bool(sums) or len(imaginary) > 1
  if node.kind == 'pow':
    return node.args[0].kind == 'add' and _rational(node.args[1]) is not None
  return node.kind == 'mul' and len(sums) > 1


def _is_written_out(node: Node) -> bool:
  value = _rational(node)
  return value is None or _is_numeral(node, value)


def _rational(node: Node):
  """Returns the exact value of a node; None if it is not rational."""
  try:
    return Exact(Budget()).value(node)
  except (Outside, Undefined, Limit):
    return None


def _is_numeral(node: Node, value) -> bool:
  """Returns whether a rational value is written as a number.

  A fraction has two literals and no integer value. A power of ten, with a
  factor or without, is a number. Values from LARGE on may be powers,
  factorials, binomials and their products.
  """
  if node.kind == 'neg':
    return _is_numeral(node.args[0], -value)
  if node.kind in LITERALS or node.kind == 'unit':
    return True
  if node.kind in ('div', 'ratio'):
    is_integer = value.denominator == 1
    return not is_integer and all(_is_literal(arg) for arg in node.args)
  if node.kind == 'pow' and node.args[0] == number(10):
    return _is_literal(node.args[1])
  if node.kind == 'mul':
    parts = [a for a in node.args if not _is_unit(a) and a.kind != 'unit']
    tens = [p for p in parts if p.kind == 'pow' and p.args[0] == number(10)]
    rest = [part for part in parts if part not in tens]
    if len(rest) <= 1 and len(tens) <= 1:
      return all(_is_numeral(p, _rational(p)) for p in parts)
  large = max(abs(value.numerator), value.denominator) >= LARGE
  return large and node.kind in ('pow', 'mul', 'fact', 'call', 'div')


def _is_literal(node: Node) -> bool:
  return (node.args[0] if node.kind == 'neg' else node).kind in LITERALS
