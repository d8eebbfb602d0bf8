"""A CPU becomes several devices where the rows of a recipe divide over them."""

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
  cpu_devices.split(run, env)
  return made


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


def test_other_than_a_number_is_refused(monkeypatch):
  with pytest.raises(ValueError, match="JAXRL_CPU_DEVICES='two': must be a nu"):
    asked(monkeypatch, {'JAXRL_CPU_DEVICES': 'two'})
