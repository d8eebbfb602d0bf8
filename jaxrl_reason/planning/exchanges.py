"""Reads which devices a collective exchanges between, in HLO's notations."""

import math
import re

import numpy as np

from jaxrl_reason.planning import hlo

_TILED = re.compile(r'replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](T\([\d,]+\))?')


def groups(op: hlo.Op, n: int) -> list[tuple[int, ...]]:
  """Returns the groups of devices that exchange, from any notation of HLO."""
  text = op.attrs
  pairs = re.search(r'source_target_pairs=\{(.*?)\}\}', text)
  if pairs:
    return [tuple(int(x) for x in re.findall(r'\d+', pairs[1])[:2])]
  listed = re.search(r'replica_groups=\{\{(.*?)\}', text)
  if listed:
    return [tuple(int(x) for x in listed[1].split(','))]
  tiled = _TILED.search(text)
  if tiled:
    shape, order = _iota(tiled[1]), _order(tiled[2], tiled[3])
    return [tuple(order[: shape[-1]])]
  named = re.search(r'replica_groups=mesh\[(.*?)\](.*?)\{([^}]*)\}', text)
  if named:
    return [_named(named[1], named[2], named[3])]
  return [tuple(range(n))]


def _iota(text: str) -> list[int]:
  return [int(x) for x in text.split(',')]


def _order(shape: str, transpose: str | None) -> list[int]:
  """Numbers 0.. in a shape, transposed, by rows."""
  ids = np.arange(math.prod(_iota(shape))).reshape(_iota(shape))
  if transpose:
    ids = ids.transpose(_iota(transpose[2:-1]))
  return ids.reshape(-1).tolist()


def _named(axes: str, ids: str, used: str) -> tuple[int, ...]:
  """Parses the first group of `mesh['a'=2,'b'=2], device_ids=(...) {'b'}`."""
  sizes = {k: int(v) for k, v in re.findall(r"'(\w+)'=(\d+)", axes)}
  order = list(range(math.prod(sizes.values())))
  if found := re.search(r'\(\[([\d,]+)\](T\([\d,]+\))?\)', ids):
    order = _order(found[1], found[2])
  mesh = np.asarray(order).reshape(list(sizes.values()))
  chosen = {}
  for name, pre, part in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", used):
    chosen[name] = (int(pre or 1), int(part or sizes[name]))
  index = []
  for name, size in sizes.items():
    # Along unused axes only the first device.
    pre, part = chosen.get(name, (size, 1))
    step = size // (pre * part)
    index.append(slice(0, step * part, step))
  return tuple(mesh[tuple(index)].reshape(-1).tolist())
