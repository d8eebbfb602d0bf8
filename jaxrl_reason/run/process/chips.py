"""Published figures of chips, and options of their compiler.

Sources (November 2025): https://cloud.google.com/tpu/docs/v4, .../v5e, .../v5p,
.../v6e, .../tpu7x. ICI is the sum over all links of a chip, with both
directions counted once. The figures are per jax device, which is half of a
TPU7x chip.
"""

import dataclasses
import functools
import math
import os
import re
from collections.abc import Sequence

import jax
from absl import logging

from jaxrl_reason.names import closest

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
  """Attributes:
  flops: dense bf16 FLOP/s.
  hbm: bytes of memory that programs may have, as the compiler counts them
    (tests/tpu compares them); bandwidth: its bytes/s.
  ici: bytes/s to the other chips of a slice.
  int8: peak of int8 products over that of bf16 products; 1 where none is
    published.
  kinds: `device_kind` of jax, in one release or another.
  """

  flops: float
  hbm: float
  bandwidth: float
  ici: float
  int8: int
  kinds: tuple[str, ...]


# By the name of a topology.
CHIPS = {
  'v4': Chip(275e12, 30.75 * GIB, 1228e9, 300e9, 1, ('TPU v4',)),
  'v5e': Chip(197e12, 15.75 * GIB, 819e9, 200e9, 2, ('TPU v5 lite', 'TPU v5e')),
  'v5p': Chip(459e12, 95.74 * GIB, 2765e9, 600e9, 2, ('TPU v5', 'TPU v5p')),
  'v6e': Chip(
    918e12, 31.25 * GIB, 1640e9, 448e9, 2, ('TPU v6 lite', 'TPU v6e')
  ),
  'tpu7x': Chip(1153.5e12, 94.75 * GIB, 3690e9, 600e9, 1, ('TPU7x',)),
}
# Peak dense bf16 FLOP/s by `device_kind`.
PEAK_FLOPS = {
  'NVIDIA A100-SXM4-80GB': 312e12,
  'NVIDIA H100 80GB HBM3': 989e12,
  'NVIDIA H200': 989e12,
} | {kind: c.flops for c in CHIPS.values() for kind in c.kinds}
# Bytes of a GPU's memory, as nvidia-smi counts it.
GPUS = {
  'a100-80gb': 80.0 * GIB,
  'h100': 79.6 * GIB,
  'h200': 140.4 * GIB,
}
# Share of a GPU's memory that jax takes, and the variable that changes it.
SHARE, SHARE_VARIABLE = 0.75, 'XLA_PYTHON_CLIENT_MEM_FRACTION'
# Between slices, bytes/s of a chip: 100 Gbit/s a host of four.
DCN = 3.1e9
# Dimensions of a slice's torus.
DIMENSIONS = {'v4': 3, 'v5e': 2, 'v5p': 3, 'v6e': 2, 'tpu7x': 3}
# Both are off by default. On chips with SparseCores, these gather weights and
# sum gradients in parallel with independent operations, kernels included. A
# gather must then not be compiled as a sum with zeros.
ON_SPARSE_CORES = dict.fromkeys(
  [
    'xla_enable_async_all_gather',
    'xla_tpu_prefer_async_allgather_to_allreduce',
    *(
      f'xla_tpu_enable_sparse_core_collective_offload_{kind}'
      for kind in (
        'all_gather',
        '2d_all_gather',
        '3d_all_gather',
        'all_reduce',
        'reduce_scatter',
      )
    ),
  ],
  True,
)
# On other chips a sum is split into steps that overlap with independent
# products, such as the weights' gradient; gathers overlap by default.
IN_PRODUCTS = {
  'xla_enable_async_all_reduce': True,
  'xla_tpu_enable_async_collective_fusion_fuse_all_reduce': True,
}
OVERLAP = dict.fromkeys(CHIPS, ON_SPARSE_CORES) | dict.fromkeys(
  ('v4', 'v5e'), IN_PRODUCTS
)
# jax exposes a v4 chip as one device only with this option.
OPTIONS = {'v4': {'chip_config_name': 'megacore'}}


def chip_of(topology: str, flag: str = '--topology') -> Chip:
  """Returns the chip of a topology such as v5e:4x4.

  Args:
    flag: that names the topology, for errors.

  Raises:
    ValueError: names the known chips.
  """
  name = topology.partition(':')[0]
  if name not in CHIPS:
    near = _similar(topology, flag)
    raise ValueError(
      f'{flag}={topology}: {name!r} is not one of {", ".join(CHIPS)}.'
      f'{near and f" Did you mean {near!r}?"} Write for example v5e:4x4 or '
      f'v5p:4x4x4. Of GPUs, only --on=NAME of "start" knows the memory: '
      f'{", ".join(GPUS)}'
    )
  torus_of(topology)
  return CHIPS[name]


def gpu_memory(name: str) -> float:
  """Returns the bytes that jax takes of a GPU of GPUS; 0 for other names.

  Raises:
    ValueError: the variable of the share is not a share.
  """
  text = os.environ.get(SHARE_VARIABLE, str(SHARE))
  try:
    share = float(text)
  except ValueError:
    share = 0.0
  if not 0 < share <= 1:
    raise ValueError(f'{SHARE_VARIABLE}={text} must be above 0, and at most 1')
  return share * GPUS.get(name.lower(), 0.0)


