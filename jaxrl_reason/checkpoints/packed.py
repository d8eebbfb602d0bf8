"""Published weights of a few bits, widened as they are read.

  MXFP4  X_blocks u8 [..., out, in / 32, 16] and X_scales u8 [..., out, in / 32]
         are X [..., in, out]: 4-bit floats, two in a byte, low bits first, and
         a power of two for 32 of them (Open Compute Project, MX formats 1.0)

Every number of it is a bfloat16, so nothing is rounded. What is given looks
like a slice of safetensors: tensors are widened a few megabytes at a time.
"""

import dataclasses
import math
from typing import Any

import numpy as np

BLOCKS, SCALES = '_blocks', '_scales'
BIAS = 127  # of the scales' exponents
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
FP4 = np.concatenate([FP4, -FP4])
BLOCK = 32  # numbers that share a scale


@dataclasses.dataclass(frozen=True)
class Mxfp4:
  """A weight [..., in, out] of blocks and scales, as if it were bfloat16."""

  blocks: Any  # slice of u8 [..., out, in / 32, 16]
  scales: Any  # slice of u8 [..., out, in / 32]

  def get_shape(self) -> list[int]:
    *lead, n_out, n, _ = self.blocks.get_shape()
    return [*lead, n * BLOCK, n_out]

  def get_dtype(self) -> str:
    return 'BF16'

  def __getitem__(self, where) -> np.ndarray:
    shape = self.get_shape()
    where = where if isinstance(where, tuple) else (where,)
    where = [*where, *[slice(None)] * (len(shape) - len(where))]
    *lead, rows, columns = where
    first, last, _ = rows.indices(shape[-2])
    blocks = slice(first // BLOCK, math.ceil(last / BLOCK))
    codes = self.blocks[(*lead, columns, blocks)]
    scales = self.scales[(*lead, columns, blocks)]
    pairs = np.stack([codes & 15, codes >> 4], axis=-1)
    values = FP4[pairs.reshape(*codes.shape[:-1], BLOCK)]
    values = np.ldexp(values, scales[..., None].astype(np.int32) - BIAS)
    values = values.reshape(*values.shape[:-2], -1).swapaxes(-1, -2)
    skip = first - blocks.start * BLOCK
    return values[..., skip : skip + last - first, :]


def unpacked(folder, slices: dict) -> dict:
  """Returns slices by name with those that are packed as what they hold.

  Raises:
    ValueError: blocks without their scales, or of another shape.
  """
  out = dict(slices)
  for name in slices:
    if not name.endswith(BLOCKS):
      continue
    whole = name.removesuffix(BLOCKS)
    if whole + SCALES not in slices:
      raise ValueError(f'{folder}: {name} lacks {whole + SCALES}')
    blocks, scales = out.pop(name), out.pop(whole + SCALES)
    *shape, width = blocks.get_shape()
    found = scales.get_shape()
    if 2 * width != BLOCK or list(found) != shape:
      raise ValueError(
        f'{folder}: {name} is {(*shape, width)} and its scales '
        f'{tuple(found)}: MXFP4 has {BLOCK // 2} bytes for each scale'
      )
    out[whole] = Mxfp4(blocks, scales)
  return out
