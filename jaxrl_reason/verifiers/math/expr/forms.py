"""Normalizes the shape and the notation of answers, without values."""

import itertools
import re

from jaxrl_reason.verifiers.math.expr import sets, vocabulary
from jaxrl_reason.verifiers.math.expr.nodes import (
  Limit,
  Node,
  names,
  replace,
  symbol,
)

MAX_ITEMS = 40
MAX_ORDER = 9  # of a derivative
MAX_SIGNS = 4  # plus-minus signs in one expression: 16 values
BARE = frozenset((',', 'or', 'and'))
EQUALITY = frozenset(('=', '~', 'note'))  # note: 5 (= 10/2)
NUMBER_SETS = frozenset('ZNQRC')
KNOWN = frozenset(vocabulary.FUNCTIONS.values())
ONE_CONSTANT = frozenset('CcKk')
SUBSCRIPTED = re.compile('[Cc]_?[0-9]')


def tidy(a: Node, b: Node) -> tuple[Node, Node]:
  """Removes conditions, renames free integers, opens sets of one element."""
  a, integers_a = _without_conditions(a)
  b, integers_b = _without_conditions(b)
  a, b = (scaled(_opened(_members(n))) for n in (a, b))
  a, b = _real_line(a, b), _real_line(b, a)
  return _renamed(a, b, integers_a, integers_b)


def _real_line(node: Node, other: Node) -> Node:
  """Reads a plain R as the real line if the other answer is a set."""
  is_r = node == symbol('R') and sets.is_set_like(other)
  return Node('const', (), 'set:R') if is_r else node


def _members(node: Node) -> Node:
  """Rewrites x in {1, 2} as 1, 2, and x != +-1 as two conditions."""
  if node.kind == 'rel' and node.value == ('!=',) and node.has('pm'):
    return Node('seq', tuple(expand(node)), 'and')
  if node.kind == 'rel' and node.value == ('in',):
    members = node.args[1]
    if members.kind == 'seq' and members.value == '{}':
      return members
  return node


def scaled(node: Node) -> Node:
  """Computes a number times a matrix, and a sum of matrices."""
  if node.kind == 'neg':
    return _per_cell('neg', scaled(node.args[0])) or node
  if node.kind == 'div':
    inner = scaled(node.args[0])
    return _per_cell('div', inner, after=node.args[1:]) or node
  if node.kind == 'mul' and node.has('matrix'):
    parts = [scaled(a) for a in node.args]
    factors = tuple(p for p in parts if p.kind != 'matrix')
    if len(factors) + 1 == len(parts):
      matrix = next(p for p in parts if p.kind == 'matrix')
      return _per_cell('mul', matrix, before=factors)
  if node.kind == 'add' and node.has('matrix'):
    parts = [scaled(a) for a in node.args]
    if len({(p.kind, p.value) for p in parts}) == 1:
      cells = zip(*(p.args for p in parts))
      return parts[0]._replace(args=tuple(Node('add', c) for c in cells))
  return node


def _per_cell(kind: str, matrix: Node, before=(), after=()) -> Node | None:
  """Returns the matrix of `kind` of each cell and the arguments before and
  after it, or None if there is no matrix.
  """
  if matrix.kind != 'matrix':
    return None
  cells = (Node(kind, (*before, cell, *after)) for cell in matrix.args)
  return matrix._replace(args=tuple(cells))


def _opened(node: Node) -> Node:
  """Returns the only element of a list; {{1}} and {empty set} stay sets."""
  while node.kind == 'seq' and len(node.args) == 1:
    inner = node.args[0]
    if node.value == '{}' and inner.kind == 'seq' and inner.value == '{}':
      return node
    node = inner
  return node


def _is_condition(node: Node) -> bool:
  """Returns whether a node is a condition: k in Z, x in R."""
  return (
    node.kind == 'rel'
    and node.value == ('in',)
    and node.args[1].kind in ('const', 'sym')
    and str(node.args[1].value).removeprefix('set:')[:1] in NUMBER_SETS
  )


