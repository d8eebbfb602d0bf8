"""Runs programs that describe a TPU, in processes of their own."""

import json
import os
import subprocess
import sys

import pytest
from paths import ROOT

# Variables that conftest.py sets. The command `plan` needs none of them.
OURS = ('XLA_FLAGS', 'JAX_PLATFORMS', 'JAX_COMPILATION_CACHE_DIR')
GSM8K = 'grpo_gsm8k.py:qwen3_1p7b'


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


def planned(tmp_path, recipe, topology, *flags, ok=True):
  """Returns the facts of a plan, or with ok=False the printed text."""
  out = tmp_path / 'plan.json'
  env = {k: v for k, v in os.environ.items() if k not in OURS}
  path = os.pathsep.join([str(ROOT), env.get('PYTHONPATH', '')])
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'jaxrl_reason', 'plan', '--nolargest'),
      f'--config={ROOT / "configs" / recipe}',
      f'--topology={topology}',
      f'--json={out}',
      *flags,
    ],
    env=env | {'PYTHONPATH': path},
    capture_output=True,
    text=True,
  )
  assert (done.returncode == 0) is ok, done.stderr[-3000:]
  if ok:
    return json.loads(out.read_text())
  return done.stderr + done.stdout
