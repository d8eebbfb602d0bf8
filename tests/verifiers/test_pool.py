"""Worker processes: limits, order, threads, asyncio, no orphans."""

import asyncio
import collections
import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from waiting import eventually

from jaxrl_reason.verifiers import pool, resolve
from jaxrl_reason.verifiers.pool import interpreter, limited, worker
from jaxrl_reason.verifiers.verdict import Verdict, all_failed, all_invalid

HERE = os.path.dirname(os.path.abspath(__file__))
FILE = os.path.join(HERE, 'reward_functions.py')
GOOD = ('a', {'answer': 'a'})


def reward(name: str) -> str:
  return f'{FILE}:{name}'


def bad(what: str):
  return what, {'answer': 'a'}


@pytest.fixture(scope='module')
def behave():
  with pool.VerifierPool(
    reward('behave'), workers=2, timeout_s=0.4, memory_mb=256
  ) as verifiers:
    yield verifiers


def alive(pid: int) -> bool:
  try:
    with open(f'/proc/{pid}/stat') as f:
      return f.read().rsplit(')', 1)[1].split()[0] != 'Z'
  except (FileNotFoundError, ProcessLookupError):  # it ends before the read
    return False


STOPS = pytest.mark.parametrize('signum', interpreter.STOPS)


@STOPS
def test_signals_to_all_processes_of_a_job_do_not_end_a_pool(behave, signum):
  """The trainer needs the pool for its last steps."""
  nursery, restarts = behave._process, behave.stats()['restarts']
  processes = [nursery.pid, *_children_of(nursery.pid)]
  waiting = behave.submit([('wait', {})] * 2)
  for pid in processes:
    os.kill(pid, signum)
  assert [v.score for v in waiting.result()] == [1.0] * 2
  assert [v.score for v in behave.map([GOOD] * 8)] == [1.0] * 8
  assert all(map(alive, processes)) and behave._process is nursery
  assert behave.stats()['restarts'] == restarts


@STOPS
def test_signals_to_all_processes_of_a_job_do_not_end_a_function(signum):
  """A query or a template that is being computed keeps its result."""
  code = f"(__import__('os').kill(__import__('os').getpid(), {signum}), 1)[1]"
  assert limited.Function('builtins', 'eval', memory_mb=64)(code, 5.0) == 1


def test_a_reward_can_end_its_own_forks(attacked):
  assert attacked.map([('end a child', {})])[0].score == 1.0


def test_an_interrupted_function_does_not_answer_the_next_call(monkeypatch):
  evaluate = limited.Function('builtins', 'eval', memory_mb=65)
  assert evaluate('1', 5.0) == 1
  process = limited._process(evaluate)

  def interrupt():
    raise KeyboardInterrupt

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(process._reader, 'only', interrupt)
    evaluate('2', 5.0)
  assert evaluate('3', 5.0) == 3


@pytest.mark.filterwarnings('error')
def test_a_pool_closed_before_its_thread_reads_ends_without_an_exception():
  verifiers = pool.VerifierPool(reward('behave'), workers=1, timeout_s=5)
  receive, closed = verifiers._reader.receive, threading.Event()

  def late():
    assert closed.wait(10)
    return receive()

  verifiers._reader.receive = late
  future = verifiers.submit([GOOD])
  time.sleep(0.1)  # the thread waits to read the answer
  readers = [t for t in threading.enumerate() if t.name == 'verifiers']
  verifiers.close()
  closed.set()
  assert eventually(lambda: not any(t.is_alive() for t in readers[-2:]))
  assert [v.status for v in future.result()] == ['error']


