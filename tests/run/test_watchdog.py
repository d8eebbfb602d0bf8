"""Limits of a dispatch's time, and the accounting of a run's time."""

import json
import threading
import time
import types

import jax
import numpy as np
import pytest

from jaxrl_reason.hosts import peers
from jaxrl_reason.run.process import compile_log, goodput, watchdog
from jaxrl_reason.run.records import lines, metrics


@pytest.fixture
def clock(monkeypatch):
  """Returns a clock that moves only when it is set."""
  now = types.SimpleNamespace(s=1000.0)
  monkeypatch.setattr(time, 'monotonic', lambda: now.s)
  return now


def made(clock, seconds, times=4.0, floor_s=10.0, compiled=None):
  """Returns a watchdog with dispatches of these seconds."""
  compiled = compiled or compile_log.Log()
  dog = watchdog.Watchdog(times, floor_s, compiled, 1000.0)
  for s in seconds:
    with dog.watched('steps'):
      clock.s += s
  return dog


def test_the_limit_is_a_multiple_of_the_median_and_at_least_the_floor(clock):
  dog = made(clock, [5, 5, 500])  # one slow step does not move the median
  with dog.watched('steps'):
    clock.s += 19.9
    assert not dog.stuck()
    clock.s += 0.2
    assert 'have taken 20 s, where the median is 5.00 s' in dog.stuck()
  assert not dog.stuck()  # it has ended
  dog = made(clock, [1])
  with dog.watched('steps'):
    clock.s += 9.9
    assert not dog.stuck()
    clock.s += 0.2
    assert dog.stuck()


def test_the_first_steps_of_a_stage_and_compiling_are_not_counted(clock):
  compiled = compile_log.Log()
  dog = made(clock, [1, 1], compiled=compiled)
  with dog.watched('steps'):
    compiled.busy = True
    clock.s += 3600
    assert not dog.stuck()
    compiled.busy, compiled.count = False, 1
    clock.s += 9
    assert not dog.stuck()  # the clock starts when the compiler is done
    clock.s += 2
    assert dog.stuck()
  # A dispatch with compilation does not count for the median.
  assert dog.limit_s('steps') == 10
  dog.forget()
  with dog.watched('steps'):
    clock.s += 1000
    assert not dog.stuck()
    clock.s += 1
    assert 'where the first may take 1000 s' in dog.stuck()
    assert 'config.watchdog.first_s' in dog.stuck()


@pytest.mark.parametrize(
  'kind, words',
  [
    ('evaluation', 'the evaluation at step 7 has taken 41 s'),
    ('save', 'the save at step 7 has taken 41 s'),
  ],
)
def test_evaluations_and_saves_have_medians_of_their_own(
  clock, monkeypatch, kind, words
):
  monkeypatch.setitem(peers.standing, 'step', 7)
  dog = made(clock, [1, 1])
  with dog.watched(kind):
    clock.s += 999  # none has ended yet
    assert not dog.stuck()
  dog = made(clock, [1, 1])
  for seconds in (10, 10, 10):
    with dog.watched(kind):
      clock.s += seconds
  dog.forget()  # another stage: as before
  with dog.watched(kind):
    clock.s += 40
    assert not dog.stuck()
    clock.s += 1
    assert words in dog.stuck() and 'the median is 10.00 s' in dog.stuck()


def test_it_waits_for_another_process_that_compiles(clock, monkeypatch):
  other = types.SimpleNamespace(compiling=lambda: True, behind=lambda: 'all')
  monkeypatch.setattr(peers, 'active', other)
  dog = made(clock, [1, 1])
  with dog.watched('steps'):
    clock.s += 100
    assert not dog.stuck()
    other.compiling = lambda: False
    clock.s += 11
    assert dog.stuck()


@pytest.fixture
def over(clock):
  """Returns an event whose waits take `naps` seconds; then it is set."""

  def wait(_):
    if not event.naps:
      return True
    clock.s += event.naps.pop(0)
    return False

  event = types.SimpleNamespace(naps=[], wait=wait)
  return event


@pytest.fixture
def ended(monkeypatch):
  """Returns the lines with which this process would have ended."""
  lines = []
  monkeypatch.setattr(peers, 'end', lines.append)
  return lines


def test_a_job_that_was_stopped_and_continued_is_not_stuck(clock, over, ended):
  dog = made(clock, [1, 1])
  dog._over = over
  with dog.watched('steps'):
    over.naps = [1, 1, 3600, 1, 1, 1]
    dog._run()
    assert not ended
    over.naps = [1] * 8  # it hangs since
    dog._run()
  assert 'have taken 11 s' in ended[0]


