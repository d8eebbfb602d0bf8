"""Compiles a program up to its buffers, without the code for the chip.

  measure(make, args, phase, mesh) -> described_model.Measured

A plan reads the scheduled HLO and the sizes of buffers. Most of the time of the
TPU compiler goes into the code after them, and no option leaves this code out.
So another process compiles and writes its HLO to a folder (`xla_dump_to`). It
is killed as soon as the folder has the HLO with its buffers.
"""

import collections
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import Mesh

from jaxrl_reason.planning import costs, hlo, phases
from jaxrl_reason.planning import described_model as described

# The compiler writes LAST after BUFFERS and TEXT.
TEXT = '*.after_optimizations.txt'
BUFFERS = '*.after_optimizations.hlo.pb'
LAST = '*.after_optimizations_after_buffer_assignment.hlo.pb'
OPTIONS = {
  'xla_dump_hlo_as_text': True,
  'xla_dump_hlo_as_proto': True,
  'xla_syntax_sugar_async_ops': True,  # as `Compiled.as_text` writes them
}
WATCH = 0.2  # seconds between two looks at the folder
FREES, SHARES = 1, 2  # kinds of events; 0 allocates
REQUEST, ERROR = 'request.pickle', 'error.pickle'


class NotBuilt(RuntimeError):
  """Another process did not build the program: it uses code of a recipe, or
  the system killed the process.
  """


def measure(
  make: Callable[..., jax.stages.Lowered],
  args: tuple,
  phase: phases.Phase,
  mesh: Mesh,
  experts: int = 0,
) -> described.Measured:
  """Compiles a phase for the devices of a mesh, without code.

  Args:
    make: a function of a module, which lowers the phase in another process;
      args: its arguments, which are pickled.
    experts: of the model.

  Raises:
    DoesNotFit: the buffers exceed the memory of a chip.
    NotBuilt: another process did not build the program.
  """
  start = time.monotonic()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    _compile(folder, make, args)
    if (error := folder / ERROR).exists():
      described.refuse(phase, pickle.loads(error.read_bytes()))
    found = [next(folder.glob(p), None) for p in (TEXT, BUFFERS, LAST)]
    if None in found:  # a compiler that writes other files
      return described.measure(phase, mesh, experts)
    text, memory = found[0].read_text(), Memory(found[1].read_bytes())
  return described.Measured(
    phase,
    memory.arguments,
    memory.temporaries,
    memory.peak,
    described.resident(phase, memory.arguments),
    costs.of(text, mesh, experts),
    hlo.parse(text[: text.find('\n') + 1]).aliased(),
    memory.donated,
    time.monotonic() - start,
  )


def _compile(folder: pathlib.Path, make, args: tuple) -> None:
  """Compiles in another process, until the folder has the buffers or an error.

  Raises:
    NotBuilt: the process ended with neither.
  """
  try:
    (folder / REQUEST).write_bytes(pickle.dumps((make, args)))
  except (pickle.PicklingError, AttributeError, TypeError) as e:
    raise NotBuilt(str(e)) from e
  command = f'from {__name__} import main; main({str(folder)!r})'
  paths = os.pathsep.join(p for p in sys.path if p)
  process = subprocess.Popen(
    [sys.executable, '-c', command],
    # jax's note about hidden frames would be the last line of an error.
    env=os.environ | {'PYTHONPATH': paths, 'JAX_TRACEBACK_FILTERING': 'off'},
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )
  errors = ''
  try:
    while not any(folder.glob(LAST)) and process.poll() is None:
      try:
        errors += process.communicate(timeout=WATCH)[1] or ''
      except subprocess.TimeoutExpired:
        continue
  finally:
    process.kill()
    process.wait()
  code = process.returncode
  if not code or any(folder.glob(LAST)):  # the kill above has a code, too
    return
  if code < 0:
    raise NotBuilt(f'killed by signal {-code}')
  raise NotBuilt((errors.strip().splitlines() or [f'exit code {code}'])[-1])


def main(name: str) -> None:
  """Compiles the program that a folder describes, and writes its HLO there."""
  folder = pathlib.Path(name)
  make, args = pickle.loads((folder / REQUEST).read_bytes())
  try:
    make(*args).compile(compiler_options=OPTIONS | {'xla_dump_to': name})
  except jax.errors.JaxRuntimeError as e:
    part = folder / f'{ERROR}.part'
    part.write_bytes(pickle.dumps(e))
    part.rename(folder / ERROR)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
  """Returns the (number, value) of each field of a protocol buffer's message,
  whose values are integers or bytes.
  """
  at = 0

  def integer() -> int:
    nonlocal at
    value = shift = 0
    while True:
      byte, at = data[at], at + 1
      value, shift = value | (byte & 127) << shift, shift + 7
      if byte < 128:
        return value

  while at < len(data):
    key = integer()
    number, kind = key >> 3, key & 7
    if kind == 0:
      yield number, integer()
      continue
    size = {1: 8, 5: 4}.get(kind) or integer()
    yield number, data[at : at + size]
    at += size


def _message(data: bytes) -> dict[int, list]:
  """Returns the values of a message by the numbers of their fields."""
  out: dict[int, list] = {}
  for number, value in _fields(data):
    out.setdefault(number, []).append(value)
  return out


def _one(message: dict[int, list], number: int) -> int:
  return message.get(number, (0,))[0]


class Memory:
  """The buffers of a compiled program (xla/service/hlo.proto).

  Attributes:
    arguments, temporaries, donated: bytes in HBM; temporaries with the holes
      between them.
    peak: bytes that are alive together, as XLA counts them: every buffer
      beside the temporaries, and the largest of the temporaries' traces.
  """

  def __init__(self, proto: bytes):
    assigned = _message(_message(proto)[3][0])
    sizes = {}
    for buffer in map(_message, assigned[1]):
      sizes[_one(buffer, 1)] = _one(buffer, 2)
    self.arguments = self.temporaries = self.donated = fixed = 0
    traces = [_message(t) for t in assigned.get(4, ())]
    for a in map(_message, assigned[3]):
      size, on_chip = _one(a, 2), _one(a, 8)
      if on_chip or _one(a, 3):  # another memory, or of a called computation
        continue
      argument, out, constant = _one(a, 5), _one(a, 7), _one(a, 12)
      fixed += size if argument or out or constant else 0
      self.arguments += size if argument else 0
      self.donated += size if argument and out else 0
      self.temporaries += 0 if argument or out else size
    self.peak = fixed + max([_largest(t, sizes) for t in traces], default=0)


def _largest(trace: dict[int, list], sizes: dict[int, int]) -> int:
  """Returns the largest sum of sizes during a trace of allocations.

  A buffer may share the place of an earlier one (kind 2), which is free after
  the last of them.
  """
  now = most = 0
  first, users = {}, collections.Counter()
  for event in map(_message, trace.get(1, ())):
    kind, buffer = _one(event, 1), _one(event, 2)
    if kind == FREES:
      place = first.pop(buffer)
      users[place] -= 1
      now -= sizes[place] if not users[place] else 0
      continue
    shared = _one(event, 5) if kind == SHARES else buffer
    place = first[buffer] = first.get(shared, shared)
    now += sizes[place] if not users[place] else 0
    users[place] += 1
    most = max(most, now)
  return most
