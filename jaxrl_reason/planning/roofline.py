"""Lower bounds of a program's time on a chip, and the resource that sets them.

  t(program) = max(FLOPs / peak, bytes / bandwidth, sent / links)
               + sum over its loops of iterations * t(body)

Within one iteration everything overlaps, and nothing overlaps between
iterations; the start of operations takes no time. So this is a lower bound, and
real runs are slower (the roofline model,
https://doi.org/10.1145/1498765.1498785). `ordered` uses the compiler's order of
operations: those between the start and the end of an exchange hide it.

An exchange over a mesh axis uses the links of as many dimensions of the torus
as the axis needs.
"""

import collections
import dataclasses

from jaxrl_reason.planning import costs
from jaxrl_reason.run.process import chips

COMPUTE, MEMORY = 'compute', 'memory'


@dataclasses.dataclass(frozen=True)
class Machine:
  """Attributes:
  chip: of every device.
  torus: sizes of a slice, as in v5p:4x4x4.
  slices: their number; exchanges of the whole first axis cross them.
  """

  chip: chips.Chip
  torus: tuple[int, ...]
  slices: int = 1

  def links(self, size: int) -> float:
    """Returns the bytes/s that a device of `size` in a slice sends with."""
    covered, used = 1, 0
    for n in sorted(self.torus, reverse=True):
      if covered >= size:
        break
      covered, used = covered * n, used + 1
    return self.chip.ici * max(used, 1) / len(self.torus)

  def exchange(self, c: costs.Collective) -> float:
    """Returns the seconds of a collective.

    An exchange across slices is hierarchical: first within each slice, then
    each device exchanges its share with the same device of the other slices.
    """
    if self.slices == 1 or 'data' not in c.axes:
      return c.sent / self.links(c.size)
    inside = max(c.size // self.slices, 1)
    within = dataclasses.replace(c, size=inside)
    across = dataclasses.replace(c, size=self.slices, bytes=c.bytes / inside)
    return within.sent / self.links(inside) + across.sent / chips.DCN


def _times(cost: costs.Cost, machine: Machine) -> dict[str, float]:
  """Returns the busy seconds of each resource, without loops."""
  axes = collections.Counter()
  for c, n in cost.collectives.items():
    axes['+'.join(c.axes) or 'self'] += n * machine.exchange(c)
  times = {
    COMPUTE: cost.flops / machine.chip.flops,
    MEMORY: cost.bytes / machine.chip.bandwidth,
  }
  if sent := axes.total():
    times[f'links of {axes.most_common(1)[0][0]}'] = sent
  return times


def seconds(cost: costs.Cost, machine: Machine) -> collections.Counter:
  """Returns the seconds by their bound: compute, memory, or mesh axes of
  exchanges. The sum is the time if all overlaps.
  """
  times = _times(cost, machine)
  bound = max(times, key=times.get)
  out = collections.Counter({bound: times[bound]})
  for trips, body in cost.loops:
    for key, t in seconds(body, machine).items():
      out[key] += trips * t
  return out


def serial_seconds(cost: costs.Cost, machine: Machine) -> float:
  """Returns the seconds without overlap: products, memory and exchanges."""
  inside = (n * serial_seconds(body, machine) for n, body in cost.loops)
  return sum(_times(cost, machine).values()) + sum(inside)


def ordered(cost: costs.Cost, machine: Machine) -> tuple[float, float]:
  """Returns (seconds of all operations in order, seconds of waiting for
  exchanges).

  Exchanges run one after another, each from its start until its result is read.
  Operations run one after another; each takes the time of its FLOPs or bytes.
  """
  last = {c: i for i, e in enumerate(cost.events) for c in e.exchanges}
  left, busy, waited = {}, 0.0, 0.0
  for i, event in enumerate(cost.events):
    for channel, exchange in event.exchanges.items():
      left.setdefault(channel, machine.exchange(exchange))
    own, inside = _one(event, machine)
    busy, waited = busy + own, waited + inside
    _pass(left, own)
    ending = [c for c in left if last[c] == i]
    if ending:  # the last exchange, after all that began before it
      wait = _until(left, ending[-1])
      waited += wait
      _pass(left, wait)
      for channel in ending:
        left.pop(channel)
  return busy + waited, waited


def _one(event: costs.Event, machine: Machine) -> tuple[float, float]:
  """Returns (seconds of an operation or a loop, seconds of waiting in it)."""
  if event.loop is not None:
    trips, body = event.loop
    whole, waited = ordered(body, machine)
    return trips * (whole - waited), trips * waited
  chip = machine.chip
  return max(event.flops / chip.flops, event.bytes / chip.bandwidth), 0.0


def _until(left: dict[str, float], channel: str) -> float:
  """Returns the seconds until an exchange ends, after earlier exchanges."""
  names = list(left)
  return sum(left[n] for n in names[: names.index(channel) + 1])


def _pass(left: dict[str, float], seconds: float) -> None:
  """Subtracts elapsed time from the current exchanges, in place."""
  for channel in left:
    done = min(left[channel], seconds)
    left[channel] -= done
    seconds -= done
