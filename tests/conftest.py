"""Settings that every test shares.

Programs compile fast and run slowly, because tests of small shapes spend their
time in the compiler (105 s become 29). Each process has eight virtual CPU
devices; a mesh whose size is left open takes one of them in files that are
marked `one_device`. XLA reads these settings when jax is imported.
"""

import gc
import math
import os
import pathlib
import shutil
import tempfile
import types

os.environ['XLA_FLAGS'] = (
  os.environ.get('XLA_FLAGS', '')
  + ' --xla_force_host_platform_device_count=8'
  + ' --xla_backend_optimization_level=0'
  + ' --xla_cpu_use_fusion_emitters=false'
  + ' --xla_cpu_parallel_codegen_split_count=1'
)
os.environ['JAX_PLATFORMS'] = 'cpu'
# The process that starts the workers makes this folder. Workers, and processes
# that tests start, inherit it and read the programs that another has compiled,
# programs of one operation too (8.2 s of CPU time of a first rollout become
# 3.7). The folder in JAXRL_TEST_PROGRAMS is kept for the next run of tests.
os.environ['JAX_COMPILATION_CACHE_DIR'] = (
  os.environ['JAX_COMPILATION_CACHE_DIR']
  if 'PYTEST_XDIST_WORKER' in os.environ
  else os.path.abspath(
    os.environ.get('JAXRL_TEST_PROGRAMS')
    or tempfile.mkdtemp(prefix='programs-')
  )
)
os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'

# Processes that tests start import the recipes of this folder by name.
os.environ['PYTHONPATH'] = os.pathsep.join(
  filter(None, [os.path.dirname(__file__), os.environ.get('PYTHONPATH')])
)

import jax
import pytest
from absl import logging
from small import small_model

from jaxrl_reason import sharding
from jaxrl_reason.run.process import memory_maps

# Tracing makes objects by the million. With Python's default thresholds, the
# garbage collector takes 6 % of a test's time.
gc.set_threshold(100_000, 20, 20)


def pytest_configure():
  """Creates the folder of compiled programs if it is named and new."""
  os.makedirs(os.environ['JAX_COMPILATION_CACHE_DIR'], exist_ok=True)


def pytest_unconfigure(config):
  """Removes the compiled programs after the last worker has ended, unless their
  folder is named.
  """
  named = os.environ.get('JAXRL_TEST_PROGRAMS')
  if not hasattr(config, 'workerinput') and not named:
    shutil.rmtree(os.environ['JAX_COMPILATION_CACHE_DIR'], ignore_errors=True)


# Files of a minute or more run first, the longest of a measured run at the top.
# The last file is then short, so no worker waits long for the other.
LONGEST = (
  'tpu/test_plan.py',  # most of the second part of .ci/run
  'run/test_hosts.py',
  'run/test_refill_runs.py',
  'run/test_resume.py',
  'run/test_recipes.py',
  'models/test_family_combinations.py',
  'run/test_pool_runs.py',
  'models/test_windows.py',
  'update/test_algorithms.py',
  'run/test_faults.py',
  'run/test_teacher_runs.py',
  'rollouts/test_episode_tree.py',
  'update/test_teacher.py',
  'run/test_role_runs.py',
  'run/test_study_columns.py',
  'run/test_two_meshes.py',
  'run/test_reference_runs.py',
  'models/test_exact.py',
  'run/test_episode_tree_runs.py',
  'run/test_stage_lists.py',
  'run/test_round_runs.py',
  'test_colabs.py',
  'run/test_tree_runs.py',
  'run/test_supervised_runs.py',
  'run/test_game_runs.py',
  'update/test_step.py',
  'run/test_killed_modes.py',
  'rollouts/test_slots.py',
  'run/test_turn_runs.py',
  'test_sharding.py',
  'run/test_study.py',
  'run/test_alike_runs.py',
  'rollouts/test_turns.py',
  'test_benchmarks.py',
  'rollouts/test_in_flight.py',
  'commands/test_evaluate.py',
  'update/test_shared.py',
  'test_docs.py',
  'data/test_controllers.py',
  'rollouts/test_hidden_states.py',
  'run/test_reward_model_runs.py',
  'rollouts/test_tree.py',
  'run/test_rollout_files.py',
  'rollouts/test_refill.py',
  'rollouts/test_hosted.py',
  'losses/test_objective.py',
  'rollouts/test_chunks.py',
  'models/test_delta_models.py',
  'rollouts/test_sampler.py',
  'run/test_preference_runs.py',
  'run/test_emergency_runs.py',
  'update/test_packing.py',
  'update/test_moe_training.py',
  'reports/test_report.py',
  'run/test_pretrained.py',
)


def pytest_collection_modifyitems(items):
  """Orders files by LONGEST; the tests of a file keep their order."""
  here = pathlib.Path(__file__).parent
  place = {here / name: i for i, name in enumerate(LONGEST)}
  items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(scope='module', autouse=True)
def mesh_devices(request):
  """Replaces -1 in a mesh by 1 in files that are marked `one_device`.

  Partitioning a run over eight devices takes a fifth more CPU time than
  compiling it for one.
  """
  if not request.node.get_closest_marker('one_device'):
    yield
    return
  make_mesh = sharding.make_mesh

  def smallest(shape=(-1, 1, 1), devices=None):
    if devices is None and -1 in shape:
      devices = jax.devices()[: abs(math.prod(shape))]
    return make_mesh(shape, devices)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sharding, 'make_mesh', smallest)
    yield


@pytest.fixture(scope='module', autouse=True)
def few_programs():
  """Frees compiled programs after a file, if they have many memory maps."""
  yield
  memory_maps.free_programs()


@pytest.fixture(scope='session', autouse=True)
def no_curves():
  """Disables curves.png for runs in this process, because it takes a second of
  CPU time. Runs in processes of their own draw it (test_resume.py).
  """
  undrawn = types.SimpleNamespace(save=lambda workdir: 'not drawn')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr('jaxrl_reason.run.train.plots', undrawn)
    yield


@pytest.fixture(autouse=True)
def no_mesh():
  """Requires that a test leaves no mesh set for the tests after it."""
  yield
  assert jax.sharding.get_abstract_mesh().empty


@pytest.fixture(autouse=True)
def log_level():
  """Sets the level that a run starts with: commands change the process's."""
  logging.set_verbosity(logging.WARNING)


@pytest.fixture(scope='session')
def tiny():
  return small_model()
