"""Parses the HLO text of a compiled program: computations, loops, shapes.

  parse(text) -> Module          computations of operations, by name
  trips(module, op) -> int       the largest number of iterations of a loop

XLA's own cost analysis counts a loop's body once; `costs` multiplies. Shapes
are of one device. A layout with S(1) or higher is on-chip memory.
"""

import dataclasses
import functools
import math
import re

BITS = {
  'pred': 8,
  's4': 4,
  'u4': 4,
  's8': 8,
  'u8': 8,
  's16': 16,
  'u16': 16,
  'bf16': 16,
  'f16': 16,
  's32': 32,
  'u32': 32,
  'f32': 32,
  's64': 64,
  'u64': 64,
  'f64': 64,
}
_OP = re.compile(r'^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(')
_HEAD = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$')
_SHAPE = re.compile(r'\b([a-z]+\d*\w*)\[([\d,]*)\](?:\{([^}]*)\})?')
_NAME = re.compile(r'%([\w.\-]+)')
# The name of a loop that was traced inside `trees.at_most`.
_AT_MOST = re.compile(r'(\w+)_at_most_(\d+)\)?/while"')
# The counts of a conditional that was traced inside `trees.branches`.
_BRANCHES = re.compile(r'branches((?:_\d+)+)\)*/cond"')
_CALLED = re.compile(
  r'(?:calls|to_apply|body|condition|true_computation|false_computation)='
  r'%?([\w.\-]+)|(?:branch_computations|called_computations)=\{([^}]*)\}'
)


@dataclasses.dataclass(frozen=True)
class Shape:
  """One array; `hbm` is false for arrays in on-chip memory."""

  dtype: str
  dims: tuple[int, ...]
  hbm: bool

  @property
  def bytes(self) -> int:
    return math.prod(self.dims) * BITS.get(self.dtype, 8) // 8


@dataclasses.dataclass(frozen=True)
class Op:
  """One operation.

  Attributes:
    kind: its opcode.
    shapes: of its results.
    operands: names, in the same computation.
    called: names of computations.
    attrs: text after the operands; literal: text of the operands.
  """

  name: str
  kind: str
  shapes: tuple[Shape, ...]
  operands: tuple[str, ...]
  called: tuple[str, ...]
  attrs: str
  literal: str
  root: bool

  def attr(self, name: str) -> str:
    """Returns the text of `name={...}` or `name=...`, or ''."""
    found = re.search(rf'\b{name}=(\{{[^}}]*\}}|[^, ]+)', self.attrs)
    return found[1].strip('{}') if found else ''


@dataclasses.dataclass(frozen=True)
class Module:
  """Attributes:
  computations: name -> operations by name, in order.
  entry: name of the first one.
  header: the text's first line.
  """

  computations: dict[str, dict[str, Op]]
  entry: str
  header: str

  def root(self, computation: str) -> Op:
    return next(o for o in self.computations[computation].values() if o.root)

  def aliased(self) -> int:
    """Counts the outputs in buffers of donated arguments."""
    return len(re.findall(r'(?:may|must)-alias\)', self.header))


def shapes(text: str) -> tuple[Shape, ...]:
  """Returns the arrays of a type, a tuple's in order."""
  return tuple(
    Shape(
      kind,
      tuple(int(n) for n in dims.split(',') if n),
      not re.search(r'S\([1-9]', layout or ''),
    )
    for kind, dims, layout in _SHAPE.findall(text)
  )


def _close(text: str, start: int) -> int:
  """Returns the index of the parenthesis that closes the one before `start`."""
  depth = 1
  for i in range(start, len(text)):
    depth += {'(': 1, ')': -1}.get(text[i], 0)
    if not depth:
      return i
  return len(text)


def _op(line: str) -> Op | None:
  found = _OP.match(line)
  if found is None:
    return None
  root, name, kind, opcode = found.groups()
  end = _close(line, found.end())
  inside, attrs = line[found.end() : end], line[end + 1 :]
  called = [
    n for one, many in _CALLED.findall(attrs) for n in _names(one or many)
  ]
  return Op(
    name,
    opcode,
    shapes(kind),
    tuple(_NAME.findall(inside)),
    tuple(called),
    attrs,
    inside,
    bool(root),
  )


