"""Unpacks published weights of a few bits while they are read.

  MXFP4  X_blocks u8 [..., out, in / 32, 16] and X_scales u8 [..., out, in / 32]
         are X [..., in, out]: 4-bit floats, two in a byte, low bits first, and
         a power of two for 32 of them (Open Compute Project, MX formats 1.0)

  FP8    X f8e4m3 [..., out, in] and X_scale_inv f32 [..., out / 128, in / 128]
         are their product, a scale for each tile
         (https://arxiv.org/abs/2412.19437), or one for the whole weight. X's
         module may have an activation_scale, by which other programs round the
         module's inputs; it is not read

bfloat16 represents every MXFP4 number exactly. Products of FP8 are rounded to
bfloat16, as in DeepSeek V3's own conversion. The results have the interface of
a safetensors slice, and tensors are unpacked a few megabytes at a time.
"""

import dataclasses
import json
import math
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np

BLOCKS, SCALES = '_blocks', '_scales'
INVERSE, TILE = '_scale_inv', 128
OF_INPUTS = '.activation_scale'
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


@dataclasses.dataclass(frozen=True)
class Fp8:
  """A weight [..., out, in] and its scales, as if it were bfloat16."""

  values: np.ndarray  # f8e4m3 [..., out, in], mapped from the file
  # Slice of scales: [..., out / 128, in / 128], one for each expert
  # [..., 1, 1], or one number of any shape.
  scales: Any

  def get_shape(self) -> list[int]:
    return list(self.values.shape)

  def get_dtype(self) -> str:
    return 'BF16'

  def __getitem__(self, where) -> np.ndarray:
    where = where if isinstance(where, tuple) else (where,)
    shape = self.values.shape
    where = (*where, *[slice(None)] * (len(shape) - len(where)))
    scales = np.asarray(self.scales[...], np.float32)
    if scales.size > 1:
      rows, columns = (
        np.minimum(np.arange(n)[w] // TILE, tiles - 1)
        for n, w, tiles in zip(shape[-2:], where[-2:], scales.shape[-2:])
      )
      scales = scales[where[:-2]][..., rows[:, None], columns]
    else:
      scales = scales.reshape(())
    return (self.values[where].astype(np.float32) * scales).astype(jnp.bfloat16)


def _mapped(path: pathlib.Path, name: str) -> np.ndarray:
  """Maps a tensor of FP8, which safetensors slices to no NumPy type."""
  with path.open('rb') as f:
    size = int.from_bytes(f.read(8), 'little')
    entry = json.loads(f.read(size))[name]
  first = 8 + size + entry['data_offsets'][0]
  raw = np.memmap(path, np.uint8, 'r', first, tuple(entry['shape']))
  return raw.view(jnp.float8_e4m3fn)


def unpacked(folder: pathlib.Path, slices: dict, home: dict) -> dict:
  """Returns slices by name, with packed tensors unpacked on reading.

  Args:
    home: the file of each.

  Raises:
    ValueError: blocks without their scales, or of another shape.
  """
  out = dict(slices)
  for name in [n for n in slices if n.endswith(INVERSE)]:
    whole, scales = name.removesuffix(INVERSE), out.pop(name)
    if whole not in slices or slices[whole].get_dtype() != 'F8_E4M3':
      raise ValueError(f'{folder}: {name} scales no tensor of F8_E4M3')
    shape, found = slices[whole].get_shape(), list(scales.get_shape())
    tiles = [*shape[:-2], *(math.ceil(n / TILE) for n in shape[-2:])]
    of_experts = [*shape[:-2], 1, 1]
    if math.prod(found) != 1 and found not in (tiles, of_experts):
      raise ValueError(
        f'{folder}: {whole} is {tuple(shape)} and its scales {tuple(found)}: '
        f'allowed is one for each tile of {TILE}, for each expert, or for all'
      )
    out[whole] = Fp8(_mapped(folder / home[whole], whole), scales)
    out.pop(whole.removesuffix('.weight') + OF_INPUTS, None)
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