def test_processes_that_were_all_stopped_do_not_lose_each_other(over, ended):
  own = peers.Peers(Service(), 0, 3, 10)
  own._over = over
  over.naps = [0.5, 0.5, 3600, 0.5]
  own._watch()
  assert not ended
  over.naps = [0.5] * 22
  own._watch()
  assert 'no answer for 10 s' in ended[0]


class Service:
  """A coordination service of one process with messages of others."""

  def __init__(self):
    self.values = {}

  def key_value_set_bytes(self, key, value, allow_overwrite=False):
    assert allow_overwrite or key not in self.values
    self.values[key] = value

  def key_value_dir_get_bytes(self, prefix):
    return [(k, v) for k, v in self.values.items() if k.startswith(prefix)]


def test_silence_and_last_messages_name_the_process(clock):
  service = Service()
  own = peers.Peers(service, 0, 3, 10)
  others = [peers.Peers(service, i, 3, 10) for i in (1, 2)]

  def beat(*who):
    for p in who:
      p._publish()
    own._read()

  beat(*others)
  line = others[0]._line_if_killed()
  assert line.startswith('error: process 1 on ') and 'process 0 on' in line
  clock.s += 9
  beat(others[1])
  assert not own.lost(10)
  clock.s += 2
  beat(others[1])
  assert own.lost(10).startswith('process 1 on ')
  assert 'gave no sign of life for 11 s' in own.lost(10)
  beat(others[0])
  assert not own.lost(10)
  others[0]._ended = 'process 1 on h (last step 3, training) ended: no data'
  beat(others[0])
  assert not own.lost(10)  # time for this process to report the same error
  clock.s += peers.GRACE_S + 0.1
  assert own.lost(10) == others[0]._ended
  others[0]._ended = ''
  others[0]._publish(left=True)
  own._read()
  clock.s += 5
  beat(others[1])
  assert not own.lost(10)  # the process ended successfully
  clock.s += 11
  assert others[0].lost(10).startswith('process 0 on')
  assert 'has the coordinator' in others[0].lost(10)


def test_the_heartbeat_prepares_the_last_message(monkeypatch):
  own, lines = peers.Peers(Service(), 0, 2, 10), []

  def prepare(line):
    lines.append(line)
    if len(lines) == 2:
      own._over.set()

  monkeypatch.setattr(peers, 'BEAT_S', 0.01)
  monkeypatch.setattr(peers.last_words, 'prepare', prepare)
  own._exchange()
  assert len(lines) == 2 and 'was ended without a word' in lines[0]


def test_processes_agree_on_a_stop_after_a_call_that_failed(monkeypatch):
  """One process hears the request late: the first reads of its count fail."""
  service, late = Service(), []
  service.key_value_set = service.key_value_set_bytes

  def get(key, wait_ms):
    if key not in service.values:
      late.append(key)
      raise jax.errors.JaxRuntimeError('DEADLINE_EXCEEDED')
    return service.values[key]

  service.blocking_key_value_get = get
  monkeypatch.setattr(peers, 'BEAT_S', 0.01)
  own, other = (peers.Peers(service, i, 2, 10) for i in (0, 1))
  own._count, other._count = 3, 5
  agree = threading.Thread(target=own._agree_to_stop, daemon=True)
  agree.start()
  while len(late) < 3:
    assert agree.is_alive()
    time.sleep(0.01)
  other._agree_to_stop()
  agree.join(10)
  assert own._stop_at == other._stop_at == 6


def test_the_last_save_has_the_limit_of_a_first_operation(clock):
  """Earlier saves return at once, and the last one waits for the files."""
  dog = made(clock, [])
  for _ in range(5):
    with dog.watched('save'):
      clock.s += 0.1
  with dog.watched('last save'):
    clock.s += 900
    assert not dog.stuck()
    clock.s += 200
    assert 'the writing of the checkpoint at step' in dog.stuck()


