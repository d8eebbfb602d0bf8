"""The log of compiled programs equals jax's own report, once per program."""

import jax
import numpy as np
from waiting import eventually

from jaxrl_reason.run.process import compile_log


def product(x):
  return jax.lax.fori_loop(0, 5, lambda i, y: y @ x, x).max()


def named(name):
  """Returns `product` with a name of its own, which is the program's name."""

  def f(x):
    return product(x)

  f.__name__ = name
  return f


def test_a_program_is_noted_once_with_its_bytes():
  x = np.ones((256, 256), np.float32)
  f = jax.jit(named('product_of_ones'))
  log = compile_log.Log()
  with log:
    f(x)
    f(x)
  jax.jit(named('too_late'))(x)
  (got,) = [p for p in log.take() if p.name == 'product_of_ones']
  assert log.take() == []
  want = f.lower(x).compile().memory_analysis()
  assert got.arguments == want.argument_size_in_bytes == x.nbytes
  assert got.temporaries == want.temp_size_in_bytes >= x.nbytes
  assert got.peak >= got.arguments + got.temporaries
  assert got.seconds > 0


def test_the_table_shows_the_largest_and_sums_the_rest():
  log = compile_log.Log()
  with log:
    for n in (1, 4, 2, 3):
      x = np.ones((n * 100, 8, 8), np.float32)
      jax.jit(named(f'of_{n}'))(x)
  lines = log.table(shown=2).splitlines()
  assert [line.split()[0] for line in lines[1:3]] == ['of_4', 'of_3']
  assert 'smaller ones' in lines[3] and len(lines) == 4


def test_waiting_reports_the_program_and_the_time():
  said = []
  with compile_log.Waiting('compiling rl_steps', said.append, every_s=0.01):
    assert eventually(lambda: len(said) > 2)
  n = len(said)
  assert said[0].startswith('compiling rl_steps, ') and 's so far' in said[0]
  with compile_log.Waiting('quick', said.append, every_s=60):
    pass
  assert len(said) == n  # fast programs are not reported
