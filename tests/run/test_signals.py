"""Signals and lost readers of output in one process, without a run."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
import tiny_recipe
from paths import ROOT
from waiting import eventually

from jaxrl_reason import command, evaluate, main, study
from jaxrl_reason.hosts import last_words
from jaxrl_reason.run import train
from jaxrl_reason.run.process import reader_gone, signals
from jaxrl_reason.verifiers.pool import PoolError


@pytest.mark.parametrize('signum', signals.SIGNALS)
def test_a_signal_stops_at_the_next_point_and_its_repetition_does_nothing(
  signum,
):
  with signals.Stopping() as stopping:
    assert not stopping.reached()
    for _ in range(3):  # as `timeout` and systemd send it
      os.kill(os.getpid(), signum)
    assert stopping.reached() and stopping.agreed
  assert signal.getsignal(signum) != stopping._request


def test_only_a_later_ctrl_c_stops_at_once(monkeypatch):
  with signals.Stopping() as stopping:
    os.kill(os.getpid(), signal.SIGTERM)
    monkeypatch.setattr(signals, 'AGAIN_S', 0)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGHUP)
    assert stopping.reached()
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
      time.sleep(1)


def test_nohup_is_respected():
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with signals.Stopping() as stopping:
      os.kill(os.getpid(), signal.SIGHUP)
      assert not stopping.reached()
  finally:
    signal.signal(signal.SIGHUP, before)


SIGNALLED = """
import importlib, os, signal, sys
command, module, signum, *flags = sys.argv[1:]

class Finder:
  def find_spec(self, name, path=None, target=None):
    if name == module:
      os.kill(os.getpid(), signal.Signals[signum])

sys.meta_path.insert(0, Finder())
importlib.import_module(f'jaxrl_reason.{command}').main(flags)
"""


@pytest.mark.parametrize(
  'command, module, signum',
  [
    ('main', 'absl', 'SIGTERM'),
    ('main', 'jax', 'SIGHUP'),
    ('main', 'jaxrl_reason.run.train', 'SIGINT'),
    ('study', 'jax', 'SIGTERM'),
  ],
)
def test_a_signal_during_imports_exits_as_one_of_a_saved_run(
  command, module, signum, tmp_path
):
  folder = '--out' if command == 'study' else '--workdir'
  flags = [f'--config={ROOT}/tests/tiny_recipe.py', f'{folder}={tmp_path}/x']
  given = [sys.executable, '-c', SIGNALLED, command, module, signum, *flags]
  p = subprocess.run(given, capture_output=True, text=True, cwd=ROOT)
  line = f'{signum}: nothing is unsaved; start the same command to go on.\n'
  assert (p.returncode, p.stderr) == (75, line)
  assert not (tmp_path / 'x').exists()


JOINING = """
import os, signal, sys
import jax
from jaxrl_reason import main

def signalled(*unused, **also):
  os.kill(os.getpid(), signal.SIGTERM)

jax.distributed.initialize = signalled
main.main(sys.argv[1:])
"""


def test_a_signal_while_processes_meet_leaves_one_line(tmp_path):
  """The child that prints the last words of a process prints none."""
  flags = [f'--config={ROOT}/tests/tiny_recipe.py', f'--workdir={tmp_path}/x']
  flags += ['--coordinator=127.0.0.1:1', '--num_processes=2', '--process_id=1']
  given = [sys.executable, '-c', JOINING, *flags]
  p = subprocess.run(given, capture_output=True, text=True, cwd=ROOT)
  line = 'SIGTERM: nothing is unsaved; start the same command to go on.\n'
  assert (p.returncode, p.stderr) == (75, line)


def test_output_goes_on_without_a_reader():
  code = f"""
import sys
from jaxrl_reason.run.process import {reader_gone.__name__.split('.')[-1]} as r
with r.tolerated():
  sys.stdin.readline()  # by now the reader is gone
  for _ in range(3):
    print('a line', file=sys.stderr, flush=True)
    print('a line', flush=True)
