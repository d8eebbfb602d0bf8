"""Folders that appear when they are complete, or not at all."""

import os
import socket
import subprocess
import time

import pytest

from jaxrl_reason.checkpoints import files


def test_a_killed_convert_can_be_repeated(tmp_path):
  """The folder appears when it is complete, and remains of a killed convert are
  removed.
  """
  target = tmp_path / 'out'
  process = subprocess.Popen(['true'])
  process.wait()
  name = f'.out.unfinished-{socket.gethostname()}-{process.pid}'
  left = tmp_path / name
  left.mkdir()
  (left / 'model-00001-of-00002.safetensors').write_text('half')
  with files.new_folder('--to', target) as folder:
    assert not list(folder.iterdir()) and not target.exists()
    (folder / 'config.json').write_text('{}')
  assert [p.name for p in target.iterdir()] == ['config.json']
  assert not left.exists()
  with pytest.raises(FileExistsError, match=f'--to={target} is not empty'):
    with files.new_folder('--to', target):
      raise AssertionError('it would be overwritten')
  with pytest.raises(ZeroDivisionError), files.new_folder('--to', left) as new:
    (new / 'a').write_text('b')
    _ = 1 / 0
  assert sorted(p.name for p in tmp_path.iterdir()) == ['out']


@pytest.mark.parametrize(
  'host, age_s, stays',
  [('', 1e6, True), ('far', 60, True), ('far', 1e6, False)],
)
def test_a_convert_that_runs_elsewhere_keeps_its_files(
  tmp_path, host, age_s, stays
):
  """Two commands with one target, or one on each of several hosts."""
  host = host or socket.gethostname()
  other = tmp_path / f'.out.unfinished-{host}-{os.getppid()}'
  other.mkdir()
  (other / 'model.safetensors').write_text('half')
  os.utime(other, (time.time() - age_s,) * 2)
  with files.new_folder('--to', tmp_path / 'out') as folder:
    (folder / 'config.json').write_text('{}')
  assert [p.name for p in (tmp_path / 'out').iterdir()] == ['config.json']
  assert other.exists() == stays


def test_two_converts_to_one_target_mix_no_files(tmp_path, monkeypatch):
  target = tmp_path / 'out'
  with pytest.raises(OSError), files.new_folder('--to', target) as first:
    (first / 'a').write_text('')
    monkeypatch.setattr(socket, 'gethostname', lambda: 'far')
    with files.new_folder('--to', target) as second:
      (second / 'b').write_text('')
    assert (first / 'a').exists()
  assert [p.name for p in target.iterdir()] == ['b']
  assert [p.name for p in tmp_path.iterdir()] == ['out']
