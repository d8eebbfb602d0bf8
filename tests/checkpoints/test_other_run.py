"""Weights of another run are read into the shards of the target mesh."""

import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from paths import ROOT

from jaxrl_reason import trees
from jaxrl_reason.checkpoints import manager, other_run

SHAPES = {'embed': (8, 4), 'layers/w': (4, 8), 'scale': ()}


def params_on(mesh) -> dict:
  """Parameters that differ in every element, sharded over all devices."""
  specs = {'embed': P('fsdp'), 'layers/w': P(None, 'fsdp'), 'scale': P()}
  out = {}
  for i, (path, shape) in enumerate(SHAPES.items()):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + i
    where = NamedSharding(mesh, specs[path])
    out[path] = jax.make_array_from_callback(shape, where, values.__getitem__)
  return trees.unflatten(out)


def save(workdir, params) -> None:
  checkpoints = manager.Checkpoints(epath.Path(workdir), keep=1)
  checkpoints.save(3, {'params': params, 'step': params['scale']}, {})
  checkpoints.wait()
  checkpoints.close()


def read_back(workdir) -> None:
  """Saves and reads both ways; every shard has its own values."""
  mesh = jax.make_mesh((jax.device_count(),), ('fsdp',))
  params = params_on(mesh)
  save(workdir, params)
  where = jax.tree.map(lambda x: x.sharding, params)
  for got in (
    other_run.read(f'{workdir}@3', params, params, where),
    other_run.read_stage(epath.Path(workdir), 3, where),
  ):
    assert trees.flatten(got).keys() == SHAPES.keys()
    for path, x in trees.flatten(got).items():
      want = trees.flatten(params)[path]
      assert x.sharding == want.sharding, path
      for mine, its in zip(x.addressable_shards, want.addressable_shards):
        np.testing.assert_array_equal(mine.data, its.data, err_msg=path)


def test_no_device_receives_a_whole_array(tmp_path, monkeypatch):
  put, sizes = jax.device_put, []

  def noted(x, *args, **kwargs):
    sizes.append(np.size(x))
    return put(x, *args, **kwargs)

  monkeypatch.setattr(jax, 'device_put', noted)
  read_back(tmp_path / 'w')
  assert max(sizes) == 4  # 32 elements over eight devices


def test_two_processes_read_weights_of_another_run(tmp_path):
  with socket.socket() as s:
    s.bind(('localhost', 0))
    address = f'localhost:{s.getsockname()[1]}'
  flags = os.environ['XLA_FLAGS'].replace('device_count=8', 'device_count=1')
  here = ROOT / 'tests'
  path = os.pathsep.join(map(str, (ROOT, here, here / 'checkpoints')))
  code = f"""
import sys
from jaxrl_reason import hosts
import test_other_run
hosts.join({address!r}, 2, int(sys.argv[1]))
test_other_run.read_back({str(tmp_path / 'w')!r})
"""
  processes = [
    subprocess.Popen(
      [sys.executable, '-c', code, str(i)],
      env=os.environ | {'XLA_FLAGS': flags, 'PYTHONPATH': path},
      stderr=subprocess.PIPE,
      text=True,
    )
    for i in range(2)
  ]
  for p in processes:
    _, err = p.communicate(timeout=120)
    assert p.returncode == 0, err[-3000:]


def test_a_checkpoint_that_does_not_exist_is_named(tmp_path):
  save(tmp_path, params_on(jax.make_mesh((8,), ('fsdp',))))
  with pytest.raises(ValueError, match=r'no checkpoint of step 4: \[3\]'):
    other_run.Weights(tmp_path, 4)
