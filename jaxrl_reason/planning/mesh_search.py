"""Other batches and meshes for a recipe, to try by compilation."""

import itertools
import math
from collections.abc import Callable, Iterator

from jaxrl_reason.config import RL, Run
from jaxrl_reason.run.checks import config_checks


def unit_of_prompts(c: RL, shards: int) -> int:
  """Returns the least number of prompts that the recipe's divisions allow.

  Args:
    shards: devices over which rows are split.
  """
  by_prompts = shards * (c.parts if c.path == 'host' else 1)
  by_rows = shards * c.minibatches * c.micro_batches
  return math.lcm(by_prompts, by_rows // math.gcd(by_rows, c.samples))


def largest(
  needs: Callable[[int], float], room: float, start: int, unit: int, most: int
) -> int:
  """Returns the largest multiple of `unit` with needs(n) <= room, within an
  eighth; 0 if none fits. At most `most`, and at least `start` if that fits.

  Needs are nearly linear in n. So each try after the second is the point where
  the line through the nearest two reaches the room. Each try is a compilation.

  Args:
    needs: number of prompts -> bytes; inf if there can be no such batch.
  """
  low, high = 0, max(most, start) // unit + 1  # fits; does not
  seen, units = {}, max(start // unit, 1)
  while True:
    seen[units] = needs(units * unit)
    fits = seen[units] <= room
    low, high = (units, high) if fits else (low, units)
    step = max(1, low // 8)
    if high - low <= step:
      return low * unit
    if math.inf in seen.values():
      aim = (low + high) / 2
    elif len(seen) > 1:
      aim = _meets(seen, room)
    else:
      aim = units * (2 if fits else 0.5)
    units = int(min(max(aim, low + step), high - 1))


def _meets(seen: dict[int, float], room: float) -> float:
  """Returns the point at which the line through the two nearest points reaches
  the room.
  """
  (x, a), (y, b) = sorted(seen.items(), key=lambda p: abs(p[1] - room))[:2]
  return x + (room - a) * (y - x) / (b - a) if a != b else math.inf


def meshes(
  config: Run,
  n: int,
  kv_heads: int,
  slices: int = 1,
  whole: bool = True,
) -> Iterator[tuple[int, int, int]]:
  """Returns (data, fsdp, tensor) of n devices that the recipe divides over.

  The number of heads limits the tensor axis. Slices are joined by the data
  axis, which has the smallest exchanges.

  Args:
    whole: include meshes without fsdp, whose devices have whole weights or the
      share of their tensor axis.
  """
  sizes = [i for i in range(1, n + 1) if n % i == 0]
  for data, tensor in itertools.product(sizes, sizes):
    if data % slices or kv_heads % tensor or n % (data * tensor):
      continue
    fsdp = n // (data * tensor)
    if data != slices and not (whole and data == n // tensor):
      continue  # weights are sharded over all devices, or not at all
    try:
      config_checks.check(config, data * fsdp)
    except ValueError:
      continue
    yield data, fsdp, tensor