def test_a_pool_closed_while_a_verdict_is_put_sets_the_result_once():
  """The error of a run, which closes the pool, stays the one that is raised."""
  verifiers = pool.VerifierPool(reward('behave'), workers=1, timeout_s=5)
  lock, closing = verifiers._lock, [verifiers.close]
  here = threading.current_thread()

  class Lock:
    def __enter__(self):
      lock.acquire()

    def __exit__(self, *_):
      lock.release()
      if closing and threading.current_thread() is here:
        closing.pop()()

  future = verifiers.submit([('hang', {})] * 2)
  verifiers._lock = Lock()
  verifiers._settle(0, worker.DONE, Verdict(1.0), 0.0)
  assert [v.status for v in future.result()] == ['parsed', 'error']


@pytest.mark.parametrize('what', ['hang', 'sleep'])
def test_an_endless_case_fails_alone_after_one_limit(behave, what):
  cases = [GOOD] * 40
  cases[17] = bad(what)
  start = time.monotonic()
  verdicts = behave.map(cases)
  assert time.monotonic() - start < 10  # four limits are 1.6
  assert verdicts[17].status == 'timeout' and not verdicts[17].valid
  assert [v.score for i, v in enumerate(verdicts) if i != 17] == [1.0] * 39


@pytest.mark.parametrize(
  ('what', 'says'),
  [
    ('die', 'exit code 3'),
    ('exit', 'exit code 1'),
    ('eat', 'MemoryError'),
    ('raise', 'a bad day'),
    ('nan', 'not finite'),
    ('nothing', 'NoneType'),
  ],
)
def test_a_failing_case_is_the_only_error(behave, what, says):
  cases = [GOOD] * 20
  cases[0] = cases[19] = bad(what)
  verdicts = behave.map(cases)
  for i in (0, 19):
    assert verdicts[i].status == 'error' and not verdicts[i].valid
    assert says in verdicts[i].detail
  assert all(v.score == 1.0 and v.valid for v in verdicts[1:19])


@pytest.fixture
def attacked():
  with pool.VerifierPool(
    reward('attack'), workers=2, timeout_s=5.0
  ) as verifiers:
    yield verifiers


@pytest.mark.parametrize(
  ('how', 'at'), [('kill parent', [0, 150, 299]), ('stop parent', [150])]
)
def test_a_case_that_ends_the_nursery_is_charged_and_the_pool_lives(
  attacked, how, at
):
  cases = [(how, {}) if i in at else GOOD for i in range(300)]
  verdicts = attacked.map(cases)
  assert [i for i, v in enumerate(verdicts) if not v.valid] == at
  assert 'ended the verifier process' in verdicts[150].detail
  assert attacked.map([GOOD])[0].score == 1.0


def test_a_nursery_that_dies_under_every_case_does_not_end_the_pool(attacked):
  """No case has a reply, as if the nursery could not start."""
  verdicts = attacked.map([('kill parent', {})] * 5)
  assert [v.status for v in verdicts] == ['error'] * 5
  assert attacked.map([GOOD])[0].score == 1.0


def test_a_case_that_kills_other_workers_is_not_charged_to_theirs(attacked):
  verdicts = attacked.map([GOOD, ('kill others', {})] * 40)
  assert all(v.valid and v.score == 1.0 for v in verdicts)


def test_a_reward_that_forks_answers_once(attacked):
  verdicts = attacked.map([('fork', {}), GOOD] * 50)
  assert [v.score for v in verdicts] == [1.0] * 100
  assert attacked.stats()['restarts'] == attacked.stats()['crashes'] == 0


@pytest.mark.parametrize('recycle_cases', [10_000, 1])
@pytest.mark.parametrize(
  'what', ['leave a child', 'end later', 'end, leave a child', 'write later']
)
def test_leftovers_of_a_reward_affect_no_other_case(what, recycle_cases):
  """Threads and children that disturb the worker during a later case."""
  cases = [GOOD, (what, {}), *[GOOD] * 10] * 2
  with pool.VerifierPool(
    reward('attack'), workers=2, timeout_s=2.0, recycle_cases=recycle_cases
  ) as verifiers:
    verdicts = verifiers.submit(cases).result(timeout=15)
  wrong = [
    v for v, case in zip(verdicts, cases) if case == GOOD and not v.valid
  ]
  assert not wrong, wrong


