"""Splits the cores of a CPU into devices, each with a share of the rows."""

import os
from collections.abc import MutableMapping

import jax
import jaxlib

from jaxrl_reason.config import Run
from jaxrl_reason.run.checks import config_checks

# Number of devices; `tools/run` sets it to 2 on machines with several cores.
ASKED = 'JAXRL_CPU_DEVICES'
# Settings with which jax or a launcher has its own devices.
OWN = ('xla_force_host_platform_device_count', 'JAX_NUM_PROCESSES')
# XLA ends a process whose devices wait for each other for 40 seconds, which
# happens if other programs use the cores.
PATIENCE = 'xla_cpu_collective_call_terminate_timeout_seconds', 3600
# A version of XLA that does not know a flag ends the process at its start.
KNOWN_IN = '0.10.'


def split(run: Run, env: MutableMapping[str, str] = os.environ) -> None:
  """Makes JAXRL_CPU_DEVICES devices of the CPU, if rows divide over them, and
  lets them wait for each other.

  Must be called before jax has devices. The CPU stays one device if the rows of
  a stage do not divide, or if the mesh splits anything but rows.

  Raises:
    ValueError: names the variable, which is no number.
  """
  asked = env.get(ASKED) or '1'
  if not asked.isdecimal():
    raise ValueError(
      f'{ASKED}={asked!r}: must be a number of devices, such as 2'
    )
  n = int(asked)
  own = _own_devices() > 0 or OWN[1] in env
  if n < 2 or own or OWN[0] in env.get('XLA_FLAGS', ''):
    return
  if run.mesh[:1] == (-1,) and {*run.mesh[1:]} == {1} and _divides(run, n):
    jax.config.update('jax_num_cpu_devices', n)
    _set_patience(env)


def _set_patience(env: MutableMapping[str, str]) -> None:
  """Adds PATIENCE to XLA_FLAGS, unless it is there."""
  (name, seconds), flags = PATIENCE, env.get('XLA_FLAGS', '')
  if jaxlib.__version__.startswith(KNOWN_IN) and name not in flags:
    env['XLA_FLAGS'] = f'{flags} --{name}={seconds}'.strip()


def _own_devices() -> int:
  """Returns jax's setting of the number of devices; -1: none."""
  return jax.config.jax_num_cpu_devices


def _divides(run: Run, n: int) -> bool:
  """Returns whether the rows of all stages divide over n devices."""
  try:
    config_checks.check(run, n)
  except ValueError:
    return False
  return True
