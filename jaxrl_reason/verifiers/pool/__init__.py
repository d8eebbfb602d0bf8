"""Runs rewards in processes that can be killed, with limits on time and memory.

```
with VerifierPool('math', workers=2, timeout_s=1.0) as pool:
  verdicts = pool.map([(completion, example), ...])     # in order
  future = pool.submit(cases)                           # returns at once
  verdicts = await pool.amap(cases)
```
If a case runs too long or its worker dies, it gets an invalid verdict
('timeout' or 'error'); other cases keep their verdicts. If a case ends the
process that forks the workers, the pool starts a new one, and runs the
unfinished cases again one at a time to find that case. Any thread may call, and
no signal is used here. See `worker` for the processes. POSIX only; the memory
limit works on Linux only.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import pickle
import queue
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence

from jaxrl_reason.verifiers import resolve
from jaxrl_reason.verifiers.pool import interpreter, procfs, wire, worker
from jaxrl_reason.verifiers.verdict import Verdict, read_plain

__all__ = ['PoolError', 'VerifierPool']

Case = tuple[str, dict]
# With `-m`, the module would exist twice, also as __main__.
START = f'from {worker.__name__} import main; main({{}})'
# Builds the function that workers call from its portable description.
BUILD = 'jaxrl_reason.verifiers.compose:build'
# The pool stops after this many deaths of a nursery without an answer or a case
# to charge.
MAX_BARREN_RESTARTS = 3
STOPPED, LOOK_S = 'T', 1.0  # a state of /proc; seconds between two reads of it
# Workers use no accelerator, and one thread each, because they run in parallel.
ENVIRONMENT = {
  worker.INSIDE: '1',
  'JAX_PLATFORMS': 'cpu',
  **interpreter.ONE_THREAD,
}


# Errors from messages of a process in which reward code ran.
MALFORMED = (ValueError, TypeError, LookupError, RecursionError, struct.error)


class PoolError(RuntimeError):
  """The pool cannot start or is closed."""


class _Batch:
  """The verdicts of one `submit`, and their future."""

  def __init__(self, size: int):
    self.verdicts: list[Verdict | None] = [None] * size
    self.missing = size
    self.future = concurrent.futures.Future()
    # Running, so that a cancelled asyncio task cannot cancel it.
    self.future.set_running_or_notify_cancel()

  def put(self, index: int, verdict: Verdict):
    self.verdicts[index] = verdict
    self.missing -= 1


@dataclasses.dataclass
class _Open:
  """A case without a verdict."""

  batch: _Batch
  index: int  # in the batch
  data: bytes  # for the case to run again
  handed_out: bool = False  # a worker runs it
  alone: bool = False  # it runs while no other case does


def _files_of_own_tasks() -> tuple[str, ...]:
  """Returns the files that register a recipe's tasks: workers import them."""
  tasks = sys.modules.get('jaxrl_reason.verifiers.tasks')
  return tasks.files_of_own() if tasks else ()


