"""Tests of the room without jax: `tools/test verifiers` runs them alone.

They then run without tests/conftest.py, in processes in which importing jax is
an error. No test here may need jax, except one that is marked slow.
"""

import gc
import os
import pathlib
import sys

import pytest

TESTS = str(pathlib.Path(__file__).resolve().parents[1])
if os.environ.get('JAXRL_TEST_WITHOUT_JAX'):
  sys.modules['jax'] = None  # `import jax` raises ModuleNotFoundError
if TESTS not in sys.path:
  sys.path.append(TESTS)


@pytest.fixture(scope='module')
def small_heap():
  """Keeps garbage collections short, for tests with time limits.

  Other tests leave gigabytes of objects, which a collection would visit.
  """
  gc.freeze()
  yield
  gc.unfreeze()
