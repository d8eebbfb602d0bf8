"""Weights of another run are read into the shards of the target mesh."""

import json
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
from small import small_model

from jaxrl_reason import sharding, trees
from jaxrl_reason.checkpoints import conversion, manager, other_run
from jaxrl_reason.models import adapters, families, spec
from jaxrl_reason.models.adapters import lora

SHAPES = {'embed': (8, 4), 'layers/w': (4, 8), 'scale': ()}


def params_on(mesh) -> dict:
  """Returns parameters that differ in every element, on all devices."""
  specs = {'embed': P('fsdp'), 'layers/w': P(None, 'fsdp'), 'scale': P()}
  out = {}
  for i, (path, shape) in enumerate(SHAPES.items()):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + i
    where = NamedSharding(mesh, specs[path])
    out[path] = jax.make_array_from_callback(shape, where, values.__getitem__)
  return trees.unflatten(out)


def save(workdir, params, step) -> None:
  checkpoints = manager.Checkpoints(epath.Path(workdir), keep=1)
  checkpoints.save(3, {'params': params, 'step': step}, {})
  checkpoints.wait()
  checkpoints.close()


def read_back(workdir) -> None:
  """Saves and reads both ways; every shard has its own values."""
  mesh = jax.make_mesh((jax.device_count(),), ('fsdp',))
  params = params_on(mesh)
  save(workdir, params, params['scale'])
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


@pytest.mark.parametrize('adapted', [False, True])
def test_no_device_of_an_evaluation_receives_a_whole_matrix(
  tmp_path, adapted, monkeypatch
):
  """`evaluate` reads a run over all chips, adapters merged there."""
  config, model, params = small_model(bias=False)
  if adapted:
    of_run = dict(rank=2, alpha=4.0)
    settings = lora.Lora(**of_run)
    specs = adapters.attach(model, lora=settings).specs
    added = spec.init(specs, jax.random.key(2))[lora.KEY]
    params |= {lora.KEY: jax.tree.map(lambda x: x + 0.1, added)}
    text = json.dumps({'lora': of_run, 'rl': {}})
    (tmp_path / 'config.json').write_text(text)
  save(tmp_path, params, params['final_norm'])
  h = json.dumps(families.to_hf(config, 64))
  (tmp_path / conversion.HF_CONFIG).write_text(h)
  mesh = sharding.make_mesh((1, 8, 1))
  put, sizes = jax.device_put, []

  def noted(x, *args, **kwargs):
    sizes.append(np.size(x))
    return put(x, *args, **kwargs)

  monkeypatch.setattr(jax, 'device_put', noted)
  _, _, got = conversion.read_run(epath.Path(tmp_path), None, mesh)
  want = lora.merged(params, settings.scale) if adapted else params
  where = sharding.shardings(model.specs, mesh, sharding.TRAIN_RULES)
  assert trees.flatten(got).keys() == trees.flatten(where).keys()
  for path, x in trees.flatten(got).items():
    np.testing.assert_allclose(
      x, trees.flatten(want)[path], rtol=1e-6, atol=1e-6
    )
    assert x.sharding == trees.flatten(where)[path], path
  # A matrix of all layers has 3 x 16 x 16 elements, an adapter 3 x 32 x 2.
  assert 0 < max(sizes) <= 3 * 32 * 2


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
  params = params_on(jax.make_mesh((8,), ('fsdp',)))
  save(tmp_path, params, params['scale'])
  with pytest.raises(ValueError, match=r'no checkpoint of step 4: \[3\]'):
    other_run.Weights(tmp_path, 4)


def test_the_step_is_after_the_last_at_sign(tmp_path):
  workdir = tmp_path / 'run@home'
  read_back(workdir)
  params = params_on(jax.make_mesh((8,), ('fsdp',)))
  where = jax.tree.map(lambda x: x.sharding, params)
  newest = other_run.read(str(workdir), params, params, where)
  assert trees.flatten(newest).keys() == SHAPES.keys()
  with pytest.raises(ValueError, match="init_from='.*@last': the step 'last'"):
    other_run.read(f'{workdir}@last', params, params, where)
  with pytest.raises(ValueError, match='there@a is no workdir of a run'):
    other_run.read('there@a', params, params, where)
