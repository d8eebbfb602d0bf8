"""A workdir has one run at a time, and ended runs block no others."""

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import object_store
import pytest
import tiny_recipe
from etils import epath
from paths import ROOT

from jaxrl_reason.run import train
from jaxrl_reason.run.process import lock

FAST = {'beat_s': 0.05, 'stale_s': 0.6}
CHILD = """
import sys, time
from etils import epath
from jaxrl_reason.run.process import lock
with lock.held(epath.Path(sys.argv[1]), beat_s=0.05):
  print('has it', flush=True)
  time.sleep(100)
"""


def child(folder):
  process = subprocess.Popen(
    [sys.executable, '-c', CHILD, str(folder)],
    stdout=subprocess.PIPE,
    cwd=ROOT,
    env=os.environ | {'PYTHONPATH': str(ROOT)},
    text=True,
  )
  assert process.stdout.readline() == 'has it\n'
  return process


def locks(folder):
  return sorted(p.name for p in folder.glob('lock-*'))


def test_the_second_is_refused_with_the_first_ones_name(tmp_path):
  process = child(tmp_path)
  try:
    begun = time.monotonic()
    with pytest.raises(
      lock.Locked, match=f'in use by process {process.pid} on'
    ):
      with lock.held(epath.Path(tmp_path), **FAST):
        raise AssertionError('two have it')
    assert time.monotonic() - begun < lock.STALE_S / 4
    assert len(locks(tmp_path)) == 1  # the refused one leaves nothing
  finally:
    process.kill()
    process.wait()


def test_a_killed_process_does_not_block_others(tmp_path, capfd):
  process = child(tmp_path)
  process.send_signal(signal.SIGKILL)
  process.wait()
  with lock.held(epath.Path(tmp_path)):
    assert len(locks(tmp_path)) == 1
  assert not locks(tmp_path)
  said = capfd.readouterr().err
  assert f'of process {process.pid} on' in said and 'has ended' in said


def test_a_reused_process_id_is_another_process(tmp_path):
  path = tmp_path / 'lock-x.json'
  other = dataclasses.replace(lock._me(), born='1')
  lock._write(epath.Path(path), lock.Sign(other, 3))
  with lock.held(epath.Path(tmp_path)):
    assert not path.exists()


def elsewhere(path, beat):
  owner = dataclasses.replace(lock._me(), host='far', machine='another')
  # A clock that differs by a day has no effect.
  owner = dataclasses.replace(owner, since=time.time() + 86_400)
  lock._write(epath.Path(path), lock.Sign(owner, beat))


def test_another_machine_is_known_by_its_heartbeat(tmp_path, capfd):
  path = tmp_path / 'lock-far.json'
  elsewhere(path, 0)
  ended = threading.Event()

  def beats():
    beat = 1
    while not ended.wait(0.05):
      elsewhere(path, beat)
      beat += 1

  thread = threading.Thread(target=beats)
  thread.start()
  try:
    with pytest.raises(lock.Locked, match='on far'):
      with lock.held(epath.Path(tmp_path), **FAST):
        raise AssertionError('two have it')
  finally:
    ended.set()
    thread.join()
  with lock.held(epath.Path(tmp_path), **FAST):
    assert not path.exists()
  assert 'no sign of life for 0.6 s' in capfd.readouterr().err


def test_a_run_whose_lock_was_taken_ends(tmp_path):
  lost = threading.Event()
  with lock.held(
    epath.Path(tmp_path), beat_s=0.02, on_lost=lambda path: lost.set()
  ):
    (name,) = locks(tmp_path)
    (tmp_path / name).unlink()
    assert lost.wait(20)
  assert not locks(tmp_path)


@pytest.mark.parametrize('stays', [True, False])
def test_a_run_that_writes_its_removed_lock_anew_ends(
  tmp_path, monkeypatch, stays
):
  """Its write was cut off until another process removed the lock. A process
  that withdraws is no other run.
  """
  other, write, lost = tmp_path / 'lock-far.json', lock._write, []
  later = threading.Event()

  def slow(path, sign):
    if path.name != other.name and sign.beat == 1:
      elsewhere(other, 0)
      path.unlink()
      time.sleep(0.5)
      if not stays:
        threading.Timer(0.1, other.unlink).start()
    write(path, sign)
    if sign.beat == 3:
      later.set()

  def end(path):
    lost.append(path)
    later.set()

  monkeypatch.setattr(lock, '_write', slow)
  with lock.held(epath.Path(tmp_path), beat_s=0.4, stale_s=0.8, on_lost=end):
    assert later.wait(20)
    assert len(lost) == stays
    assert (len(locks(tmp_path)) == 1) and other.exists() == stays


@pytest.mark.parametrize('error', [OSError, RuntimeError])
def test_a_full_disk_does_not_lose_it(tmp_path, monkeypatch, error):
  wrote, write = threading.Event(), lock._write

  def full(path, sign):
    if sign.beat:
      if sign.beat == 2:
        wrote.set()
      raise error(28, 'No space left on device')
    write(path, sign)

  monkeypatch.setattr(lock, '_write', full)
  with lock.held(epath.Path(tmp_path), beat_s=0.02):
    assert wrote.wait(20)
    assert len(locks(tmp_path)) == 1
  assert not locks(tmp_path)


def _race(folder, barrier, gate, results):
  barrier.wait()
  try:
    with lock.held(epath.Path(folder), beat_s=0.2):
      results.put('has it')
      gate.wait(60)
  except lock.Locked:
    results.put('refused')


def test_at_most_one_of_simultaneous_starts_has_the_lock(tmp_path):
  context = multiprocessing.get_context('spawn')
  for round_ in range(2):
    folder = tmp_path / str(round_)
    folder.mkdir()
    barrier, gate = context.Barrier(4), context.Event()
    results = context.Queue()
    args = (folder, barrier, gate, results)
    racers = [context.Process(target=_race, args=args) for _ in range(4)]
    for r in racers:
      r.start()
    said = [results.get(timeout=60) for _ in racers]
    gate.set()
    for r in racers:
      r.join()
    assert said.count('has it') <= 1, said


def test_a_file_that_is_not_a_lock_is_not_removed(tmp_path):
  path = tmp_path / 'lock-notes.json'
  path.write_text('my own')
  with pytest.raises(lock.Locked, match='is no lock of a run'):
    with lock.held(epath.Path(tmp_path), **FAST):
      raise AssertionError('it was taken')
  assert path.read_text() == 'my own'


@pytest.fixture
def bucket(monkeypatch):
  object_store.install(monkeypatch)
  folder = epath.Path(f'gs://bucket/{time.time_ns()}')
  folder.mkdir(parents=True)
  return folder


def test_objects_lock_too(bucket):
  elsewhere(bucket / 'lock-far.json', 4)
  with lock.held(bucket, **FAST):
    (path,) = bucket.glob('lock-*.json')
    assert json.loads(path.read_text())['owner']['pid'] == os.getpid()
    with pytest.raises(lock.Locked, match=f'process {os.getpid()} on'):
      with lock.held(bucket, **FAST):
        raise AssertionError('two have it')
  assert not list(bucket.glob('lock-*.json'))


@pytest.mark.parametrize('exists', [False, True])
def test_a_refused_start_leaves_a_folder_as_it_was(tmp_path, exists):
  c = tiny_recipe.get_config()
  c.rl.update(prompts=8, staleness=2)
  workdir = tmp_path / 'run'
  if exists:
    workdir.mkdir()
  with pytest.raises(ValueError, match='rl.staleness=2 and'):
    train.run(c, workdir)
  assert workdir.exists() == exists and not [*tmp_path.rglob('*/*')]
