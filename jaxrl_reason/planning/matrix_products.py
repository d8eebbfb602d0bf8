"""FLOPs of a matrix product in HLO, which the TPU compiler writes as a
convolution.
"""

import functools
import math
import re

from jaxrl_reason.planning import hlo


def flops(ops: dict, op: hlo.Op) -> float:
  """Counts two FLOPs per multiplication of a `dot` or `convolution`."""
  out = math.prod(op.shapes[0].dims)
  left, right = (ops[o].shapes[0].dims for o in op.operands[:2])
  if op.kind == 'dot':
    axes = op.attr('lhs_contracting_dims')
    summed = [left[int(a)] for a in axes.split(',') if a]
    return 2.0 * out * math.prod(summed)
  return _convolution(op, left, right)


def of_int8(ops: dict, op: hlo.Op) -> bool:
  """Returns whether both factors are int8 numbers."""
  return all(ops[o].shapes[0].dtype == 's8' for o in op.operands[:2])


def _convolution(op: hlo.Op, left, right) -> float:
  """Counts only window positions with real entries, because the compiler writes
  batched products as dilated convolutions.
  """
  found = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', op.attrs)
  lhs, rhs, out = found.groups()
  window = re.search(r'window=\{([^}]*)\}', op.attrs)
  field = dict(f.split('=') for f in window[1].split()) if window else {}
  spatial = sorted(i for i in lhs if i.isdigit())

  def numbers(key, default):
    given = field[key].split('x') if key in field else ()
    return [int(n) for n in given] or [default] * len(spatial)

  pads = field.get('pad', 'x'.join(['0_0'] * len(spatial))).split('x')
  low = [int(p.split('_')[0]) for p in pads] if spatial else []
  dims = op.shapes[0].dims
  taps = 1
  for i, s in enumerate(spatial):
    taps *= _taps(
      left[lhs.index(s)],
      right[rhs.index(s)],
      dims[out.index(s)],
      low[i],
      stride=numbers('stride', 1)[i],
      base=numbers('lhs_dilate', 1)[i],
      dilation=numbers('rhs_dilate', 1)[i],
    )
  return (
    2.0
    * taps
    * dims[out.index('b')]
    * dims[out.index('f')]
    * (right[rhs.index('i')])
  )


@functools.cache
def _taps(size, window, out, low, *, stride, base, dilation) -> int:
  """Counts pairs (output position, window position) with a real entry."""
  count = 0
  reach = (size - 1) * base
  for o in range(out):
    for w in range(window):
      at = o * stride - low + w * dilation
      count += 0 <= at <= reach and at % base == 0
  return count