@pytest.mark.parametrize('what', ['write', 'write much'])
def test_writes_of_a_reward_to_the_socket_are_charged_to_it(attacked, what):
  cases = [GOOD] * 100
  cases[50] = (what, {})
  verdicts = attacked.map(cases)
  assert [i for i, v in enumerate(verdicts) if not v.valid] == [50]
  assert attacked.stats()['restarts'] == 0


def test_verdicts_cross_as_plain_data(tmp_path, monkeypatch):
  """A pickle of a verdict's own classes would run their code in the reader."""
  read = tmp_path / 'read'
  monkeypatch.setenv('PICKLE_READ', str(read))
  with pool.VerifierPool(reward('attack'), workers=1) as verifiers:
    text, number, deep, good = verifiers.map(
      [('text', {}), ('number', {}), ('deep', {}), GOOD]
    )
  assert type(text.extracted) is type(text.detail) is str
  assert (text.extracted, text.detail) == ('x', 'y')
  assert type(number.score) is type(number.parts['p']) is float
  assert deep.status == 'error' and good.score == 1.0
  assert not read.exists()


def test_many_bad_cases_among_good_ones(behave):
  kinds = ['hang', 'die', 'raise', 'eat', 'a', 'b', 'a']
  cases = [bad(kinds[i % 7]) for i in range(21)]
  verdicts = behave.map(cases)
  expected = ['timeout', 'error', 'error', 'error', 'parsed'] + ['parsed'] * 2
  assert [v.status for v in verdicts] == expected * 3
  assert [v.score for v in verdicts] == [0, 0, 0, 0, 1, 0, 1] * 3


def test_processes_of_a_case_end_with_it(behave):
  seconds = f'{os.getpid()}.5'  # differs from the sleep of another run
  case = ('spawn', {'seconds': seconds})
  assert behave.map([case])[0].status == 'timeout'
  ps = subprocess.run(
    ['ps', '-eo', 'args'], capture_output=True, text=True, check=True
  )
  assert f'sleep {seconds}' not in ps.stdout


def test_stats_count_events():
  with pool.VerifierPool(reward('behave'), timeout_s=0.3) as verifiers:
    verifiers.map([GOOD, bad('sleep'), bad('raise'), bad('die'), bad('b')])
    stats = verifiers.stats()
  assert stats['done'] == 5 and stats['queue_depth'] == 0
  assert stats['timeouts'] == 1 and stats['crashes'] == 1
  assert stats['errors'] == 2 and stats['restarts'] == 0
  assert 0.3 <= stats['busy_s'] < 2.0


def test_every_case_raising_gives_one_clear_message():
  with pool.VerifierPool(reward('always_raises')) as verifiers:
    message = all_failed(verifiers.map([GOOD] * 5))
  assert 'always_raises raised KeyError' in message
  assert 'reward_functions.py:' in message
  assert all_failed([]) is None


def test_one_good_case_is_not_all_failed(behave):
  assert all_failed(behave.map([bad('raise'), GOOD])) is None


def test_all_invalid_counts_timeouts_as_well():
  late, failed, good = (
    Verdict(0.0, 'timeout'),
    Verdict(0.0, 'error'),
    Verdict(0.0),
  )
  assert 'rl.timeout_s=2 s' in all_invalid([failed, late], 2.0)
  assert all_invalid([failed, failed], 2.0) == all_failed([failed, failed])
  assert all_invalid([late, good], 2.0) is None and all_invalid([], 2.0) is None


def test_order_is_kept_under_load_from_many_threads():
  with pool.VerifierPool(reward('echo'), workers=2) as verifiers:
    results = {}

    def ask(thread: int):
      cases = [(str(1000 * thread + i), {}) for i in range(200)]
      results[thread] = [v.score for v in verifiers.map(cases)]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  assert results == {
    t: [float(1000 * t + i) for i in range(200)] for t in range(6)
  }


