"""Checkpoints: errors of the writer thread are reported, and nothing is
lost.
"""

import json
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from jaxrl_reason import hosts, sharding
from jaxrl_reason.checkpoints import files, manager, other_run, sums
from jaxrl_reason.checkpoints import origin as origin_lib

FULL = 'RESOURCE_EXHAUSTED: Error writing "x": No space left on device'


def test_a_full_disk_error_names_the_kept_checkpoint(tmp_path, monkeypatch):
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


def test_other_errors_are_raised_unchanged(tmp_path, monkeypatch):
  checkpoints = manager.Checkpoints(epath.Path(tmp_path), keep=2)

  def fail():
    raise ValueError('a bug')

  monkeypatch.setattr(checkpoints._manager, 'wait_until_finished', fail)
  with pytest.raises(ValueError, match='a bug'):
    checkpoints.wait()


def test_the_newest_and_the_ends_of_stages_are_kept(tmp_path):
  for first in (0, 4):  # the second time from the same folder
    checkpoints = manager.Checkpoints(epath.Path(tmp_path), keep=2)
    checkpoints.latest(lambda step, record, restore: record)
    for step in range(first, first + 4):
      record = {'finished': step == 1}
      checkpoints.save(step, {'w': jnp.ones(3)}, record)
    checkpoints.wait()
    assert checkpoints.steps() == [1, first + 2, first + 3]
    checkpoints.close()


def test_offloaded_arrays_are_restored_to_the_host(tmp_path):
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


def test_a_relative_folder_works(tmp_path, monkeypatch):
  """Orbax accepts only absolute paths: a save would fail in its thread."""
  monkeypatch.chdir(tmp_path)
  checkpoints, read = saved('run', 3)
  assert checkpoints.latest(read) == (3, (3.0, 3.0))
  checkpoints.close()
  monkeypatch.chdir('/')
  checkpoints, read = saved(tmp_path / 'run')
  assert checkpoints.steps() == [3]
  checkpoints.close()


@pytest.fixture
def quick(monkeypatch):
  """Removes the waits between retries."""
  monkeypatch.setattr(files, 'WAITS_S', (0.0, 0.0))


def saved(tmp_path, *steps, origin=None):
  """Returns (checkpoints of one workdir, function that reads one of them)."""
  checkpoints = manager.Checkpoints(
    epath.Path(tmp_path), keep=len(steps), origin=origin
  )
  for step in steps:
    state = {'a': jnp.full((50, 40), float(step)), 'b': jnp.arange(3)}
    checkpoints.save(step, state, {'done': step})
  checkpoints.wait()
  one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  template = jax.eval_shape(
    lambda: {'a': jnp.zeros((50, 40)), 'b': jnp.arange(3)}
  )

  def read(step, record, restore):
    state = restore(template, {'a': one, 'b': one})
    assert record['done'] == step
    return float(state['a'].min()), float(state['a'].max())

  return checkpoints, read


def all_files(folder):
  return sorted(p for p in folder.rglob('*') if p.is_file())


