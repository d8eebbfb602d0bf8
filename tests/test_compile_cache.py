"""Processes of tests share compiled programs by a cache."""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
from paths import ROOT

HITS = """
import jax
from jax import monitoring
events = []
monitoring.register_event_listener(lambda event, **_: events.append(event))
jax.jit(lambda x: (x @ x).sum()).lower(jax.numpy.ones((7, 7))).compile()
print(sum(e.endswith('/cache_hits') for e in events))
"""


def test_processes_share_compiled_programs():
  compiled = [
    int(subprocess.check_output([sys.executable, '-c', HITS])) for _ in range(2)
  ]
  assert compiled[0] < compiled[1]


def test_compiled_programs_are_cached():
  folder = pathlib.Path(os.environ['JAX_COMPILATION_CACHE_DIR'])
  before = set(folder.iterdir())
  jax.jit(lambda x: x * 17 + 3)(np.ones(1234, np.float32))
  here = jax.config.jax_compilation_cache_dir
  assert pathlib.Path(here) == folder
  assert set(folder.iterdir()) > before


def test_a_named_folder_keeps_programs_for_the_next_run(tmp_path):
  kept = tmp_path / 'programs'
  env = os.environ | {'JAXRL_TEST_PROGRAMS': str(kept)}
  env.pop('PYTEST_XDIST_WORKER', None)  # the process is no worker
  test = f'{__file__}::{test_compiled_programs_are_cached.__name__}'
  command = [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', test]
  subprocess.run(command, env=env, cwd=ROOT, check=True)
  assert list(kept.iterdir())
