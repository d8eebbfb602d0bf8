"""A CPU becomes several devices where the rows of a recipe divide over them."""

import os
import signal
import subprocess
import sys

import jax
import pytest

from jaxrl_reason import config as config_lib
from jaxrl_reason.run.process import cpu_devices


def asked(monkeypatch, env, own=-1, **changes):
  """Returns the settings of jax that a run changes."""
  made = []
  # jax already has the devices of conftest.py, and refuses a change.
  monkeypatch.setattr(cpu_devices, '_own_devices', lambda: own)
  monkeypatch.setattr(jax.config, 'update', lambda *a: made.append(a))
  run = config_lib.Run().changed(**changes)
  cpu_devices.split(run, dict(env))
  return made


SLOW = """
import functools, time
import jax, jax.numpy as jnp, numpy as np
jax.config.update('jax_num_cpu_devices', 2)
types = (jax.sharding.AxisType.Auto,)
mesh, data = jax.make_mesh((2,), ('data',), types), jax.P('data')
def late(i):
  time.sleep(4 * (i == 0))
  return np.float32(i)
@functools.partial(jax.shard_map, mesh=mesh, in_specs=data, out_specs=jax.P())
def total(x):
  i = jax.lax.axis_index('data')
  x += jax.pure_callback(late, jax.ShapeDtypeStruct((), jnp.float32), i)
  return jax.lax.psum(x, 'data')
assert jax.jit(total)(jnp.ones(2))[0] == 3
"""
TWO = {'JAXRL_CPU_DEVICES': '2'}
SPLIT = [('jax_num_cpu_devices', 2)]


def test_rows_that_divide_are_split_only_if_asked(monkeypatch):
  assert asked(monkeypatch, TWO) == SPLIT
  assert asked(monkeypatch, {}) == []
  assert asked(monkeypatch, {'JAXRL_CPU_DEVICES': '1'}) == []


@pytest.mark.parametrize(
  'changes',
  [
    {'rl__prompts': 7},
    {'stages': ('sft', 'rl'), 'sft__rows': 9},
    {'mesh': (1, 1, 1)},
    {'mesh': (1, -1, 1)},
    {'mesh': ()},
  ],
)
def test_other_rows_and_meshes_stay_on_one_device(monkeypatch, changes):
  assert asked(monkeypatch, TWO, **changes) == []


def test_own_devices_have_priority(monkeypatch):
  flags = {'XLA_FLAGS': '--xla_force_host_platform_device_count=8'}
  assert asked(monkeypatch, TWO | flags) == []
  assert asked(monkeypatch, TWO | {'JAX_NUM_PROCESSES': '2'}) == []
  assert asked(monkeypatch, TWO, own=4) == []


def test_devices_wait_for_each_other(monkeypatch):
  """XLA has the flag. Devices that are not made here keep their own."""
  name, seconds = cpu_devices.PATIENCE
  monkeypatch.setattr(jax.config, 'update', lambda *_: None)
  monkeypatch.setattr(cpu_devices, '_own_devices', lambda: -1)

  def flags(version: str, **env) -> str:
    monkeypatch.setattr(cpu_devices.jaxlib, '__version__', version)
    cpu_devices.split(config_lib.Run(), env)
    return env.get('XLA_FLAGS', '')

  assert flags('0.10.2', **TWO) == f'--{name}={seconds}'
  assert (
    flags('0.10.2', **TWO, XLA_FLAGS='--a=1') == f'--a=1 --{name}={seconds}'
  )
  assert flags('0.10.2', **TWO, XLA_FLAGS=f'--{name}=9') == f'--{name}=9'
  assert flags('0.12.0', **TWO) == flags('0.10.2') == ''


def test_this_xla_knows_the_flag():
  """Devices that wait for longer than the flag end the process."""
  name, seconds = cpu_devices.PATIENCE
  if not jax.__version__.startswith(cpu_devices.KNOWN_IN):
    pytest.skip('the flag is not set')
  for value, ends in ((seconds, 0), (1, -signal.SIGABRT)):
    waits = (
      f'--{name}={value} --xla_cpu_collective_call_warn_stuck_timeout_seconds=1'
    )
    env = os.environ | {'XLA_FLAGS': waits}
    run = subprocess.run([sys.executable, '-c', SLOW], env=env, check=False)
    assert run.returncode == ends


def test_other_than_a_number_is_refused(monkeypatch):
  with pytest.raises(ValueError, match="JAXRL_CPU_DEVICES='two': must be a nu"):
    asked(monkeypatch, {'JAXRL_CPU_DEVICES': 'two'})
