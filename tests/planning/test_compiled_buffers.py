"""Programs are compiled up to their buffers. A function that writes files
replaces the compiler of a chip.
"""

import os
import pathlib
import signal
import time
import types

import jax
import jax.numpy as jnp
import pytest

from jaxrl_reason import sharding
from jaxrl_reason.config import Run
from jaxrl_reason.planning import compiled_buffers as buffers
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.planning import plan_table
from jaxrl_reason.planning.planner import Planner

HLO = """HloModule jit_f, input_output_alias={ {0}: (0, {}, may-alias) }

ENTRY %e (a: f32[64,64]) -> f32[64,64] {
  %a = f32[64,64]{1,0} parameter(0)
  ROOT %d = f32[64,64]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""  # noqa: E501


def message(*fields) -> bytes:
  """Encodes (number, integer or bytes) as a protocol buffer's message."""

  def integer(n: int) -> bytes:
    low, rest = n & 127, n >> 7
    return bytes([low | 128]) + integer(rest) if rest else bytes([low])

  out = b''
  for number, value in fields:
    if isinstance(value, bytes):
      out += integer(number << 3 | 2) + integer(len(value)) + value
    else:
      out += integer(number << 3) + integer(value)
  return out


def allocation(size: int, *fields) -> tuple[int, bytes]:
  return 3, message((2, size), *fields)


def trace(*events) -> tuple[int, bytes]:
  return 4, message(*((1, message(*e)) for e in events))


# Field numbers of a buffer: id 1, size 2; of an event: kind 1 (0: allocates,
# 1: frees, 2: shares the place of buffer 5), buffer 2.
PROTO = message(
  (1, b'the module'),
  (
    3,
    message(
      (1, message((2, 3000))),  # id 0 is not written
      (1, message((1, 1), (2, 500))),
      (1, message((1, 2), (2, 700))),
      (1, message((1, 3), (2, 3000))),
      allocation(1000, (5, 1), (7, 1)),  # a donated argument
      allocation(200, (5, 1)),  # an argument
      allocation(64, (7, 1)),  # an output
      allocation(8, (12, 1)),  # a constant
      allocation(9999, (3, 1)),  # of a called computation
      allocation(8888, (8, 1)),  # in on-chip memory
      allocation(4096),  # temporaries
      trace(
        ((2, 0),),
        ((1, 2), (2, 3), (5, 0)),
        ((2, 1),),
        ((1, 1), (2, 0)),
        ((2, 2),),
        ((1, 1), (2, 3)),
      ),
      trace(((2, 2),)),
    ),
  ),
)


class Program:
  """Writes the files of a compiler, then generates code for a minute."""

  def __init__(self, error: str = '', names=(buffers.TEXT,)):
    self.error, self.names = error, names

  def compile(self, compiler_options: dict):
    folder = pathlib.Path(compiler_options['xla_dump_to'])
    if self.error:
      raise jax.errors.JaxRuntimeError(self.error)
    for pattern, value in (
      (buffers.TEXT, HLO.encode()),
      (buffers.BUFFERS, PROTO),
      (buffers.LAST, b''),
    ):
      if pattern in self.names:
        (folder / pattern.replace('*', 'module_0.jit_f')).write_bytes(value)
    if len(self.names) == 3:
      time.sleep(60)


EVERY = buffers.TEXT, buffers.BUFFERS, buffers.LAST


def phase():
  mesh = sharding.make_mesh((8, 1, 1))
  where = jax.NamedSharding(mesh, jax.P())
  x = jax.ShapeDtypeStruct((2**18,), jnp.float32, sharding=where)
  given = dict(args=(x,), state=x, beside=None)
  return types.SimpleNamespace(name='update', **given), mesh


def test_a_program_is_measured_without_its_code():
  start = time.monotonic()
  found = buffers.measure(Program, ('', EVERY), *phase())
  assert time.monotonic() - start < 45  # its code takes a minute
  assert (found.arguments, found.donated, found.aliased) == (1200, 1000, 1)
  assert found.temporaries == 4096 + 8
  # The trace holds 3000, 3000, 3500, 3500, 4200 and 1200 bytes.
  assert found.peak == 1000 + 200 + 64 + 8 + 4200
  assert found.resident == 4 * 2**18 - 1200
  assert found.cost.total().flops == 2 * 64**3


def test_a_program_that_exceeds_the_memory_is_refused():
  said = 'RESOURCE_EXHAUSTED: Used 17.50G of 15.75G hbm.'
  with pytest.raises(described.DoesNotFit, match='needs 17.5 of 15.8 GiB'):
    buffers.measure(Program, (said,), *phase())
  with pytest.raises(jax.errors.JaxRuntimeError, match='another error'):
    buffers.measure(Program, ('another error',), *phase())


def test_a_compiler_that_writes_other_files_compiles_to_the_end(monkeypatch):
  monkeypatch.setattr(described, 'measure', lambda *_: 'to the end')
  assert buffers.measure(Program, (), *phase()) == 'to the end'


def test_programs_that_only_this_process_can_build_are_not_built():
  with pytest.raises(buffers.NotBuilt, match='int.*no attribute .compile'):
    buffers.measure(int, (), *phase())
  with pytest.raises(buffers.NotBuilt, match='lambda'):
    buffers.measure(lambda: None, (), *phase())


def traced():
  """Raises an error while jax traces a function."""

  def fail(x):
    raise ValueError('this code has a mistake')

  return jax.eval_shape(fail, 1.0)


def test_the_error_of_a_traced_function_is_its_own_line():
  with pytest.raises(buffers.NotBuilt, match='this code has a mistake'):
    buffers.measure(traced, (), *phase())


class Killed:
  """Is killed before it has written its files, as if memory were short."""

  def compile(self, compiler_options: dict):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_another_one_kills_has_built_nothing():
  with pytest.raises(buffers.NotBuilt, match='killed by signal 9'):
    buffers.measure(Killed, (), *phase())


def test_a_planner_compiles_these_to_the_end(monkeypatch):
  """The task of a recipe is registered in this process alone."""
  said, whole = [], types.SimpleNamespace(compile_s=1.0)

  def refuse(*_):
    raise buffers.NotBuilt("data.name='largest': choose one of gsm8k")

  monkeypatch.setattr(buffers, 'measure', refuse)
  monkeypatch.setattr(described, 'measure', lambda *_: whole)
  monkeypatch.setattr(plan_table, 'phase_facts', lambda found, *_: found)
  planner = object.__new__(Planner)  # without the compiler of a TPU
  machine = types.SimpleNamespace(slices=1)
  vars(planner).update(code=False, say=said.append, machine=machine)
  vars(planner).update(topology='v5e:1x1', model='')
  made = phase()[0]
  made.mesh = None
  parts = types.SimpleNamespace(
    config=Run(), mesh=None, shape=types.SimpleNamespace(experts=0, layers=2)
  )
  assert planner._compiled(made, parts) is whole and planner.code
  assert 'largest' in said[0]


def test_a_planner_compiles_a_phase_of_a_recipe_once(monkeypatch):
  compiled, planner = [], object.__new__(Planner)
  planner._found = {}
  monkeypatch.setattr(
    Planner,
    '_compiled',
    lambda self, phase, parts: compiled.append(parts) or {},
  )
  shape = types.SimpleNamespace(layers=2)
  for config in (Run(), Run(), Run(seed=1)):
    parts = types.SimpleNamespace(config=config, shape=shape)
    planner._facts(phase()[0], parts)
  assert [parts.config.seed for parts in compiled] == [0, 1]