def _without_conditions(node: Node) -> tuple[Node, list[str]]:
  """Splits 'x = k pi, k in Z' into (x = k pi, ['k'])."""
  if node.kind == 'builder':
    kept = [c for c in node.args[1:] if not _is_condition(c)]
    dropped = [c for c in node.args[1:] if _is_condition(c)]
    if dropped and not kept and node.args[0].kind == 'rel':
      node = node.args[0]  # {x | x = k pi, k in Z} written as {x = k pi | ...}
    elif dropped and kept:
      node = node._replace(args=(node.args[0], *kept))
  elif node.kind == 'seq' and node.value in BARE:
    dropped = [c for c in node.args if _is_condition(c)]
    kept = [c for c in node.args if not _is_condition(c)]
    if not dropped or not kept:
      return node, []
    node = kept[0] if len(kept) == 1 else node._replace(args=tuple(kept))
  else:
    return node, []
  return node, [c.args[0].value for c in dropped if c.args[0].kind == 'sym']


def _renamed(a: Node, b: Node, integers_a: list, integers_b: list):
  """Renames integers: n pi and k pi are one family if n or k is an integer."""
  own_a, own_b = names(a) - names(b), names(b) - names(a)
  if len(own_a) == len(own_b) == 1:
    old, new = own_a.pop(), own_b.pop()
    if old in integers_a or new in integers_b:
      a = replace(a, symbol(old), symbol(new))
  return a, b


def constants_renamed(a: Node, b: Node) -> list[Node]:
  """Returns `a` with its constants of integration named, in any order, like
  b's.
  """
  all_a, all_b = names(a), names(b)
  own_a, own_b = all_a - all_b, all_b - all_a
  if not own_a and not own_b:
    own_a = own_b = {n for n in all_a if SUBSCRIPTED.fullmatch(n)}
    generic = len(own_a) == 2
  elif len(own_a) == len(own_b) == 1:
    # x^2 + C and x^2 + k; but not the segments BC and BK.
    variable = any(n[0].islower() for n in all_a & all_b)
    generic = variable and own_a | own_b <= ONE_CONSTANT
  else:
    generic = any(
      all(SUBSCRIPTED.fullmatch(n) for n in constants)
      for constants in (own_a, own_b)
    )
  if not generic or len(own_a) != len(own_b) or len(own_a) > 3:
    return []
  old = sorted(own_a)
  return [_swapped(a, old, new) for new in itertools.permutations(own_b)]


def _swapped(node: Node, old: list[str], new: tuple[str, ...]) -> Node:
  # Via unused names, so that two names can be swapped.
  for name in old:
    node = replace(node, symbol(name), symbol(f'constant {name}'))
  for name, other in zip(old, new):
    node = replace(node, symbol(f'constant {name}'), symbol(other))
  return node


def is_equation(node: Node) -> bool:
  return node.kind == 'rel' and all(op in EQUALITY for op in node.value)


def is_name(node: Node) -> bool:
  """Returns whether a node can name an answer: x, f(x), (x, y), AB."""
  if node.kind == 'sym':
    return True
  if node.kind == 'call':
    return True
  if node.kind in ('seq', 'mul', 'setop'):
    return all(a.kind == 'sym' for a in node.args) and (
      node.kind != 'mul'
      or node.args[0] == symbol('nabla')
      or all(a.value.isupper() for a in node.args)
    )
  if node.kind == 'div':  # dy/dx
    heads = [a.args[0] if a.kind == 'mul' else a for a in node.args]
    return all(head == symbol('d') for head in heads)
  return node.kind == 'opaque'


