"""What a chip can do, as its maker states it, by the name of its topology.

Sources (November 2025): https://cloud.google.com/tpu/docs/v4, .../v5e,
.../v5p, .../v6e, .../tpu7x. ICI is of all links of a chip together, both
directions counted once. The figures here are of one jax device, which is half
of a TPU7x chip.
"""

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
  """Attributes:
  flops: dense bf16 FLOP/s.
  hbm: bytes of memory; bandwidth: its bytes/s.
  ici: bytes/s to the other chips of a slice.
  kind: `device_kind` of jax.
  """

  flops: float
  hbm: float
  bandwidth: float
  ici: float
  kind: str


CHIPS = {
  'v4': Chip(275e12, 32 * GIB, 1228e9, 300e9, 'TPU v4'),
  'v5e': Chip(197e12, 16 * GIB, 819e9, 200e9, 'TPU v5 lite'),
  'v5p': Chip(459e12, 95 * GIB, 2765e9, 600e9, 'TPU v5'),
  'v6e': Chip(918e12, 32 * GIB, 1640e9, 448e9, 'TPU v6 lite'),
  'tpu7x': Chip(1153.5e12, 96 * GIB, 3690e9, 600e9, 'TPU7x'),
}
# Between slices, bytes/s of a chip: 100 Gbit/s a host of four.
DCN = 3.1e9
# jax sees a v4 chip as one device only when asked.
OPTIONS = {'v4': {'chip_config_name': 'megacore'}}


def chip_of(topology: str) -> Chip:
  """The chip of a topology such as v5e:4x4.

  Raises:
    ValueError: names what there is.
  """
  name = topology.partition(':')[0]
  if name not in CHIPS:
    raise ValueError(
      f'--topology={topology}: {name!r} is none of {", ".join(CHIPS)}; write '
      'for example v5e:4x4 or v5p:4x4x4'
    )
  return CHIPS[name]
