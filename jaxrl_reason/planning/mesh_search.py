"""Other batches and meshes for a recipe, tried by compiling them."""

import itertools
import math
from collections.abc import Callable, Iterator

from jaxrl_reason.config import RL, Run
from jaxrl_reason.run.checks import config_checks


def changed(config: Run, **values) -> Run:
  """Returns a recipe with other values; `rl__prompts` is rl.prompts."""
  changes = {key.replace('__', '.'): value for key, value in values.items()}
  return config.changed(changes)


def unit_of_prompts(c: RL, shards: int) -> int:
  """Returns the least number of prompts that divides as the recipe needs.

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
  eighth; 0: none. At most `most`, but never less than `start` if that fits.

  Needs are nearly a line in n, so that each try after the second is where the
  line through the nearest two meets the room. Few tries: each one compiles.
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
    aim = _meets(seen, room) if len(seen) > 1 else units * (2 if fits else 0.5)
    units = int(min(max(aim, low + step), high - 1))


def _meets(seen: dict[int, float], room: float) -> float:
  """Returns the point at which the line through the two points nearest to the
  room meets it.
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

  Heads bound the tensor axis: a part of a head is of no use. Slices are
  joined by the data axis, which exchanges least.

  Args:
    whole: also those whose devices have whole weights, or their tensor's share.
  """
  sizes = [i for i in range(1, n + 1) if n % i == 0]
  for data, tensor in itertools.product(sizes, sizes):
    if data % slices or kv_heads % tensor or n % (data * tensor):
      continue
    fsdp = n // (data * tensor)
    if data != slices and not (whole and data == n // tensor):
      continue  # either all of it sharded, or nothing
    try:
      config_checks.check(config, data * fsdp)
    except ValueError:
      continue
    yield data, fsdp, tensor