def both_functions(a: Node, b: Node) -> bool:
  """Returns whether two equations name a function: y = 2x and f(x) = 2x.

  Not if one is the derivative or the inverse of the other, nor for sin x = x,
  which defines no function.
  """
  lefts = a.args[0], b.args[0]
  return (
    all(is_name(n) and n.value not in KNOWN for n in lefts)
    and all(a.kind == 'sym' for n in lefts if n.kind == 'call' for a in n.args)
    and any(n.kind in ('call', 'div') for n in lefts)
    and bool(names(a.args[1]))
    and _marks_agree(*lefts)
  )


def _marks_agree(a: Node, b: Node) -> bool:
  marks = {_mark(a), _mark(b)}
  plain = 'sym' in (a.kind, b.kind)  # y = ... for the inverse of f
  return len(marks) == 1 or (plain and marks == {'', '^-1'})


def _mark(name: Node) -> str:
  """Returns ' for f' and dy/dx, ^-1 for an inverse, '' for f."""
  if name.kind == 'div':
    above = name.args[0]
    head = above.args[0] if above.kind == 'mul' else above
    order = head.args[1].value if head.kind == 'pow' else 1
    return "'" * min(int(order), MAX_ORDER) if order is not None else ''
  spelled = str(name.value or '')
  if name.value == 'conj':
    return 'bar'
  return '^-1' if spelled.endswith('^-1') else "'" * spelled.count("'")


def is_many(node: Node) -> bool:
  """Returns whether a node is a bare or braced list, or has plus-minus."""
  if node.kind == 'seq':
    return node.value in BARE or node.value == '{}'
  return node.kind != 'seq' and node.has('pm')


def is_tuple(node: Node) -> bool:
  return node.kind == 'seq' and node.value not in BARE and node.value != '{}'


def expand(node: Node) -> list[Node]:
  """Returns the values of an expression with plus-minus signs."""
  signs = [n for n in node.walk() if n.kind == 'pm']
  if not signs:
    return [node]
  if len(signs) > MAX_SIGNS:
    raise Limit('too many plus-minus signs')
  # With a minus-plus, all signs move together.
  if any(n.value < 0 for n in signs):
    return [_signed(node, iter([s] * len(signs))) for s in (1, -1)]
  choices = itertools.product((1, -1), repeat=len(signs))
  return [_signed(node, iter(choice)) for choice in choices]


def _signed(node: Node, choice) -> Node:
  if node.kind == 'pm':
    positive = next(choice) * node.value > 0
    inner = _signed(node.args[0], choice)
    return inner if positive else Node('neg', (inner,))
  return node._replace(args=tuple(_signed(a, choice) for a in node.args))


def elements(node: Node) -> list[Node]:
  """Returns all values of a list, with expanded plus-minus signs."""
  items = node.args if node.kind == 'seq' and is_many(node) else (node,)
  nested = node.kind == 'seq' and node.value == '{}'
  values = [
    value
    for item in items
    for value in ([item] if nested and is_set(item) else _expanded(item))
  ]
  if len(values) > MAX_ITEMS:
    raise Limit('too many elements')
  return values


def is_set(node: Node) -> bool:
  return node.kind == 'seq' and node.value == '{}'


def _expanded(item: Node) -> list[Node]:
  if item.kind == 'seq' and is_many(item):
    return elements(item)
  if is_equation(item) and is_many(item.args[-1]) and not item.has('pm'):
    left = item.args[:-1]
    return [
      item._replace(args=(*left, value)) for value in elements(item.args[-1])
    ]
  return expand(item) if not is_tuple(item) or item.has('pm') else [item]


def assignments(node: Node) -> dict[str, Node] | None:
  """Returns {'x': 1, 'y': 2} of 'x = 1, y = 2'; None for other texts."""
  if node.kind != 'seq' or node.value == 'or':
    return None
  values: dict[str, Node] = {}
  for item in node.args:
    if not is_equation(item) or item.args[0].kind != 'sym':
      return None
    values[item.args[0].value] = item.args[-1]
  return values if len(values) == len(node.args) else None
