"""The programs that tests share: what one has compiled the others read."""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

HITS = """
import jax
from jax import monitoring
events = []
monitoring.register_event_listener(lambda event, **_: events.append(event))
jax.jit(lambda x: (x @ x).sum()).lower(jax.numpy.ones((7, 7))).compile()
print(sum(e.endswith('/cache_hits') for e in events))
"""


def test_another_process_reads_what_one_has_compiled():
  env = os.environ | {'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'}
  compiled = [
    int(subprocess.check_output([sys.executable, '-c', HITS], env=env))
    for _ in range(2)
  ]
  assert compiled[0] < compiled[1]


@pytest.fixture
def keep_everything():
  name = 'jax_persistent_cache_min_compile_time_secs'
  before = getattr(jax.config, name)
  jax.config.update(name, 0)
  yield
  jax.config.update(name, before)


def test_what_this_process_compiles_is_kept(keep_everything):
  folder = pathlib.Path(os.environ['JAX_COMPILATION_CACHE_DIR'])
  jax.jit(lambda x: x * 17 + 3)(np.ones(1234, np.float32))
  here = jax.config.jax_compilation_cache_dir
  assert pathlib.Path(here) == folder
  assert any(path.stat().st_size for path in folder.iterdir())