def test_asyncio_gives_the_same_verdicts():
  cases = [(str(i), {}) for i in range(50)]
  with pool.VerifierPool(reward('echo')) as verifiers:

    async def both():
      return await asyncio.gather(
        verifiers.amap(cases), verifiers.amap(cases[::-1])
      )

    forward, backward = asyncio.run(both())
    assert forward == verifiers.map(cases) == backward[::-1]


def test_a_cancelled_task_does_not_break_the_pool():
  with pool.VerifierPool(reward('echo')) as verifiers:

    async def cancel():
      task = asyncio.ensure_future(verifiers.amap([('1', {'sleep': 0.2})]))
      await asyncio.sleep(0.05)
      task.cancel()

    asyncio.run(cancel())
    assert verifiers.map([('2', {})])[0].score == 2.0


def test_submit_does_not_wait_for_the_verdict(tmp_path):
  go = tmp_path / 'go'
  with pool.VerifierPool(reward('echo'), workers=1) as verifiers:
    future = verifiers.submit([('1', {'after': str(go)})])
    assert verifiers.stats()['queue_depth'] == 1 and not future.done()
    go.touch()
    assert future.result()[0].score == 1.0


def test_workers_never_import_jax():
  with pool.VerifierPool(reward('jax_loaded')) as verifiers:
    assert verifiers.map([GOOD])[0].score == 0.0
  with pool.VerifierPool('math') as verifiers:
    assert verifiers.map([('5', {'answer': '5'})])[0].score == 1.0


def test_workers_are_recycled_after_so_many_cases():
  with pool.VerifierPool(
    reward('pid'), workers=1, recycle_cases=10
  ) as verifiers:
    pids = [v.score for v in verifiers.map([GOOD] * 35)]
  assert [pids.count(p) for p in dict.fromkeys(pids)] == [10, 10, 10, 5]


def test_workers_are_recycled_when_they_grow():
  with pool.VerifierPool(
    reward('grow'), workers=1, recycle_mb=100, memory_mb=512
  ) as verifiers:
    verdicts = verifiers.map([GOOD] * 100)
    assert verifiers.stats()['recycled'] >= 2
  assert all(v.valid for v in verdicts)


def test_a_killed_worker_is_replaced():
  with pool.VerifierPool(reward('pid'), workers=1) as verifiers:
    first = int(verifiers.map([GOOD])[0].score)
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: not alive(first))
    verdict = verifiers.map([GOOD])[0]
    assert verdict.valid and int(verdict.score) != first


def test_a_killed_nursery_is_replaced_and_cases_run_again():
  with pool.VerifierPool(reward('echo'), workers=1) as verifiers:
    future = verifiers.submit([(str(i), {'sleep': 0.1}) for i in range(6)])
    time.sleep(0.25)
    os.kill(verifiers._process.pid, signal.SIGKILL)
    assert [v.score for v in future.result(timeout=60)] == list(range(6))
    assert verifiers.stats()['restarts'] == 1


def test_close_settles_open_cases_and_leaves_no_process():
  verifiers = pool.VerifierPool(reward('pid'), workers=1)
  pid = int(verifiers.map([GOOD])[0].score)
  nursery = verifiers._process.pid
  verifiers.close()
  assert not alive(nursery) and eventually(lambda: not alive(pid))
  with pytest.raises(pool.PoolError, match='closed'):
    verifiers.submit([GOOD])
  slow = pool.VerifierPool(reward('echo'), workers=1)
  future = slow.submit([('1', {'sleep': 30})])
  slow.close()
  assert future.result(timeout=1)[0].status == 'error'


def run_script(code: str) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, '-c', code],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
  )


HANGING = f"""
import signal
# Ignored where the tests run as a shell's background job.
signal.signal(signal.SIGINT, signal.default_int_handler)
from jaxrl_reason.verifiers.pool import VerifierPool
p = VerifierPool({reward('pid')!r}, workers=1, timeout_s=60)
q = VerifierPool({reward('behave')!r}, workers=1, timeout_s=60)
print(int(p.map([('a', {{}})])[0].score), p._process.pid, q._process.pid)
import sys; sys.stdout.flush()
q.map([('hang', {{}})])
"""


