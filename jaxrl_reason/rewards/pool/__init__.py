"""Rewards in killable processes, with limits on time and memory.

```
with VerifierPool('math', workers=2, timeout_s=1.0) as pool:
  verdicts = pool.map([(completion, example), ...])     # in order
  future = pool.submit(cases)                           # returns at once
  verdicts = await pool.amap(cases)
```
A case that runs too long, or whose worker dies, costs one limit and gets an
invalid verdict ('timeout' or 'error'); the others are not touched. Any thread
may call, and no signal is used here. See `worker` for the processes. POSIX
only; the memory limit holds on Linux only.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import itertools
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from jaxrl_reason.rewards import resolve
from jaxrl_reason.rewards.pool import wire, worker
from jaxrl_reason.rewards.verdict import Verdict

Case = tuple[str, dict]
# Not `-m`: the module would then exist twice, as itself and as __main__.
START = f'from {worker.__name__} import main; main({{}})'
# What makes the function that workers call of its portable description.
BUILD = 'jaxrl_reason.rewards.compose:build'
# A nursery that dies this often without answering anything is given up.
MAX_BARREN_RESTARTS = 3
# No accelerator for a worker, whatever a reward imports, and one thread each:
# the workers are the parallelism.
ENVIRONMENT = {
  worker.INSIDE: '1',
  'JAX_PLATFORMS': 'cpu',
  'OMP_NUM_THREADS': '1',
  'OPENBLAS_NUM_THREADS': '1',
  'MKL_NUM_THREADS': '1',
}


class PoolError(RuntimeError):
  """The pool cannot start or is closed."""


class _Batch:
  """One submit: its verdicts as they come, its future when all are there."""

  def __init__(self, size: int):
    self.verdicts: list[Verdict | None] = [None] * size
    self.missing = size
    self.future = concurrent.futures.Future()
    # Running, so that a cancelled asyncio task cannot cancel it under us.
    self.future.set_running_or_notify_cancel()

  def put(self, index: int, verdict: Verdict):
    self.verdicts[index] = verdict
    self.missing -= 1


def _files_of_own_tasks() -> tuple[str, ...]:
  """Files that workers import first, for the tasks that a recipe registered;
  where nobody has imported `tasks`, nobody has.
  """
  tasks = sys.modules.get('jaxrl_reason.tasks')
  return tasks.files_of_own() if tasks else ()


class VerifierPool:
  """Worker processes for one reward; a context manager."""

  def __init__(
    self,
    reward,  # a name, an importable function, or a composed spec
    *,
    workers: int = 2,  # processes
    timeout_s: float = 1.0,  # wall clock for one case
    memory_mb: int = 1024,  # of a worker, on top of its imports
    recycle_cases: int = 10_000,  # a worker is replaced after so many
    recycle_mb: int = 512,  # or once its resident memory passed this
    build: str = BUILD,  # 'package.module:function' of the reward
    chunk: int = worker.MAX_CHUNK,  # cases a worker is given at a time
    start_s: float | None = None,  # for its imports; None: no limit
  ):
    if workers < 1 or timeout_s <= 0:
      raise ValueError(f'{workers=} and {timeout_s=} must be positive')
    self._settings = worker.Settings(
      resolve.portable(reward),
      _files_of_own_tasks(),
      workers,
      timeout_s,
      memory_mb,
      recycle_cases,
      recycle_mb,
      build,
      chunk,
    )
    self._start_s = start_s
    self._lock = threading.Lock()  # for everything below
    self._numbers = itertools.count()
    # number -> (its batch, index in the batch, the case's bytes for a rerun)
    self._open: dict[int, tuple[_Batch, int, bytes]] = {}
    self._counts = collections.Counter()
    self._busy_s = 0.0
    self._closing = False
    self._outbox = queue.SimpleQueue()
    self._start()
    for target in (self._read, self._write):
      threading.Thread(target=target, daemon=True, name='verifiers').start()

  def __enter__(self):
    return self

  def __exit__(self, *exc):
    self.close()

  def submit(self, cases: Sequence[Case]) -> concurrent.futures.Future:
    """Returns a future of the verdicts, in the order of the cases."""
    batch = _Batch(len(cases))
    payloads = [pickle.dumps(tuple(case)) for case in cases]
    with self._lock:
      if self._closing:
        raise PoolError('the verifier pool is closed')
      sent = list(zip(payloads, self._numbers))
      for i, (payload, number) in enumerate(sent):
        self._open[number] = (batch, i, payload)
    if not cases:
      batch.future.set_result([])
    else:
      self._outbox.put(sent)
    return batch.future

  def map(self, cases: Sequence[Case]) -> list[Verdict]:
    return self.submit(cases).result()

  async def amap(self, cases: Sequence[Case]) -> list[Verdict]:
    return await asyncio.wrap_future(self.submit(cases))

  def stats(self) -> dict[str, float]:
    """Counts since the start, for the metrics."""
    with self._lock:
      counts = self._counts
      return {
        'workers': self._settings.workers,
        'queue_depth': len(self._open),
        'done': counts['done'],
        'errors': counts['error'],  # raised, or killed their worker
        'timeouts': counts['timeout'],
        'crashes': counts['crash'],
        'unparsed': counts['unparsed'],
        'no_answer': counts['no_answer'],
        'recycled': counts['recycled'],
        'restarts': counts['restart'],
        'busy_s': self._busy_s,  # worker seconds
      }

  def close(self):
    """Ends the processes; what is still open becomes an 'error' verdict."""
    with self._lock:
      already, self._closing = self._closing, True
    if already:
      return
    self._outbox.put(None)
    self._hang_up()
    self._fail_open('the pool was closed')

  def _start(self):
    """A fresh interpreter that has imported the reward, or PoolError."""
    ours, theirs = socket.socketpair()
    env = {**os.environ, **ENVIRONMENT}
    env['PYTHONPATH'] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    self._process = subprocess.Popen(
      [sys.executable, '-c', START.format(theirs.fileno())],
      env=env,
      pass_fds=[theirs.fileno()],
      stdin=subprocess.DEVNULL,
      start_new_session=True,  # Ctrl-C is for the trainer alone
    )
    theirs.close()
    self._sock = ours
    ours.sendall(wire.frame(pickle.dumps(self._settings)))
    reader = wire.Reader(ours)
    ours.settimeout(self._start_s)
    problem = 'it ended at once; its messages are above'
    try:
      answer = reader.only()
    except TimeoutError:
      answer, problem = None, f'not ready after {self._start_s:g} s'
    ours.settimeout(None)
    if answer is not None:
      problem = pickle.loads(answer)
    if problem is not None:
      self._hang_up()
      raise PoolError(f'the verifier process cannot start: {problem}')
    self._reader = reader

  def _hang_up(self):
    with contextlib.suppress(OSError):  # the other side may be gone already
      self._sock.shutdown(socket.SHUT_RDWR)
    try:
      self._process.wait(timeout=2.0)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()
    self._sock.close()

  def _write(self):
    """Thread: cases to the nursery, so that submit never waits for it."""
    while (cases := self._outbox.get()) is not None:
      head = worker.CASE.pack
      data = b''.join(wire.frame(head(n) + payload) for payload, n in cases)
      # A dead nursery is the reading thread's to replace; it resends all.
      with contextlib.suppress(OSError):
        self._sock.sendall(data)

  def _read(self):
    """Thread: answers to batches; replaces a nursery that died."""
    barren = 0
    while True:
      for answer in self._reader:
        barren = 0
        self._settle(answer)
      with self._lock:
        if self._closing:
          return
        self._counts['restart'] += 1
      barren += 1
      try:
        if barren > MAX_BARREN_RESTARTS:
          raise PoolError('the verifier process keeps dying')
        self._hang_up()
        self._start()
      except PoolError as e:
        with self._lock:
          self._closing = True
        self._fail_open(str(e))
        return
      with self._lock:
        rows = [(payload, n) for n, (_, _, payload) in self._open.items()]
      if rows:
        self._outbox.put(rows)

  def _settle(self, answer: bytes):
    number, outcome = worker.ANSWER.unpack_from(answer)
    verdict, seconds = pickle.loads(answer[worker.ANSWER.size :])
    with self._lock:
      if number not in self._open:
        return  # answered twice, around a restart of the nursery
      batch, index, _ = self._open.pop(number)
      batch.put(index, verdict)
      self._busy_s += seconds
      self._counts['done'] += 1
      self._counts[verdict.status] += 1
      self._counts['crash'] += outcome == worker.CRASHED
      self._counts['recycled'] += outcome == worker.RETIRE
    if not batch.missing:
      batch.future.set_result(batch.verdicts)

  def _fail_open(self, why: str):
    with self._lock:
      rows, self._open = list(self._open.values()), {}
      for batch, index, _ in rows:
        batch.put(index, Verdict(0.0, 'error', detail=why))
    for batch in {id(b): b for b, _, _ in rows}.values():
      batch.future.set_result(batch.verdicts)
