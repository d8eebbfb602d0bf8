"""Eight virtual CPU devices for every test, set before jax is imported."""

import os

os.environ['XLA_FLAGS'] = (
  os.environ.get('XLA_FLAGS', '') + ' --xla_force_host_platform_device_count=8'
)
os.environ['JAX_PLATFORMS'] = 'cpu'

import pytest
from small import small_model


@pytest.fixture(scope='session')
def tiny():
  return small_model()