@pytest.mark.parametrize('how', [signal.SIGKILL, signal.SIGINT])
def test_no_orphans_and_no_noise_when_the_parent_ends(how):
  script = run_script(HANGING)
  pids = [int(p) for p in script.stdout.readline().split()]
  children = [*pids, *_children_of(pids[2])]
  time.sleep(0.1)
  script.send_signal(how)
  _, errors = script.communicate(timeout=60)
  assert eventually(lambda: not any(alive(p) for p in children))
  # Ctrl-C: the parent's own traceback, and none from a worker.
  assert errors.count('Traceback') == (1 if how == signal.SIGINT else 0)
  assert 'reward_functions' not in errors


def _children_of(pid: int) -> list[int]:
  with open(f'/proc/{pid}/task/{pid}/children') as f:
    return [int(p) for p in f.read().split()]


def test_a_function_of_the_users_own_script(tmp_path):
  script = tmp_path / 'mine.py'
  script.write_text(
    'from jaxrl_reason.verifiers.pool import VerifierPool\n'
    'def mine(completion, example):\n'
    '  return len(completion)\n'
    'if __name__ == "__main__":\n'
    '  with VerifierPool(mine, workers=1) as p:\n'
    '    print(p.map([("abc", {})])[0].score)\n'
  )
  done = subprocess.run(
    [sys.executable, str(script)],
    capture_output=True,
    text=True,
    timeout=10,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
  )
  assert (done.stdout, done.stderr) == ('3.0\n', '')


def test_functions_that_no_other_process_can_import():
  with pytest.raises(resolve.RewardError, match='no name another process'):
    pool.VerifierPool(lambda completion, example: 1.0)


@pytest.mark.parametrize(
  ('name', 'says'),
  [
    ('no_such_module:f', 'no_such_module'),
    (reward('no_such_function'), 'no_such_function'),
    ('/no/such/file.py:f', 'FileNotFoundError'),
    ('nonsense', 'package.module:function'),
    ('os:sep', 'not a function'),
  ],
)
def test_a_reward_that_cannot_be_found_is_named(name, says):
  with pytest.raises(pool.PoolError, match=says):
    pool.VerifierPool(name)


def test_a_late_call_of_a_limited_function_affects_no_other_thread():
  evaluate = limited.Function('builtins', 'eval', memory_mb=64)
  assert evaluate('1', 0.3) == 1
  endless = 'sum(0 for _ in iter(int, 1))'
  with concurrent.futures.ThreadPoolExecutor(8) as threads:
    late = threads.submit(evaluate, endless, 0.3)
    others = [threads.submit(evaluate, f'{i} + 1', 0.3) for i in range(6)]
  assert [f.result() for f in others] == [1, 2, 3, 4, 5, 6]
  with pytest.raises(limited.Late):
    late.result()


def test_a_batch_without_cases_has_no_verdicts(behave):
  assert behave.map([]) == []


def test_a_case_that_hangs_before_large_cases_fails_alone():
  """The process that enforces the limit never waits to send a chunk."""
  text = 'x' * 32_000
  # The first case lasts until the others are in the queue.
  cases = [('0', {'text': text, 'sleep': s}) for s in (0.4, 60, *[0] * 62)]
  with pool.VerifierPool(reward('echo'), workers=1, timeout_s=1.0) as verifiers:
    verdicts = verifiers.submit(cases).result(timeout=15)
  assert [i for i, v in enumerate(verdicts) if not v.valid] == [1]
  assert verdicts[1].status == 'timeout'


