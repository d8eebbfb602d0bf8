"""The processes behind `VerifierPool`: one nursery, which forks the workers.

  trainer --socket--> nursery --socket pair each--> worker, worker, ...

The nursery is a fresh interpreter (never a fork of the trainer, whose threads
and device handles do not survive one). It imports the reward once, forks the
workers from there in a millisecond each, hands out cases, and kills what
overruns its limit. It has one thread and treats cases and verdicts as opaque
bytes, so a trainer busy in Python cannot delay a deadline. Workers answer
case by case: when one is killed, the culprit is the first case without an
answer, and the rest of its chunk goes back to the head of the queue.
"""

import collections
import dataclasses
import gc
import os
import pickle
import resource
import selectors
import signal
import socket
import struct
import sys
import time

from jaxrl_reason.rewards import resolve
from jaxrl_reason.rewards.pool import procfs, wire
from jaxrl_reason.rewards.verdict import Verdict, judge

MAX_CHUNK = 32
CASE = struct.Struct('!Q')  # id of a case, before its bytes
ANSWER = struct.Struct('!QB')  # id and outcome, before a pickled Verdict
DONE, RETIRE, KILLED, CRASHED = range(4)  # outcomes; RETIRE: done, then exit
PARENT_POLL_S = 1.0
# In the environment of the nursery and its workers, and nowhere else.
INSIDE = 'JAXRL_REASON_VERIFIER'
# Where more processes want to run than there are cores, a worker that is kept
# waiting gets up to so many limits before its case is called too slow.
STARVED = 4


@dataclasses.dataclass(frozen=True)
class Settings:
  reward: object  # a name or a spec
  files: tuple[str, ...]  # Python files to import first
  workers: int
  timeout_s: float
  memory_mb: int
  recycle_cases: int
  recycle_mb: int
  build: str  # name of what makes a function of `reward`
  chunk: int  # cases of a worker at a time, at most


# --- in a worker ---------------------------------------------------------


def _limit_memory(memory_mb: int):
  """Address space on top of what the imports already take."""
  if not sys.platform.startswith('linux'):
    return  # macOS accepts RLIMIT_AS and ignores it
  with open('/proc/self/statm') as f:
    used = int(f.read().split()[0]) * resource.getpagesize()
  limit = used + memory_mb * 2**20
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _die_with_parent():
  """SIGKILL for a worker in an endless loop whose nursery was killed."""
  if not sys.platform.startswith('linux'):
    return
  import ctypes  # here: a worker needs it once, and only on Linux

  pr_set_pdeathsig = 1
  ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _resident_mb() -> float:
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak / (2**20 if sys.platform == 'darwin' else 2**10)


def _work(sock: socket.socket, reward, settings: Settings):
  """Answers cases until told to stop, too old or too fat."""
  done = 0
  for case in wire.Reader(sock):
    (number,) = CASE.unpack_from(case)
    completion, example = pickle.loads(case[CASE.size :])
    start = time.perf_counter()
    verdict = judge(reward, completion, example)
    seconds = time.perf_counter() - start
    done += 1
    out_of_memory = verdict.status == 'error' and 'MemoryError' in (
      verdict.detail or ''
    )
    retire = (
      done >= settings.recycle_cases
      or out_of_memory
      or (done % MAX_CHUNK == 0 and _resident_mb() > settings.recycle_mb)
    )
    answer = ANSWER.pack(number, RETIRE if retire else DONE)
    sock.sendall(wire.frame(answer + pickle.dumps((verdict, seconds))))
    if retire:
      return


def _worker_main(sock: socket.socket, reward, settings: Settings):
  """Never returns: whatever happens, the forked process ends here."""
  code = 1
  try:
    os.setpgid(0, 0)  # so that what a reward starts dies with the worker
    _die_with_parent()
    _limit_memory(settings.memory_mb)
    _work(sock, reward, settings)
    code = 0
  except (ConnectionError, KeyboardInterrupt):
    code = 0  # the nursery is gone or going
  finally:
    os._exit(code)


# --- in the nursery ------------------------------------------------------


