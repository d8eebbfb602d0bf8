"""Splits the cores of a CPU into devices, each with a share of the rows."""

import os
from collections.abc import Mapping

import jax

from jaxrl_reason.config import Run
from jaxrl_reason.run.checks import config_checks

# Number of devices; `tools/run` sets it to 2 on machines with several cores.
ASKED = 'JAXRL_CPU_DEVICES'
# Settings with which jax or a launcher has its own devices.
OWN = ('xla_force_host_platform_device_count', 'JAX_NUM_PROCESSES')


def split(run: Run, env: Mapping[str, str] = os.environ) -> None:
  """Makes JAXRL_CPU_DEVICES devices of the CPU, if rows divide over them.

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
