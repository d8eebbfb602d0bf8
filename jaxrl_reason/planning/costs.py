"""Costs of a compiled program on one device: FLOPs, bytes, collectives.

  of(text, mesh) -> Cost tree of the loops, each with its iterations

  program = own work + sum over its loops of iterations * body

FLOPs are those of matrix products (2 per multiply and add; the TPU compiler
writes them as convolutions), in the time of bfloat16 products: on a chip that
multiplies int8 numbers twice as fast, half of theirs count. Bytes are what
operations read and write in HBM, slices counted as such; on-chip memory is
free. The branches of a conditional count by their shares (`hlo.shares`), else
the dearest: a step with rows of full length takes it.
"""

import collections
import dataclasses
import functools
import operator
import re
from collections.abc import Callable

from jax.sharding import Mesh

from jaxrl_reason.planning import exchanges, hlo, kernels
from jaxrl_reason.planning import matrix_products as products
from jaxrl_reason.planning import spread_exchanges as chains
from jaxrl_reason.run.process import chips

COLLECTIVES = (
  'all-gather',
  'all-reduce',
  'reduce-scatter',
  'all-to-all',
  'ragged-all-to-all',
  'collective-permute',
  'collective-broadcast',
)
# Operations without work: names, or the second half of an asynchronous pair.
FREE = frozenset(
  'parameter constant tuple get-tuple-element bitcast after-all while call '
  'conditional partition-id replica-id opt-barrier domain async-start '
  'async-update async-done add-dependency'.split()
)
# Work of another unit of the chip: an exchange by SparseCores.
HANDED_ON = 'async-start', 'call-start'
SLICES = frozenset(
  'dynamic-slice slice slice-start gather dynamic-slice-start'.split()
)


@dataclasses.dataclass(frozen=True)
class Collective:
  """One exchange: result or operand bytes (the larger) on one device."""

  kind: str
  axes: tuple[str, ...]
  size: int  # devices that take part
  bytes: int
  dims: tuple[int, ...]  # of the largest array

  @property
  def sent(self) -> float:
    """Counts the bytes through a device's links, by the ring algorithm."""
    share = (self.size - 1) / self.size
    twice = 2 if self.kind == 'all-reduce' else 1
    whole = self.kind == 'collective-permute'
    return self.bytes * (1 if whole else twice * share)


@dataclasses.dataclass(frozen=True)
class Event:
  """One operation of a schedule, or a loop.

  Attributes:
    flops, bytes: its own; exchanges not counted.
    exchanges: by channel, those that it begins, continues or ends.
    loop: (trips, cost of the body); a branch of a conditional has the share of
      its runs as trips.
  """

  flops: float = 0.0
  bytes: float = 0.0
  exchanges: dict[str, Collective] = dataclasses.field(default_factory=dict)
  loop: tuple[float, 'Cost'] | None = None


@dataclasses.dataclass
class Cost:
  """Work of a computation, without its loops.

  Attributes:
    flops, bytes: of one run, loops not counted.
    collectives: Collective -> times; copies: bytes of an array -> times.
    loops: (trips, cost of the body).
    events: the same, in the order of the compiler.
    name: of the loop with this body, if the program has it.
  """

  name: str = ''
  flops: float = 0.0
  bytes: float = 0.0
  copies: collections.Counter = dataclasses.field(
    default_factory=collections.Counter
  )
  collectives: collections.Counter = dataclasses.field(
    default_factory=collections.Counter
  )
  loops: list = dataclasses.field(default_factory=list)
  events: list[Event] = dataclasses.field(default_factory=list)

  def add(self, other: 'Cost') -> None:
    self.flops += other.flops
    self.bytes += other.bytes
    self.copies.update(other.copies)
    self.collectives.update(other.collectives)
    self.loops.extend(other.loops)
    self.events.extend(other.events)

  def total(self) -> 'Cost':
    """Adds up all costs, with loops multiplied by their iterations."""
    out = Cost()
    out.add(dataclasses.replace(self, loops=[]))
    for times, body in self.loops:
      inside = body.total()
      out.flops += times * inside.flops
      out.bytes += times * inside.bytes
      for name in ('copies', 'collectives'):
        for key, n in getattr(inside, name).items():
          getattr(out, name)[key] += times * n
    return out

  def loops_of(self, trips: tuple[int, ...]) -> list:
    """Returns (iterations, body) of the outermost loops with these
    iterations.
    """
    return self._loops(lambda n, body: n in trips)

  def named(self, name: str) -> list:
    """Returns (iterations, body) of the outermost loops with this name."""
    return self._loops(lambda n, body: body.name == name)

  def _loops(self, wanted: Callable[[int, 'Cost'], bool]) -> list:
    out = []
    for n, body in self.loops:
      out += [(n, body)] if wanted(n, body) else body._loops(wanted)
    return out


def of(text: str, mesh: Mesh, experts: int = 0) -> Cost:
  """Returns the cost of a compiled program, from its HLO text.

  Args:
    experts: number of experts; a device may have a part of them.
  """
  return _Reader(hlo.parse(text), mesh, experts).computation()


