"""Eight virtual CPU devices for every test, and programs that compile fast and
run slowly (tests of small shapes spend their time in the compiler: 105 s become
29); set before jax is imported.
"""

import gc
import os
import pathlib
import shutil
import tempfile

os.environ['XLA_FLAGS'] = (
  os.environ.get('XLA_FLAGS', '')
  + ' --xla_force_host_platform_device_count=8'
  + ' --xla_backend_optimization_level=0'
  + ' --xla_cpu_use_fusion_emitters=false'
  + ' --xla_cpu_parallel_codegen_split_count=1'
)
os.environ['JAX_PLATFORMS'] = 'cpu'
# Made by the process that starts the workers; they and the tests' own processes
# inherit it, and what one has compiled the others read: also the many programs
# of one operation (8.2 s of CPU time of a first rollout become 3.7).
os.environ['JAX_COMPILATION_CACHE_DIR'] = (
  os.environ['JAX_COMPILATION_CACHE_DIR']
  if 'PYTEST_XDIST_WORKER' in os.environ
  else tempfile.mkdtemp(prefix='programs-')
)
os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'

# Processes that tests start import what lies beside the recipes given to them.
os.environ['PYTHONPATH'] = os.pathsep.join(
  filter(None, [os.path.dirname(__file__), os.environ.get('PYTHONPATH')])
)

import pytest
from small import small_model

# Tracing makes objects by the million; to look through all of them so often is
# 6 % of a test's time.
gc.set_threshold(100_000, 20, 20)


def pytest_unconfigure(config):
  """Removes the compiled programs, after the last worker has ended."""
  if not hasattr(config, 'workerinput'):
    shutil.rmtree(os.environ['JAX_COMPILATION_CACHE_DIR'], ignore_errors=True)


# Longest first, a minute or more of CPU time each, so that the last file of a
# run is a short one and no worker waits long for the other.
LONGEST = (
  'run/test_hosts.py',
  'run/test_resume.py',
  'run/test_refill_runs.py',
  'run/test_pool_runs.py',
  'run/test_turn_runs.py',
  'run/test_faults.py',
  'test_colabs.py',
  'update/test_step.py',
  'update/test_algorithms.py',
  'run/test_notice.py',
  'test_sharding.py',
  'reports/test_report.py',
  'tpu/test_plan.py',
  'run/test_rollout.py',
  'run/test_recipes.py',
  'run/test_pretrained.py',
  'run/test_rollout_files.py',
  'update/test_moe_training.py',
  'rewards/test_code_hostile.py',
  'rewards/test_judge.py',
  'rollouts/test_sampler.py',
)


def pytest_collection_modifyitems(items):
  """Orders files by LONGEST; the tests of a file keep their order."""
  here = pathlib.Path(__file__).parent
  place = {here / name: i for i, name in enumerate(LONGEST)}
  items.sort(key=lambda item: place.get(item.path, len(place)))


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
