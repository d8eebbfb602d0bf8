"""Quick compilation for the tests of this folder."""

import jax
import pytest


@pytest.fixture(autouse=True, scope='module')
def compile_quickly():
  """Disables optimizations, because hundreds of small programs run only
  once.
  """
  before = jax.config.read('jax_disable_most_optimizations')
  jax.config.update('jax_disable_most_optimizations', True)
  yield
  jax.config.update('jax_disable_most_optimizations', before)
