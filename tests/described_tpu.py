"""Runs programs that describe a TPU, in processes of their own."""

import os
import subprocess
import sys

import pytest
from paths import ROOT


def printed(code: str) -> str:
  """Returns the output of a program that describes a TPU."""
  pytest.importorskip('libtpu')
  env = os.environ | {
    'JAX_PLATFORMS': 'cpu',
    'TPU_SKIP_MDS_QUERY': '1',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',  # it only compiles
  }
  # The flags of the tests are options of the CPU compiler.
  for name in ('XLA_FLAGS', 'JAX_COMPILATION_CACHE_DIR'):
    env.pop(name)
  done = subprocess.run(
    [sys.executable, '-c', code], env=env, cwd=ROOT, capture_output=True,
    text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr[-3000:]
  return done.stdout
