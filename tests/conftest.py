"""Eight virtual CPU devices for every test, and programs that compile fast and
run slowly (tests of small shapes spend their time in the compiler: 105 s become
29); set before jax is imported.
"""

import gc
import os

os.environ['XLA_FLAGS'] = (
  os.environ.get('XLA_FLAGS', '')
  + ' --xla_force_host_platform_device_count=8'
  + ' --xla_backend_optimization_level=0'
  + ' --xla_cpu_use_fusion_emitters=false'
)
os.environ['JAX_PLATFORMS'] = 'cpu'

import pytest
from small import small_model


@pytest.fixture(scope='session')
def tiny():
  return small_model()


@pytest.fixture(scope='module')
def small_heap():
  """For code whose time is bounded: it does not pay for a collection among the
  gigabytes that other tests have left.
  """
  gc.freeze()
  yield
  gc.unfreeze()