class _Worker:
  """A forked process, its socket, and the cases it holds."""

  def __init__(self, reward, settings: Settings, close_fds: list[int]):
    self.sock, theirs = socket.socketpair()
    self.pid = os.fork()
    if self.pid == 0:
      self.sock.close()
      for fd in close_fds:
        os.close(fd)
      _worker_main(theirs, reward, settings)
    theirs.close()
    self.reader = wire.Reader(self.sock)
    self.cases = collections.deque()  # (number, bytes), first one running
    self.since = 0.0  # when the first case started
    self.deadline = 0.0
    self.cpu_s = 0.0  # of the process, when it was given its cases
    self.retiring = False

  def start(self, limit: float):
    """The first case starts now."""
    self.since = time.monotonic()
    self.deadline = self.since + limit

  def give(self, cases: list, limit: float):
    self.cases.extend(cases)
    self.cpu_s = procfs.usage(self.pid)[1]
    self.start(limit)
    data = b''.join(wire.frame(CASE.pack(n) + case) for n, case in cases)
    try:
      self.sock.sendall(data)
    except ConnectionError:
      return  # it died; its socket reports that next, and the cases are kept

  def starves(self, limit: float) -> bool:
    """Overdue for want of a core: ready to run, yet hardly run at all."""
    state, cpu_s = procfs.usage(self.pid)
    return state == 'R' and cpu_s - self.cpu_s < limit / 2

  def kill(self) -> int:
    """Ends the process and all it started; its exit status."""
    for pid in (-self.pid, self.pid):
      try:
        os.kill(pid, signal.SIGKILL)
      except ProcessLookupError:
        continue  # no group yet (just forked), or already gone
    self.sock.close()
    return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Nursery:
  """Single-threaded: one select loop over the trainer and the workers."""

  def __init__(self, sock: socket.socket, reward, settings: Settings):
    self.sock, self.reward, self.settings = sock, reward, settings
    self.reader = wire.Reader(sock)
    self.queue = collections.deque()  # (number, bytes)
    self.answers: list[bytes] = []
    self.workers: set[_Worker] = set()
    self.selector = selectors.DefaultSelector()
    self.selector.register(sock, selectors.EVENT_READ, None)
    for _ in range(settings.workers):
      self._fork()

  def run(self):
    parent = os.getppid()
    open_ = True
    while open_ and os.getppid() == parent:
      # First everything that was said, then the deadlines: a late look at
      # the clock must not condemn a case that was answered in time.
      for key, _ in self.selector.select(self._patience()):
        if key.data is None:
          open_ = self.reader.receive()
          for case in self.reader.frames():
            self.queue.append((CASE.unpack_from(case)[0], case[CASE.size :]))
        elif key.data in self.workers:
          self._hear(key.data)
      self._enforce()
      self._dispatch()
      if self.answers:
        self.sock.sendall(b''.join(self.answers))
        self.answers.clear()

  def close(self):
    for worker in self.workers:
      worker.kill()

  def _patience(self) -> float:
    """Seconds until the next deadline, at most PARENT_POLL_S."""
    now = time.monotonic()
    ends = [w.deadline - now for w in self.workers if w.cases]
    return max(0.0, min([*ends, PARENT_POLL_S]))

  def _hear(self, worker: _Worker):
    alive = worker.reader.receive()
    for answer in worker.reader.frames():
      outcome = ANSWER.unpack_from(answer)[1]
      worker.cases.popleft()
      worker.start(self.settings.timeout_s)
      worker.retiring = outcome == RETIRE
      self.answers.append(wire.frame(answer))
    if not alive:
      self._bury(worker)

  def _bury(self, worker: _Worker):
    """A worker that ended by itself: by agreement, or by its first case."""
    code = self._remove(worker)
    if worker.cases and not worker.retiring:
      how = f'signal {-code}' if code < 0 else f'exit code {code}'
      verdict = Verdict(0.0, 'error', detail=f'the worker died ({how})')
      self._condemn(worker, CRASHED, verdict)
    self.queue.extendleft(reversed(worker.cases))

  def _enforce(self):
    limit = self.settings.timeout_s
    now = time.monotonic()
    for worker in [w for w in self.workers if w.cases]:
      if now < worker.deadline or worker.retiring:
        continue
      patience = worker.since + STARVED * limit - now
      if patience > 0 and worker.starves(limit):
        worker.deadline = now + min(patience, limit / 4)
      else:
        self._remove(worker)
        verdict = Verdict(0.0, 'timeout', detail=f'over {limit:g} s')
        self._condemn(worker, KILLED, verdict)
        self.queue.extendleft(reversed(worker.cases))

  def _condemn(self, worker: _Worker, outcome: int, verdict: Verdict):
    number, _ = worker.cases.popleft()
    seconds = time.monotonic() - worker.since
    payload = ANSWER.pack(number, outcome) + pickle.dumps((verdict, seconds))
    self.answers.append(wire.frame(payload))

  def _remove(self, worker: _Worker) -> int:
    self.selector.unregister(worker.sock)
    self.workers.discard(worker)
    return worker.kill()

  def _fork(self):
    fds = [self.sock.fileno(), *(w.sock.fileno() for w in self.workers)]
    worker = _Worker(self.reward, self.settings, fds)
    self.workers.add(worker)
    self.selector.register(worker.sock, selectors.EVENT_READ, worker)

  def _dispatch(self):
    if not self.queue:
      return
    while len(self.workers) < self.settings.workers:
      self._fork()
    for worker in self.workers:
      if worker.cases or worker.retiring or not self.queue:
        continue
      share = len(self.queue) // (2 * self.settings.workers)
      most = min(share, self.settings.chunk)
      size = min(len(self.queue), max(1, most))
      cases = [self.queue.popleft() for _ in range(size)]
      worker.give(cases, self.settings.timeout_s)


def main(fd: int):
  """Reads the settings, imports the reward, says so, then serves."""
  sock = socket.socket(fileno=fd)
  try:
    settings = pickle.loads(wire.Reader(sock).only())
    for path in settings.files:
      resolve.load_file(path)
    reward = resolve.load(settings.build)(settings.reward)
  # Any failure of a user's module at import is the caller's to see.
  except Exception as e:
    sock.sendall(wire.frame(pickle.dumps(f'{type(e).__name__}: {e}')))
    return
  gc.collect()
  gc.freeze()  # collections in workers then copy no page of the imports
  nursery = Nursery(sock, reward, settings)
  try:
    sock.sendall(wire.frame(pickle.dumps(None)))
    nursery.run()
  except ConnectionError:
    pass  # the trainer was killed: nobody is left to tell
  finally:
    nursery.close()