def _hang_up(process: subprocess.Popen, sock: socket.socket):
  """Ends a process and closes the socket to it."""
  with contextlib.suppress(OSError):  # the other side may be gone already
    sock.shutdown(socket.SHUT_RDWR)
  try:
    process.wait(timeout=2.0)
  except subprocess.TimeoutExpired:
    process.kill()
    process.wait()
  sock.close()


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
    chunk: int = worker.MAX_CHUNK,  # cases that a worker gets at a time
    start_s: float | None = None,  # for its imports; None: no limit
    verdicts: type[Verdict] = Verdict,  # of the function; may be a subclass
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
    self._start_s, self._verdicts = start_s, verdicts
    self._lock = threading.Lock()  # for everything below
    self._numbers = itertools.count()
    self._open: dict[int, _Open] = {}  # by number
    self._asked, self._slowest_s = 0, 0.0  # since no case was open
    self._counts = collections.Counter()
    self._busy_s = 0.0
    self._closing, self._why_closed = False, 'is closed'
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
        raise PoolError(f'the verifier pool {self._why_closed}')
      if not self._open:
        self._asked, self._slowest_s = 0, 0.0
      self._asked += len(cases)
      numbers = list(itertools.islice(self._numbers, len(cases)))
      for i, number in enumerate(numbers):
        self._open[number] = _Open(batch, i, payloads[i])
      self._outbox.put(numbers)
    if not cases:
      batch.future.set_result([])
    return batch.future

  def map(self, cases: Sequence[Case]) -> list[Verdict]:
    return self.submit(cases).result()

  async def amap(self, cases: Sequence[Case]) -> list[Verdict]:
    return await asyncio.wrap_future(self.submit(cases))

  def stats(self) -> dict[str, float]:
    """Returns counts since the start, for the metrics."""
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

  def progress(self) -> str:
    """Returns a line about the cases since the pool was last idle, or '' if it
    is idle.
    """
    with self._lock:
      missing, total, slowest = len(self._open), self._asked, self._slowest_s
    if not missing:
      return ''
    return (
      f'waiting for the verifier: {total - missing} of {total} answered, '
      f'slowest {slowest:.1f} s'
    )

  def close(self):
    """Ends the processes; cases without a verdict get status 'error'."""
    with self._lock:
      already, self._closing = self._closing, True
    if already:
      return
    self._outbox.put(None)
    _hang_up(self._process, self._sock)
    self._fail_open('the pool was closed')

  def _start(self):
    """Starts an interpreter that imports the reward; PoolError if it fails.

    Other threads get the socket only after the interpreter has answered. While
    it reads its settings, it drops all later bytes.
    """
    env = interpreter.environment() | ENVIRONMENT
    process, sock = interpreter.start(START, env=env)
    reader = wire.Reader(sock, worker.MAX_ANSWER)
    problem = self._start_problem(sock, reader)
    with self._lock:
      if problem is None and not self._closing:
        self._process, self._sock, self._reader = process, sock, reader
        return
    _hang_up(process, sock)
    raise PoolError(f'the verifier process cannot start: {problem}')

  def _start_problem(
    self, sock: socket.socket, reader: wire.Reader
  ) -> str | None:
    """Waits until the reward is imported; returns the error, or None."""
    sock.settimeout(self._start_s)
    try:
      sock.sendall(wire.frame(pickle.dumps(self._settings)))
      answer = reader.only()
    except TimeoutError:
      return f'not ready after {self._start_s:g} s'
    except (OSError, ValueError) as e:
      return f'{type(e).__name__}: {e}'
    finally:
      sock.settimeout(None)
    if answer is None:
      return 'it ended at once; its messages are above'
    try:
      problem = json.loads(answer)
    except MALFORMED as e:
      return f'it wrote no message: {e}'
    return None if problem is None else str(problem)

  def _write(self):
    """Sends cases to the nursery, in a thread, so that submit never waits."""
    while (numbers := self._outbox.get()) is not None:
      with self._lock:
        cases = [(n, self._open[n]) for n in numbers if n in self._open]
      data = [worker.Case(n, c.alone, c.data).frame() for n, c in cases]
      # If the nursery is dead, the reading thread starts one and resends all.
      with contextlib.suppress(OSError):
        self._sock.sendall(b''.join(data))

  def _read(self):
    """Reads verdicts in a thread, and starts a new nursery if one died."""
    barren = 0
    while True:
      answered = self._receive()
      with self._lock:
        if self._closing:
          return
        self._counts['restart'] += 1
      barren = 0 if self._charge() or answered else barren + 1
      _hang_up(self._process, self._sock)
      try:
        if barren > MAX_BARREN_RESTARTS:
          raise PoolError('the verifier process keeps dying')
        self._start()
      except (PoolError, OSError, ValueError) as e:
        with self._lock:
          if not self._closing:
            self._closing, self._why_closed = True, f'has ended: {e}'
        self._outbox.put(None)  # ends the writing thread
        self._fail_open(str(e))
        return
      self._resend()

  def _receive(self) -> bool:
    """Reads frames until the nursery is gone; returns whether it answered."""
    poll, done = select.poll(), self._counts['done']
    poll.register(self._sock, select.POLLIN)
    while True:
      if not poll.poll(1000 * LOOK_S):
        # A case may stop the nursery for good instead of ending it.
        if procfs.usage(self._process.pid)[0] == STOPPED:
          self._process.kill()
        continue
      try:
        there = self._reader.receive()
      except OSError:
        if not self._closing:
          raise
        there = False  # `close` has closed the socket in the meantime
      if not there:
        return self._counts['done'] > done
      try:
        for frame in self._reader.frames():
          self._take(frame)
      except MALFORMED:
        # Reward code has written here at import: the nursery is broken.
        self._process.kill()
        return self._counts['done'] > done

  def _take(self, frame: bytes):
    """Reads one frame of the nursery; MALFORMED if it did not write it."""
    number, outcome = worker.ANSWER.unpack_from(frame)
    content = json.loads(frame[worker.ANSWER.size :])
    if outcome == worker.HANDED_OUT:
      with self._lock:
        for n in content:
          if n in self._open:
            self._open[n].handed_out = True
      return
    fields, seconds = content
    self._settle(
      number, outcome, read_plain(fields, self._verdicts), float(seconds)
    )

  def _settle(self, number: int, outcome: int, verdict: Verdict, seconds):
    with self._lock:
      if number not in self._open:
        return  # answered twice, around a restart of the nursery
      case = self._open.pop(number)
      case.batch.put(case.index, verdict)
      self._slowest_s = max(self._slowest_s, seconds)
      self._busy_s += seconds
      self._counts['done'] += 1
      self._counts[verdict.status] += 1
      self._counts['crash'] += outcome == worker.CRASHED
      self._counts['recycled'] += outcome == worker.RETIRE
      # Outside the lock, `_fail_open` may have put the rest of the batch.
      last = not case.batch.missing
    if last:
      case.batch.future.set_result(case.batch.verdicts)

  def _charge(self) -> bool:
    """Charges the case that ended the nursery while it ran alone, if one did.

    All others that a worker had will run alone: one of them may end it again.
    """
    with self._lock:
      suspects = [(n, c) for n, c in self._open.items() if c.handed_out]
    if len(suspects) == 1 and suspects[0][1].alone:
      detail = 'the case ended the verifier process'
      verdict = self._verdicts(0.0, 'error', detail=detail)
      self._settle(suspects[0][0], worker.CRASHED, verdict, 0.0)
      return True
    for _, case in suspects:
      case.alone, case.handed_out = True, False
    return False

  def _resend(self):
    """Sends every open case to a new nursery, those that run alone first."""
    with self._lock:
      while not self._outbox.empty():
        if self._outbox.get() is None:  # closing
          break
      rows = sorted(self._open, key=lambda n: not self._open[n].alone)
      self._outbox.put(None if self._closing else rows)

  def _fail_open(self, why: str):
    with self._lock:
      cases, self._open = list(self._open.values()), {}
      for case in cases:
        verdict = self._verdicts(0.0, 'error', detail=why)
        case.batch.put(case.index, verdict)
    for batch in {id(c.batch): c.batch for c in cases}.values():
      batch.future.set_result(batch.verdicts)
