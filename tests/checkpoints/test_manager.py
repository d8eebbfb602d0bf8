"""Checkpoints: what goes wrong in the writer thread is said, nothing lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from jaxrl_reason import sharding
from jaxrl_reason.checkpoints import manager

FULL = 'RESOURCE_EXHAUSTED: Error writing "x": No space left on device'


def test_a_full_disk_names_what_is_kept(tmp_path, monkeypatch):
  checkpoints = manager.Checkpoints(epath.Path(tmp_path), keep=2)
  checkpoints.save(5, {'w': jnp.ones(3)}, {'done': 5})
  checkpoints.wait()

  def fail(*args, **kwargs):
    raise ValueError(FULL)

  monkeypatch.setattr(checkpoints._manager, 'save', fail)
  with pytest.raises(OSError, match=r'no space left\. Kept: 5\. Make room'):
    checkpoints.save(10, {'w': jnp.ones(3)}, {'done': 10})
  assert checkpoints.record(5)['done'] == 5
  checkpoints.close()


def test_other_errors_stay_what_they_are(tmp_path, monkeypatch):
  checkpoints = manager.Checkpoints(epath.Path(tmp_path), keep=2)

  def fail():
    raise ValueError('a bug')

  monkeypatch.setattr(checkpoints._manager, 'wait_until_finished', fail)
  with pytest.raises(ValueError, match='a bug'):
    checkpoints.wait()


def test_the_newest_and_the_ends_of_stages_are_kept(tmp_path):
  for first in (0, 4):  # the second time from the same folder
    checkpoints = manager.Checkpoints(epath.Path(tmp_path), keep=2)
    checkpoints.latest(lambda step, record: record)
    for step in range(first, first + 4):
      record = {'finished': step == 1}
      checkpoints.save(step, {'w': jnp.ones(3)}, record)
    checkpoints.wait()
    assert checkpoints.steps() == [1, first + 2, first + 3]
    checkpoints.close()


def test_what_is_offloaded_comes_back_to_the_host(tmp_path):
  mesh = sharding.make_mesh((-1, 1, 1))
  where = sharding.row_sharding(mesh).with_memory_kind('pinned_host')
  state = {'w': jax.device_put(jnp.arange(16.0), where)}
  checkpoints = manager.Checkpoints(epath.Path(tmp_path), keep=2)
  checkpoints.save(5, state, {'done': 5})
  checkpoints.wait()
  template = jax.eval_shape(lambda: {'w': jnp.zeros(16)})
  record = checkpoints.record(5)
  got = checkpoints.restore(5, record, template, {'w': where})['w']
  np.testing.assert_array_equal(got, state['w'])
  assert got.sharding.memory_kind == 'pinned_host'
  checkpoints.close()