def _names(text: str) -> list[str]:
  return [n.strip().lstrip('%') for n in text.split(',')]


def parse(text: str) -> Module:
  """Returns the computations of an HLO text (`compiled.as_text()`)."""
  computations, entry, current = {}, '', {}
  for line in text.splitlines():
    head = _HEAD.match(line)
    if head:
      current = computations.setdefault(head[2], {})
      entry = head[2] if head[1] else entry
    elif op := _op(line):
      current[op.name] = op
  return Module(computations, entry, text[: text.find('\n')])


def _integers(module: Module, computation: str) -> list[int]:
  """Returns the scalar integers of a computation and its callees."""
  out = []
  for op in module.computations[computation].values():
    if op.kind == 'constant' and op.shapes[:1] and not op.shapes[0].dims:
      if op.shapes[0].dtype in ('s32', 'u32', 's64'):
        out.append(int(op.literal))
    for name in op.called if op.kind == 'fusion' else ():
      out.extend(_integers(module, name))
  return out


def named(op: Op) -> tuple[str, int] | None:
  """Returns the name of a while loop and its largest number of iterations, if
  the program has them (`trees.at_most`).
  """
  found = _AT_MOST.search(op.attrs)
  return found and (found[1], int(found[2]))


def shares(op: Op) -> tuple[float, ...]:
  """Returns the share of runs of each branch of a conditional, in the order of
  `called`; () if the program does not have them (`trees.branches`).
  """
  found = _BRANCHES.search(op.attrs)
  counts = [int(n) for n in found[1].split('_')[1:]] if found else []
  if len(counts) != len(op.called) or not sum(counts):
    return ()
  if 'true_computation=' in op.attrs:  # comes before the false one
    counts.reverse()
  return tuple(n / sum(counts) for n in counts)


def trips(module: Module, op: Op) -> int:
  """Counts the iterations of a while loop: by its name or annotation, or from 0
  to the number in its condition. A loop that may end earlier counts to its end;
  1 if nothing is known.
  """
  if told := named(op):
    return told[1]
  known = re.search(r'known_trip_count[^\d]*(\d+)', op.attrs)
  if known:
    return int(known[1])
  condition = op.attr('condition').lstrip('%')
  limit = max(_integers(module, condition), default=1)
  body = module.computations[op.attr('body').lstrip('%')]
  return -(-limit // _step(module.computations[condition], body))


def _step(condition: dict[str, Op], body: dict[str, Op]) -> int:
  """Returns the number that a body adds to the counter of its condition: 2 if
  the compiler has unrolled it once.
  """
  for compare in condition.values():
    if compare.kind not in ('compare', 'fusion'):
      continue
    read = (condition[o] for o in compare.operands if o in condition)
    counter = next((o for o in read if o.kind == 'get-tuple-element'), None)
    if counter is None or counter.shapes[0].dims:
      continue
    root = next(o for o in body.values() if o.root)
    new = body.get(root.operands[int(counter.attr('index'))])
    if new is None or new.kind != 'add':
      continue
    added = [body[o] for o in new.operands if body[o].kind == 'constant']
    before = [body[o] for o in new.operands if body[o].kind == 'add']
    steps = [int(o.literal) for o in added]
    for each in before:  # unrolled: (i + 1) + 1
      steps += [
        int(body[o].literal)
        for o in each.operands
        if body[o].kind == 'constant'
      ]
    return max(sum(steps), 1)
  return 1


@functools.cache
def mesh_of(sizes: tuple[int, ...], names: tuple[str, ...]) -> dict:
  """Maps device numbers to coordinates in a mesh."""
  strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
  return {
    d: tuple(d // s % n for s, n in zip(strides, sizes))
    for d in range(math.prod(sizes))
  }