def _total(shapes) -> int:
  return sum(s.bytes for s in shapes)


def _held(shapes) -> int:
  """Returns the arrays that are in HBM."""
  return sum(s.bytes for s in shapes if s.hbm)


def _in_chain(op: hlo.Op) -> str:
  """Returns a key of an exchange inside a fusion. The TPU compiler repeats the
  exchange in each of the fusions that it overlaps with. The channel alone is no
  key, because all exchanges of a `shard_map` share it.
  """
  channel = op.attr('channel_id')
  return f'{channel} {op.kind} {op.shapes[0].dims}' if channel else op.name


class _Reader:
  def __init__(self, module: hlo.Module, mesh: Mesh, experts: int):
    self.module, self.names = module, tuple(mesh.axis_names)
    self.experts = experts
    self.sizes = dict(mesh.shape)
    self.places = hlo.mesh_of(tuple(mesh.shape.values()), self.names)
    self.reads = functools.cache(self._reads)
    self.passed_on = functools.cache(self._passed_on)
    self.begun_in, self.here = chains.begun_in(module), ''
    self.int8_speed = chips.int8_speed(mesh.devices.flat[0])

  def computation(self, name: str = '') -> Cost:
    """Counts the costs of a computation that is no fusion."""
    outer, self.here = self.here, name or self.module.entry
    cost = self._of_all(self.module.computations[self.here])
    self.here = outer
    return cost

  def _of_all(self, ops: dict[str, hlo.Op]) -> Cost:
    cost, seen = Cost(), {}
    for op in ops.values():
      if op.kind == 'while':
        body = self.computation(op.attr('body').lstrip('%'))
        body.add(self.computation(op.attr('condition').lstrip('%')))
        body.name = (hlo.named(op) or ('',))[0]
        loop = hlo.trips(self.module, op), body
        cost.loops.append(loop)
        cost.events.append(Event(loop=loop))
      elif op.kind == 'conditional':
        cost.add(self._conditional(op))
      elif op.kind == 'call':
        cost.add(self.computation(op.called[0]))
      else:
        if op.kind in ('copy', 'copy-start') and op.shapes[0].hbm:
          cost.copies[op.shapes[0].bytes] += 1
        cost.add(self._alone(ops, op, seen))
    return cost

  def _conditional(self, op: hlo.Op) -> Cost:
    ways, cost = [self.computation(c) for c in op.called], Cost()
    shares = hlo.shares(op)
    if not shares:
      return max(ways, key=lambda c: c.total().bytes)
    for loop in zip(shares, ways):  # a share of an iteration
      if loop[0]:
        cost.loops.append(loop)
        cost.events.append(Event(loop=loop))
    return cost

  def _alone(self, ops, op, seen: dict) -> Cost:
    """Counts the costs of one operation.

    Args:
      seen: the exchanges of the computation so far, by name.
    """
    before = set(seen)
    if found := self._collective(ops, op):
      seen[op.name] = found
    cost = Cost(flops=self._inside(ops, op, seen), bytes=self._bytes(ops, op))
    cost.collectives.update(seen[c] for c in set(seen) - before)
    exchanges = {c: seen[c] for c in self._begun(ops, op) if c in seen}
    # Reads and writes of an exchange overlap with later operations.
    moved = 0 if exchanges and not cost.flops else cost.bytes
    if cost.flops or moved or exchanges:
      cost.events.append(Event(cost.flops, moved, exchanges))
    return cost

  def _inside(self, ops, op, seen: dict) -> float:
    """Counts the FLOPs of an operation and its fusion; records fused
    exchanges.
    """
    if op.kind in ('convolution', 'dot'):
      speed = self.int8_speed if products.of_int8(ops, op) else 1
      return products.flops(ops, op) / speed
    if op.kind == 'custom-call':
      return kernels.flops(ops, op, self.experts)
    if op.kind not in ('fusion', *HANDED_ON):
      return 0.0
    inner, before = self.module.computations[op.called[0]], set(seen)
    for each in inner.values():
      begun = self.begun_in.get(chains.chain_of(each), self.here)
      found = self._collective(inner, each) if begun == self.here else None
      if found:  # a chain that began outside of a loop counts there
        seen.setdefault(self._named(op, each), found)
    flops = sum(self._inside(inner, each, seen) for each in inner.values())
    # The TPU compiler's form of a reduce-scatter.
    if op.called[0].startswith('all-reduce-scatter'):
      for c in set(seen) - before:
        seen[c] = dataclasses.replace(seen[c], kind='reduce-scatter')
    return flops

  def _named(self, outer, op) -> str:
    return outer.name if outer.kind in HANDED_ON else _in_chain(op)

  def _begun(self, ops, op) -> set[str]:
    """Returns the exchanges that an operation begins, continues or ends."""
    if op.kind.endswith(('-done', '-update')) and op.operands[0] in ops:
      return self._begun(ops, ops[op.operands[0]])
    if op.kind in ('fusion', *HANDED_ON):
      inner = self.module.computations[op.called[0]]
      names = {self._named(op, each) for each in inner.values()}
      deeper = (each for each in inner.values() if each.kind == 'fusion')
      return names.union(*(self._begun(inner, each) for each in deeper))
    return {op.name}

  def _collective(self, ops, op) -> Collective | None:
    if op.kind == 'send':
      return self._over_slices(op)
    kind = op.kind.removesuffix('-start')
    if kind not in COLLECTIVES:
      return None
    sources = [s for o in op.operands if o in ops for s in ops[o].shapes]
    largest = max((*op.shapes, *sources), key=operator.attrgetter('bytes'))
    results = _total(op.shapes)
    if op.kind.endswith('-start'):
      results -= _total(sources)  # the result of a start includes its operands
    group = exchanges.groups(op, len(self.places))[0]
    spots = zip(*[self.places[d] for d in group])
    axes = tuple(n for n, at in zip(self.names, spots) if len(set(at)) > 1)
    size = max(_total(sources), results)
    return Collective(kind, axes, max(len(group), 1), size, largest.dims)

  def _over_slices(self, op) -> Collective | None:
    """Counts the exchanges between slices over the data axis, which run on the
    hosts (`sharding.make_mesh`).
    """
    named = re.search(r'rendezvous="([a-z-]+)', op.attrs)
    if 'xla_megascale' not in op.attrs or not named:
      return None
    array = op.shapes[0]
    n = self.sizes['data']
    return Collective(named[1], ('data',), n, array.bytes, array.dims)

  def _bytes(self, ops, op) -> int:
    """Counts the HBM traffic of one operation."""
    done = op.kind.endswith('-done')
    if op.kind in FREE or done or 'AllocateBuffer' in op.attrs:
      return 0
    if (said := kernels.stated(op, 'bytes_accessed')) is not None:
      return int(said)
    if op.kind == 'fusion' and (end := chains.ends(self.module, op)):
      return _held(op.shapes[:2]) if end == chains.START else 0
    wrote = _held(op.shapes)

    def shapes_of(name):
      return ops[name].shapes if name in ops else ()

    if op.kind in SLICES:
      result = op.shapes[1:2] if op.kind.endswith('start') else op.shapes
      read = _total(result)
      source_hbm = any(s.hbm for o in op.operands[:1] for s in shapes_of(o))
      return _held(result) + (read if source_hbm else 0)
    if op.kind.endswith('-start'):  # destination and source
      return _held([s for s in op.shapes if s.dtype != 'token'][:2])
    if op.kind == 'dynamic-update-slice':
      return 2 * _held(shapes_of(op.operands[1]))
    read = 0
    for i, o in enumerate(op.operands):
      whole = _held(shapes_of(o))
      if op.kind == 'fusion' and whole:
        whole = min(whole, self.reads(op.called[0], i))
      read += whole
    if op.kind == 'fusion':
      wrote = min(wrote, self._writes(op.called[0], wrote))
    return read + wrote

  def _reads(self, computation: str, index: int) -> int:
    """Counts the bytes of parameter `index` that a fused computation reads."""
    ops = self.module.computations[computation]
    name = next(
      o.name
      for o in ops.values()
      if o.kind == 'parameter' and o.literal.strip() == str(index)
    )
    passed_on = name in self.passed_on(computation)
    return 0 if passed_on else self._uses(computation, name)

  def _passed_on(self, computation: str) -> set[str]:
    return chains.passed_on(self.module.computations[computation])

  def _uses(self, computation: str, name: str) -> int:
    ops, read = self.module.computations[computation], 0
    whole = sum(s.bytes for s in ops[name].shapes)
    if ops[name].root:
      return whole
    for op in ops.values():
      if name not in op.operands:
        continue
      if op.kind in SLICES:
        read += sum(s.bytes for s in op.shapes)
      elif op.kind == 'bitcast':
        read += self._uses(computation, op.name)
      elif op.kind == 'fusion':
        at = [i for i, o in enumerate(op.operands) if o == name]
        inside = sum(self.reads(op.called[0], i) for i in at)
        if op.shapes == ops[name].shapes:  # a copy in another layout
          inside = min(inside, self._uses(computation, op.name))
        read += inside
      elif op.kind == 'dynamic-update-slice' and op.operands[0] == name:
        continue  # in place
      else:
        return whole
    return min(read, whole)

  def _writes(self, computation: str, whole: int) -> int:
    """Counts the bytes that a fusion writes; for an update in place, the
    update.
    """
    ops, total = self.module.computations[computation], 0
    root = self.module.root(computation)
    results = root.operands if root.kind == 'tuple' else (root.name,)
    passed_on = self.passed_on(computation)
    for name in (x for x in results if x not in passed_on):
      op = ops[name]
      while op.kind == 'bitcast':
        op = ops[op.operands[0]]
      if op.kind == 'dynamic-update-slice':
        op = ops[op.operands[1]]
      elif op.kind == 'fusion':
        total += self._writes(op.called[0], whole)
        continue
      total += sum(s.bytes for s in op.shapes if s.hbm)
    return total