def test_a_process_ends_although_its_stacks_cannot_be_written(
  monkeypatch, capsys
):
  """The file system is full, or hangs, while another thread ends the run."""
  hung, left, codes = threading.Event(), [], []

  def full(line):
    raise OSError(28, 'No space left on device')

  active = types.SimpleNamespace(leave=left.append)
  monkeypatch.setattr(peers, '_ending', threading.Lock())
  monkeypatch.setattr(peers, 'CALL_S', 0.1)
  monkeypatch.setattr(peers, 'active', active)
  monkeypatch.setattr(peers, 'before_end', [full, lambda _: hung.wait(60)])
  monkeypatch.setattr(peers.os, '_exit', codes.append)
  begun = time.monotonic()
  peers.end('the save has taken 41 s')
  hung.set()
  assert time.monotonic() - begun < 30
  assert left == ['the save has taken 41 s'] and codes == [1]
  shown = capsys.readouterr().err
  assert 'No space left' in shown
  assert shown.endswith('error: the save has taken 41 s.\n')


def test_time_is_counted_once(clock):
  compiled = types.SimpleNamespace(seconds=0.0)
  spent = goodput.Spent(clock.s, compiled)
  with spent.on('restore'):
    clock.s += 1
  with spent.on('train'):
    compiled.seconds += 2
    clock.s += 8
  with spent.on('evaluation'):
    compiled.seconds += 3
    clock.s += 4
  with spent.on('save'):
    clock.s += 3
  clock.s += 4
  told = spent.metrics()
  assert told['perf/goodput'] == 6 / 20
  assert told['perf/spent/compile_s'] == 2
  assert told['perf/spent/evaluation_s'] == 4
  spent.lose(3, 2.5)
  assert spent.metrics()['perf/goodput'] == 3.5 / 20
  assert 'trained; seconds of compile 2.0' in spent.told()
  assert '3 steps made again' in spent.told()


def test_a_save_between_steps_is_not_training_time(clock):
  spent = goodput.Spent(clock.s, compile_log.Log())
  with spent.on('train'):
    clock.s += 5
    with spent.on('save'):
      clock.s += 3
    with spent.on('save'):
      clock.s += 1
    clock.s += 1
  with spent.on('evaluation'):
    clock.s += 10
  told = spent.metrics()
  assert told['perf/goodput'] == 6 / 20
  assert told['perf/spent/save_s'] == 4
  assert told['perf/spent/evaluation_s'] == 10


def test_nested_events_of_the_compiler_count_once():
  """An outer trace of 5 s has traces of 1 s and 2 s inside, and one follows."""
  log = compile_log.Log()
  for end, seconds in ((12, 1), (14, 2), (15, 5), (18, 3)):
    log._ended.append((float(end), float(seconds)))
  assert log.seconds == 8


@pytest.mark.parametrize('kind', ['file', 'parts'])
def test_steps_after_the_checkpoint_count_as_lost(tmp_path, kind):
  from etils import epath

  path = epath.Path(tmp_path) / ('m.jsonl' if kind == 'file' else 'm')
  make = lines.Appended if kind == 'file' else lines.Parts
  out = make(path, None)
  for step in range(2, 502, 2):
    out.write(json.dumps({'step': step, 'perf/step_s': 0.5}) + '\n')
    out.write(json.dumps({'step': step, 'eval/x': 1.0}) + '\n')
  out.close()
  lost = make(path, 99).lost
  assert (lost.steps, lost.seconds) == (401, 200.5)
  assert make(path, 99).lost.steps == 0


def test_the_slow_host_is_found():
  hosts = [{'perf/step_s': s, 'perf/data_s': 1.0} for s in (1.0, 4.0, 2.0)]
  assert metrics.stragglers(hosts) == {
    'perf/step_s_max': 4.0,
    'perf/step_s_argmax': 1.0,
    'perf/step_s_spread': 3.0,
    'perf/data_s_max': 1.0,
    'perf/data_s_argmax': 0.0,
    'perf/data_s_spread': 0.0,
  }
  assert metrics.stragglers(hosts[:1]) == {}


def test_an_interrupted_interval_has_the_same_numbers():
  """float32 survives JSON, and means over steps are those of one interval."""
  rng = np.random.default_rng(0)
  device = [
    {'loss': rng.random(2, np.float32), 'length_max': np.int32([i, 2])}
    for i in range(4)
  ]
  host = [{'pool/done': float(i), 'perf/x': i / 3} for i in range(4)]
  cut = metrics.Begun().and_then(device[:1], host[:1], 2)
  for part in (slice(1, 3),):
    cut = metrics.Begun.of({'begun': json.loads(json.dumps(cut.record()))})
    cut = cut.and_then(device[part], host[part], 2)
  assert cut.steps == 6
  whole, told = cut.before(device[3:], host[3:])
  assert metrics.to_host(whole) == metrics.to_host(device)
  assert told == host