def test_no_flipped_bit_is_read(tmp_path, quick):
  checkpoints, read = saved(tmp_path / 'w', 3, 6)
  folder = tmp_path / 'w' / 'checkpoints'
  rng, seen = random.Random(0), 0
  paths = all_files(folder / '6')
  for path in paths * max(1, 120 // len(paths)):
    data = path.read_bytes()
    if not data:
      continue
    at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
    path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
    step, state = checkpoints.latest(read)
    if (folder / 'damaged-6').exists():
      assert (step, state) == (3, (3.0, 3.0)), path
      (folder / 'damaged-6').rename(folder / '6')
      checkpoints._manager.reload()
      seen += 1
    else:
      # Files of orbax without data.
      assert (step, state) == (6, (6.0, 6.0)), path
      assert path.name in ('commit_success.txt', '_CHECKPOINT_METADATA'), path
    path.write_bytes(data)
  assert seen > 60
  assert checkpoints.latest(read) == (6, (6.0, 6.0))


def test_without_verify_damage_is_found_if_reading_fails(tmp_path, quick):
  checkpoints, read = saved(tmp_path, 3, 6)
  checkpoints._verify = False
  for path in all_files(tmp_path / 'checkpoints' / '6' / 'state' / 'd'):
    path.write_bytes(path.read_bytes()[::-1])  # the same size
  assert checkpoints.latest(read) == (3, (3.0, 3.0))
  assert (tmp_path / 'checkpoints' / 'damaged-6').exists()


@pytest.mark.parametrize(
  'error', [OSError(116, 'Stale file handle'), MemoryError('none left')]
)
@pytest.mark.parametrize('times', [1, 2])
def test_temporary_errors_are_retried(
  tmp_path, quick, monkeypatch, error, times
):
  checkpoints, read = saved(tmp_path, 3, 6)
  left, of_file = [times], sums.of_file

  def failing(path):
    if left[0]:
      left[0] -= 1
      raise error
    return of_file(path)

  monkeypatch.setattr(sums, 'of_file', failing)
  monkeypatch.setattr(sums, 'THREADS', 1)
  assert checkpoints.latest(read) == (6, (6.0, 6.0)) and left == [0]


def test_an_unreadable_checkpoint_is_not_damaged(tmp_path, quick, monkeypatch):
  checkpoints, read = saved(tmp_path, 3, 6)
  before = all_files(tmp_path)

  def failing(*args, **kwargs):
    raise OSError(116, 'Stale file handle')

  with monkeypatch.context() as m:
    m.setattr(sums, 'of_file', failing)
    with pytest.raises(manager.Unreadable, match=r'/6.*Stale.*Nothing was cha'):
      checkpoints.latest(read)
  with monkeypatch.context() as m:
    m.setattr(sums.Handler, 'restore', failing)
    with pytest.raises(manager.Unreadable, match=r'/6.*Stale.*Nothing was cha'):
      checkpoints.latest(read)
  assert all_files(tmp_path) == before
  assert checkpoints.latest(read) == (6, (6.0, 6.0))


@pytest.mark.parametrize('kind', [ValueError, KeyError, RuntimeError, OSError])
def test_an_error_of_the_reader_moves_nothing(tmp_path, kind):
  """A mesh that does not divide the heads, or a bug, is not damage."""
  checkpoints, _ = saved(tmp_path, 3, 6)
  before = all_files(tmp_path)

  def refuse(step, record, restore):
    raise kind('heads 2 do not divide over tensor 3')

  with pytest.raises(kind, match='heads'):
    checkpoints.latest(refuse)
  assert all_files(tmp_path) == before


def test_a_run_never_starts_over_by_itself(tmp_path, quick):
  checkpoints, read = saved(tmp_path, 3, 6)
  folder = tmp_path / 'checkpoints'
  for step in (3, 6):
    (folder / str(step) / 'record' / 'metadata').write_text('{}')
  with pytest.raises(
    manager.NothingLeft, match='damaged-3, damaged-6.*--fresh'
  ):
    checkpoints.latest(read)
  shutil.rmtree(folder)  # by hand
  again = manager.Checkpoints(epath.Path(tmp_path), keep=2)
  with pytest.raises(manager.NothingLeft, match='"newest": 6.*--fresh'):
    again.latest(read)


def test_processes_that_list_other_checkpoints_read_none(tmp_path, monkeypatch):
  """A file system may cache the list of a folder on one of the hosts."""
  checkpoints, read = saved(tmp_path, 5, 10)
  monkeypatch.setattr(hosts, 'gather', lambda own: [own, [5]])
  with pytest.raises(manager.Unreadable, match=r'process 1 lists \[5\], and'):
    checkpoints.latest(read)
  assert checkpoints.steps() == [5, 10]


def test_an_empty_workdir_begins(tmp_path):
  checkpoints, read = saved(tmp_path)
  assert checkpoints.latest(read) is None


ORIGIN = {
  'data': {'train': 'a', 'heldout': 'b'},
  'tokenizer': 'c',
  'stages': ['sft', 'rl'],
  'code': '1+d',
}


@pytest.mark.parametrize(
  'change, words',
  [
    ({'data': {'train': 'x', 'heldout': 'b'}}, r'other data \(train\).*seed'),
    ({'tokenizer': 'x'}, 'other tokenizer'),
    ({'stages': ['pretrain', 'rl']}, r"stage 1 of \('sft', 'rl'\)"),
    ({'stages': []}, 'stands in stage 1 of its run'),
  ],
)
def test_another_run_is_refused(tmp_path, change, words):
  saved(tmp_path, 3, origin=ORIGIN)[0].close()
  other, read = saved(tmp_path, origin=ORIGIN | change)
  with pytest.raises(origin_lib.Other, match=words):
    other.latest(read)
  assert other.steps() == [3]


def test_other_code_and_later_stages_are_accepted(tmp_path, caplog):
  saved(tmp_path, 3, origin=ORIGIN)[0].close()
  change = {'stages': ['sft', 'pretrain'], 'code': '2+e'}
  other, read = saved(tmp_path, origin=ORIGIN | change)
  assert other.latest(read) == (3, (3.0, 3.0))
  assert 'was saved by jaxrl_reason 1+d; this is 2+e' in caplog.text
  data = {'data': {'train': 'x', 'heldout': 'b'}}
  other._origin, other._same_data = ORIGIN | data, False
  assert other.latest(read) == (3, (3.0, 3.0))
  assert 'other data (train); going on' in caplog.text


def test_checkpoints_without_checksums_are_read(tmp_path, quick):
  checkpoints, read = saved(tmp_path, 3)
  (tmp_path / 'checkpoints' / '3' / 'state' / sums.NAME).unlink()
  path = tmp_path / 'checkpoints' / '3' / 'record' / 'metadata'
  record = json.loads(path.read_text())
  del record['sum'], record['origin']
  path.write_text(json.dumps(record))
  assert checkpoints.latest(read) == (3, (3.0, 3.0))


def test_generate_and_convert_do_not_read_damage(tmp_path):
  checkpoints, _ = saved(tmp_path, 6)
  checkpoints.close()
  path = all_files(tmp_path / 'checkpoints' / '6' / 'state' / 'd')[0]
  path.write_bytes(path.read_bytes()[::-1])
  with pytest.raises(
    manager.Damaged, match='checkpoints/6 is damaged: state/d'
  ):
    other_run.read_params(epath.Path(tmp_path))