def test_progress_keeps_the_cases_of_finished_batches(tmp_path):
  """The count does not go back if the first of two batches ends."""
  held = {'after': str(tmp_path / 'go')}
  with pool.VerifierPool(reward('echo'), workers=1, timeout_s=30) as verifiers:
    first = verifiers.submit([('1', {}), ('2', {})])
    second = verifiers.submit([('3', held)])
    first.result(timeout=15)
    assert '2 of 3 answered' in verifiers.progress()
    (tmp_path / 'go').touch()
    second.result(timeout=15)
    assert verifiers.progress() == ''
    (tmp_path / 'go').unlink()
    third = verifiers.submit([('4', held)])
    assert '0 of 1 answered' in verifiers.progress()
    (tmp_path / 'go').touch()
    third.result(timeout=15)


def test_cases_that_arrive_during_a_restart_are_answered(monkeypatch):
  """A new nursery drops bytes that it reads together with its settings."""
  cases = [('0', {'text': 'x' * 32_000})] * 64
  with pool.VerifierPool(reward('echo'), workers=1) as verifiers:
    slow = f'import time; time.sleep(0.5); {pool.START}'
    monkeypatch.setattr(pool, 'START', slow)
    verifiers._process.kill()
    assert eventually(lambda: verifiers.stats()['restarts'] == 1)
    time.sleep(0.2)  # the new process has its settings and has not read them
    verdicts = verifiers.submit(cases).result(timeout=15)
  assert all(v.valid for v in verdicts)


@pytest.mark.parametrize(
  'error',
  [
    BlockingIOError('no process left'),  # of the fork
    ValueError('no process left'),
  ],
)
def test_a_restart_that_fails_ends_the_pool_with_the_reason(monkeypatch, error):
  with pool.VerifierPool(reward('echo'), workers=1) as verifiers:

    def start(*args, **kwargs):
      raise error

    monkeypatch.setattr(pool.interpreter, 'start', start)
    future = verifiers.submit([('1', {'sleep': 60})])
    verifiers._process.kill()
    (verdict,) = future.result(timeout=10)
    assert verdict.status == 'error' and 'no process left' in verdict.detail
    with pytest.raises(pool.PoolError, match='has ended: no process left'):
      verifiers.submit([GOOD])


def test_a_process_that_ends_before_it_gets_its_settings(monkeypatch):
  start = pool.interpreter.start

  def start_and_end(code: str, **options):
    process, sock = start('pass  # {}', **options)
    process.wait(10)
    return process, sock

  monkeypatch.setattr(pool.interpreter, 'start', start_and_end)
  with pytest.raises(pool.PoolError, match='cannot start: BrokenPipe'):
    pool.VerifierPool('math')


def test_a_pool_closed_during_a_restart_leaves_no_process(monkeypatch):
  verifiers = pool.VerifierPool(reward('echo'), workers=1)
  start, processes = pool.interpreter.start, []

  def start_and_close(*args, **options):
    process, sock = start(*args, **options)
    processes.append(process)
    verifiers.close()
    return process, sock

  monkeypatch.setattr(pool.interpreter, 'start', start_and_close)
  verifiers._process.kill()
  assert eventually(lambda: processes and processes[0].poll() is not None)


def test_every_case_of_a_chunk_may_wait_for_a_core(monkeypatch):
  """The CPU time of earlier cases of a chunk is not that of a later one."""
  cpu_s = 3.0
  monkeypatch.setattr(worker.procfs, 'usage', lambda pid: ('R', cpu_s))
  settings = worker.Settings('math', (), 0, 1.0, 0, 0, 0, '', 2)
  ours, theirs = socket.socketpair()
  with ours, theirs:
    nursery = worker.Nursery(theirs, None, settings)
    process = worker._Worker.__new__(worker._Worker)  # without a fork
    process.pid, process.sock, process.cases = 0, ours, collections.deque()
    process.give([worker.Case(n, False, b'') for n in range(2)], 1.0)
    assert process.starves(1.0)
    cpu_s += 0.6  # the first case has used more than half of the limit
    assert not process.starves(1.0)
    nursery._forward(process, worker.ANSWER.pack(0, worker.DONE))
    assert process.starves(1.0)
    nursery.selector.close()
