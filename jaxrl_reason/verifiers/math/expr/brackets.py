"""Parses brackets and environments: tuples, intervals, sets, matrices."""

from jaxrl_reason.verifiers.math.expr.nodes import EMPTY, Node, ParseError

MATRICES = frozenset('matrix pmatrix bmatrix Bmatrix smallmatrix array'.split())


class Brackets:
  """A mixin of `parser.Parser`, which has the token position."""

  def bracketed(self, left: str) -> Node:
    """Parses a group, a tuple, or an interval of any openness."""
    self.next()
    state, self.bars, self.builders = (self.bars, self.builders), 0, 0
    angles, self.angles = self.angles, 0
    self.french += left == ']'
    inner = self.listing()
    self.french -= left == ']'
    self.bars, self.builders = state
    self.angles = angles
    right = self.token.value
    self.expect(')', ']', '[')
    if inner.kind != 'seq' or inner.value not in (',', 'and'):
      if left + right not in ('()', '[]'):
        raise ParseError(f'{left} closed by {right}')
      return inner
    if left == ']' or right == '[':  # ]1, 2[ is open
      left = '(' if left == ']' else left
      right = ')' if right == '[' else right
    return inner._replace(value=left + right)

  def braced(self) -> Node:
    """Parses a TeX group, a set, or {x | conditions}."""
    explicit = self.next().value == '\\{'
    if self.take('}', '\\}'):
      return EMPTY
    state, self.bars, self.builders = (self.bars, self.builders), 0, 1
    inner = self.listing()
    node = self._builder(inner) if self.on('|', ':') else inner
    self.bars, self.builders = state
    if self.token.kind == 'cmd' and self.token.value in ('choose', 'atop'):
      self.next()
      node = Node('call', (inner, self.listing()), 'binom')
    if explicit and self.token.kind == 'end' and node.kind == 'matrix':
      return _system(node)
    self.expect('}', '\\}')
    if node.kind == 'seq' and node.value in (',', 'and'):
      # TeX does not print plain braces, so {1, 2} may also be a list.
      return node._replace(value='{}' if explicit else ',')
    if explicit and node.kind != 'builder':
      return Node('seq', (node,), '{}')
    return node

  def _builder(self, element: Node) -> Node:
    self.next()
    conditions = self.listing()
    args = conditions.args if conditions.kind == 'seq' else (conditions,)
    joined = 'or' if conditions.value == 'or' else 'and'
    return Node('builder', (element, *args), joined)

  def _vector(self, left: str, right: str) -> Node:
    self.angles += 1
    inner = self.listing()
    self.angles -= 1
    if self.token.value != right:
      raise ParseError(f'{left} without {right}')
    self.next()
    args = inner.args if inner.kind == 'seq' else (inner,)
    return Node('seq', args, '<>')

  def _atom_begin(self) -> Node:
    name = self.next().value
    rows = [[self.relation()]]
    while self.on('&', '\\\\', ',', ';'):
      separator = self.next().value
      if self.token.kind == 'close':
        break
      if separator == '\\\\':
        rows.append([])
      elif separator in (',', ';') and self.on('&', '\\\\'):
        continue  # "a, & x > 0"
      rows[-1].append(self.relation())
    if self.next().kind != 'close':
      raise ParseError(f'unclosed {name}')
    return _environment(name, rows)


def _environment(name: str, rows: list[list[Node]]) -> Node:
  cells = tuple(cell for row in rows for cell in row)
  if name == 'vmatrix' or name in MATRICES:
    if len({len(row) for row in rows}) != 1:
      raise ParseError('a ragged matrix')
    matrix = Node('matrix', cells, (len(rows), len(rows[0])))
    return Node('call', (matrix,), 'det') if name == 'vmatrix' else matrix
  if all(len(row) == 1 for row in rows):
    return Node('seq', cells, 'and')
  return Node('opaque', cells, name)


def _system(node: Node) -> Node:
  """Converts \\left\\{ and an array without closing brace: equations or
  cases.
  """
  if node.value[1] == 1:
    return Node('seq', node.args, 'and')
  return Node('opaque', node.args, 'cases')