def topology_of(name: str) -> str:
  """Returns the topology of an accelerator type (`--on`), v5e:2x4 of v5e-8; a
  topology is returned as it is.

  Raises:
    ValueError: names the known chips, or the next smaller slice.
  """
  topology = _of_type(name)
  chip_of(topology, '--on')
  cores = 2 if topology.partition(':')[0] in CORES else 1
  size = f'-{cores * math.prod(torus_of(topology))}'
  if name.lower() != topology and not name.endswith(size):
    raise ValueError(f'--on={name}: the next smaller slice is {topology}')
  return topology


def topology_here(devices: Sequence[jax.Device]) -> str:
  """Returns the topology of TPUs, v5e:2x4 of eight of a kind."""
  name = _name(devices[0])
  return _of_type(f'{name}-{len(devices) * (2 if name in CORES else 1)}')


# Google Cloud's names of accelerator types, such as v5litepod-8 and v5p-16. Of
# the kinds in CORES the number counts TensorCores, two of a chip.
TYPES = {'v5litepod': 'v5e', 'v5lite': 'v5e'}
CORES = ('v4', 'v5p')


def _of_type(name: str) -> str:
  """Returns the topology of an accelerator type, or the name itself."""
  name = name.lower()
  kind, _, count = name.partition('-')
  kind = TYPES.get(kind, kind)
  if kind not in CHIPS or not count.isdecimal():
    return name
  power = (int(count) // (2 if kind in CORES else 1)).bit_length() - 1
  n = DIMENSIONS[kind]
  sizes = [2 ** ((power + i) // n) for i in range(n)]
  sizes.sort(key=lambda size: (size == 1, size))
  return f'{kind}:{"x".join(map(str, sizes))}'


def _similar(name: str, flag: str) -> str:
  """Returns a known chip with the size of a misspelled name, or ''."""
  topology = _of_type(name)
  kind, mark, size = re.fullmatch(r'([^:-]*)([:-]?)(.*)', topology).groups()
  near = kind if kind in CHIPS else closest(kind, (*CHIPS, *TYPES))
  if not near or flag == '--on':
    return near and f'{near}{mark}{size}'
  return _of_type(f'{near}{mark}{size}')


def torus_of(topology: str) -> tuple[int, ...]:
  """Reads the sizes of a slice's torus, (4, 4) of v5e:4x4.

  Raises:
    ValueError: not as many sizes as the chip's torus has dimensions.
  """
  name, _, text = topology.partition(':')
  sizes = text.split('x')
  n = DIMENSIONS[name]
  if len(sizes) != n or not all(s.isdecimal() and int(s) for s in sizes):
    example = f'{name}:{"x".join(["4"] * n)}'
    raise ValueError(
      f'--topology={topology}: a slice of {name} has {n} dimensions of at '
      f'least 1 chip, such as {example}'
    )
  return tuple(int(s) for s in sizes)


def _name(device: jax.Device) -> str:
  """Returns the name of a device's chip in CHIPS; '' for others."""
  kinds = {kind: name for name, c in CHIPS.items() for kind in c.kinds}
  return kinds.get(device.device_kind, '')


def int8_speed(device: jax.Device) -> int:
  """Returns the peak of int8 products over that of bf16 products."""
  name = _name(device)
  return CHIPS[name].int8 if name else 1


def memory(device: jax.Device) -> int | None:
  """Returns the bytes of a device's memory, or None if unknown. CPU devices
  share the machine's memory.
  """
  if name := _name(device):
    return int(CHIPS[name].hbm)
  if device.platform == 'cpu':
    whole = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    return whole // jax.local_device_count()
  return (device.memory_stats() or {}).get('bytes_limit')


def compiler_options(
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
) -> dict[str, bool]:
  """Returns the compiler options for training programs on a mesh. There are
  none with JAXRL_OVERLAP=0 in the environment, or for a mesh without
  devices, for which nothing is compiled.
  """
  no_devices = isinstance(mesh, jax.sharding.AbstractMesh)
  refused = os.environ.get('JAXRL_OVERLAP') == '0'
  if no_devices or mesh.size == 1 or refused:
    return {}
  device = mesh.devices.flat[0]
  options = OVERLAP.get(_name(device), {})
  return options if options and _knows(device, tuple(options)) else {}


@functools.cache
def _knows(device: jax.Device, options: tuple[str, ...]) -> bool:
  """Returns whether a device's compiler, whose release may differ, accepts
  options.
  """
  where = jax.sharding.SingleDeviceSharding(device)
  one = jax.ShapeDtypeStruct((), 'float32', sharding=where)
  asked = jax.jit(abs, compiler_options=dict.fromkeys(options, True))
  try:
    asked.lower(one).compile()
  except jax.errors.JaxRuntimeError as e:
    if 'No such compile option' not in str(e):
      raise
    logging.warning('Exchanges are waited for: %s', e)
    return False
  return True
