"""The least time a program can take on a chip, and what sets it.

  t(program) = max(FLOPs / peak, bytes / bandwidth, sent / links)
               + sum over its loops of trips * t(body)

Within one run of a body everything is taken to overlap, and nothing between
bodies; waits for small operations are not counted. So it is a bound, and real
runs are slower (the roofline model, https://doi.org/10.1145/1498765.1498785).
An exchange over a mesh axis uses the links of as many dimensions of the torus
as the axis needs.
"""

import collections
import dataclasses

from jaxrl_reason.planning import costs
from jaxrl_reason.run import chips

COMPUTE, MEMORY = 'compute', 'memory'


@dataclasses.dataclass(frozen=True)
class Machine:
  """Attributes:
  chip: of every device.
  torus: sizes of a slice, as in v5p:4x4x4.
  slices: how many; exchanges of the whole first axis cross them.
  """

  chip: chips.Chip
  torus: tuple[int, ...]
  slices: int = 1

  def links(self, c: costs.Collective) -> float:
    """Bytes/s that a device sends with in a collective."""
    if self.slices > 1 and 'data' in c.axes:
      return chips.DCN
    covered, used = 1, 0
    for n in sorted(self.torus, reverse=True):
      if covered >= c.size:
        break
      covered, used = covered * n, used + 1
    return self.chip.ici * max(used, 1) / len(self.torus)


def torus_of(topology: str) -> tuple[int, ...]:
  return tuple(int(n) for n in topology.partition(':')[2].split('x'))


def seconds(cost: costs.Cost, machine: Machine) -> collections.Counter:
  """Seconds by what bounds them: compute, memory, or the mesh axes of the
  exchanges; their sum is the time.
  """
  sent, axes = 0.0, collections.Counter()
  for c, n in cost.collectives.items():
    t = n * c.sent / machine.links(c)
    sent += t
    axes['+'.join(c.axes) or 'self'] += t
  times = {
    COMPUTE: cost.flops / machine.chip.flops,
    MEMORY: cost.bytes / machine.chip.bandwidth,
  }
  if sent:
    times[f'links of {axes.most_common(1)[0][0]}'] = sent
  bound = max(times, key=times.get)
  out = collections.Counter({bound: times[bound]})
  for trips, body in cost.loops:
    for key, t in seconds(body, machine).items():
      out[key] += trips * t
  return out
