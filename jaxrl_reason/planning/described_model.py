"""Described chips: their topology, a mesh of them, and compilation for them.

  devices('v5p:4x4x4', 1)      described devices (the libtpu wheel, no TPU)
  measure(phase, mesh)         compiles -> Measured, or DoesNotFit

The compiler is XLA's own for the real chip; nothing runs.
"""

import dataclasses
import os
import re
import time

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from jaxrl_reason import trees
from jaxrl_reason.names import install
from jaxrl_reason.planning import costs, hlo, phases
from jaxrl_reason.run.process import chips

_USED = (
  re.compile(r'Used ([\d.]+)([KMGT])i?B? of ([\d.]+)([KMGT])i?B? hbm'),
  re.compile(
    r'\(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)([KMGT])\)'
  ),
)
_UNIT = {'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}


# Settings of libtpu: it queries no metadata server and uses no device, so other
# processes may describe or use TPUs at the same time. Without a host and a type
# it would print warnings; they change no description.
ENVIRONMENT = {
  'TPU_SKIP_MDS_QUERY': '1',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
}


class DoesNotFit(ValueError):
  """A phase does not fit. Attributes: phase; needs, has: bytes of a chip."""

  def __init__(self, phase: str, needs: float, has: float):
    self.phase, self.needs, self.has = phase, needs, has
    gib = chips.GIB
    super().__init__(
      f'{phase} does not fit: needs {needs / gib:.1f} of {has / gib:.1f} GiB '
      'a chip'
    )


def devices(topology: str, slices: int = 1) -> list:
  """Returns the described devices of a topology.

  Raises:
    ValueError: no such topology. ImportError: no libtpu.
  """
  chips.chip_of(topology)  # refuses an unknown name
  for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  # Described chips are no backend, so arrays of the process are on the CPU.
  jax.config.update('jax_platforms', 'cpu')
  options = dict(chips.OPTIONS.get(topology.partition(':')[0], {}))
  if slices < 1:
    raise ValueError(f'--num_slices={slices}: at least 1')
  if slices > 1:
    options['num_slices'] = slices
  if set(chips.torus_of(topology)) == {1}:
    options['chips_per_host_bounds'] = [1, 1, 1]
  try:
    import libtpu  # noqa: F401
  except ImportError as e:
    raise ImportError(
      f'compiling for a TPU needs libtpu (no TPU): {install("tpu")}'
    ) from e
  try:
    return topologies.get_topology_desc(
      platform='tpu', topology_name=topology, **options
    ).devices
  except jax.errors.JaxRuntimeError as e:
    raise ValueError(
      f'--topology={topology}: {str(e).splitlines()[0]}. Write a chip and the '
      'sizes of its torus: v5e:4x4, v5p:4x4x4, v6e:16x16, v4:2x2x4, tpu7x:2x2x1'
    ) from e


@dataclasses.dataclass(frozen=True)
class Measured:
  """A compiled phase; bytes are of one device.

  Attributes:
    resident: see the function of this name.
    cost: of its operations.
    aliased: outputs in donated arguments; donated: their bytes.
    compile_s: seconds.
  """

  phase: phases.Phase
  arguments: int
  temporaries: int
  peak: int
  resident: int
  cost: costs.Cost
  aliased: int
  donated: int
  compile_s: float

  @property
  def needs(self) -> int:
    return self.peak + self.resident


def out_of_memory(message: str) -> tuple[float, float] | None:
  """Parses (needed, available) bytes from an out-of-memory message, if it is
  one.
  """
  for pattern in _USED:
    if found := pattern.search(message):
      used, unit, has, unit_has = found.groups()
      return float(used) * _UNIT[unit], float(has) * _UNIT[unit_has]
  return None


def _is_laid(x) -> bool:
  return isinstance(x, jax.ShapeDtypeStruct) and x.sharding is not None


def on_chip(tree) -> int:
  """Counts the bytes of shapes with shardings on one device, without arrays in
  host memory.
  """
  kept = [
    x for x in jax.tree.leaves(tree) if x.sharding.memory_kind != 'pinned_host'
  ]
  return trees.n_bytes(
    [
      jax.ShapeDtypeStruct(x.sharding.shard_shape(x.shape), x.dtype)
      for x in kept
    ]
  )


def resident(phase: phases.Phase, arguments: int) -> int:
  """Counts the bytes on one device of the state, and of what is beside it, that
  are no arguments of the program but stay.

  Args:
    arguments: bytes of the arguments.
  """
  return max(on_chip(phase.state) - arguments, 0) + on_chip(phase.beside)


def refuse(phase: phases.Phase, error: jax.errors.JaxRuntimeError):
  """Raises the error of a compiler, as DoesNotFit if it is of memory."""
  if (room := out_of_memory(str(error))) is None:
    raise error
  given = on_chip([x for x in jax.tree.leaves(phase.args) if _is_laid(x)])
  stays = resident(phase, given)
  raise DoesNotFit(phase.name, room[0] + stays, room[1]) from error


def measure(phase: phases.Phase, mesh: Mesh, experts: int = 0) -> Measured:
  """Compiles a phase for the devices of a mesh.

  Args:
    experts: of the model.

  Raises:
    DoesNotFit: the compiler found no room for the program.
  """
  start = time.monotonic()
  try:
    compiled = phase.lower(mesh).compile()
  except jax.errors.JaxRuntimeError as e:
    refuse(phase, e)
  seconds = time.monotonic() - start
  memory, text = compiled.memory_analysis(), compiled.as_text()
  arguments = memory.argument_size_in_bytes
  return Measured(
    phase,
    arguments,
    memory.temp_size_in_bytes,
    # The peak counts arrays that are alive together; temporaries include holes.
    memory.peak_memory_in_bytes,
    resident(phase, arguments),
    costs.of(text, mesh, experts),
    hlo.parse(text[: text.find('\n') + 1]).aliased(),
    memory.alias_size_in_bytes,
    seconds,
  )