print('a line')
sys.exit(7)
"""
  p = subprocess.Popen(
    [sys.executable, '-c', code],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
  )
  p.stdout.close()
  p.stderr.close()
  p.stdin.write(b'\n')
  p.stdin.close()
  assert p.wait(60) == 7


@pytest.fixture
def child(monkeypatch):
  monkeypatch.setattr(last_words, '_child', None)
  last_words.begin()
  yield last_words._child
  last_words._child.kill()
  last_words._child.wait()


def test_the_child_ignores_signals_to_all_processes_of_a_job(child):
  last_words.prepare('nothing')
  for signum in signals.SIGNALS:
    child.send_signal(signum)
  time.sleep(0.1)
  assert child.poll() is None
  assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_line_may_have_a_lone_surrogate(child):
  """An error may quote a completion."""
  last_words.prepare('error: \ud800')


def test_a_run_goes_on_without_the_child(child):
  child.kill()
  child.wait()
  last_words.prepare('a line')
  last_words.cancel()


def test_a_run_does_not_wait_for_a_child_that_does_not_read(child):
  child.send_signal(signal.SIGSTOP)
  assert eventually(lambda: _state(child.pid) == 'T', 10)
  for _ in range(100):  # 100 kB: more than a pipe holds
    last_words.prepare('x' * 1000)


def _state(pid: int) -> str:
  with open(f'/proc/{pid}/stat') as f:
    return f.read().rpartition(')')[2].split()[0]


@pytest.mark.parametrize('name', ['main', 'model_commands', 'study'])
def test_each_long_command_goes_on_without_a_reader(monkeypatch, name):
  """A run, an evaluation and a study continue after their terminal closes."""
  entered = []

  @contextlib.contextmanager
  def tolerated():
    entered.append(name)
    yield

  def refused(*_, **__):
    raise ValueError('as far as this')

  monkeypatch.setattr(reader_gone, 'tolerated', tolerated)
  monkeypatch.setattr('jaxrl_reason.hosts.find_devices', refused)
  monkeypatch.setattr('jaxrl_reason.hosts.join', refused)
  with pytest.raises(SystemExit):
    if name == 'main':
      recipe = f'--config={ROOT}/tests/tiny_recipe.py'
      main.main([recipe, '--workdir=w'])
    elif name == 'study':
      study.main([f'--config={ROOT}/configs/studies/samples.py', '--out=o'])
    else:
      evaluate.main(['--model=m', '--suite=task:countdown', '--out=o'])
  assert entered == [name]


def test_verifier_processes_that_cannot_start_are_an_error_of_one_line(
  monkeypatch, capsys
):
  def refused(*_, **__):
    raise PoolError('the verifier process cannot start: no memory')

  monkeypatch.setattr('jaxrl_reason.hosts.join', lambda *_, **__: None)
  monkeypatch.setattr(train, 'run', refused)
  with pytest.raises(SystemExit):
    main.main([f'--config={ROOT}/tests/tiny_recipe.py', '--workdir=w'])
  last = capsys.readouterr().err.splitlines()[-1]
  assert last == 'error: the verifier process cannot start: no memory'


@pytest.mark.parametrize('fresh', [False, True])
def test_a_run_that_began_afresh_goes_on_without_the_flag(
  monkeypatch, tmp_path, capfd, fresh
):
  """The same command would move the run's checkpoints aside."""
  monkeypatch.setattr(os, '_exit', lambda code: None)
  with command.resumable(fresh):
    os.kill(os.getpid(), signal.SIGTERM)
  assert ('without --fresh' in capfd.readouterr().err) == fresh
  monkeypatch.setattr(train, '_run', lambda *_: None)  # a signal has ended it
  train.run(tiny_recipe.get_config(), tmp_path / 'w', fresh=fresh)
  line = capfd.readouterr().err.splitlines()[-1]
  assert 'Start the same command' in line
  assert ('without --fresh' in line) == fresh
