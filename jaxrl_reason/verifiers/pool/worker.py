"""Runs the processes of `VerifierPool`: one nursery, which forks the workers.

  trainer --socket--> nursery --socket pair each--> worker, worker, ...

The nursery is a fresh interpreter (never a fork of the trainer, whose threads
and device handles do not survive one). It imports the reward once, forks each
worker in a millisecond, hands out cases, and kills a worker that overruns its
limit. It has one thread and treats cases and verdicts as opaque bytes, so a
trainer busy in Python cannot delay a deadline. Workers answer case by case. If
a worker is killed, the first case without an answer is charged, and the rest
of its chunk goes back to the head of the queue.

A reward may kill other workers or the nursery, and its threads and children may
end or disturb its own worker during a later case. A case whose worker ended
therefore runs once more, alone in a new worker, before it is charged. The
nursery reports every case before it hands it out, so that the trainer can do
the same with the cases that a dead nursery had handed out.

Cases are pickled: only the trainer writes them, and examples contain dates and
tuples. Answers are JSON: reward code runs in the process that writes them, and
reading a pickle would run its code in the trainer.
"""

import collections
import dataclasses
import gc
import json
import os
import pickle
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from typing import NamedTuple

from jaxrl_reason.verifiers import resolve
from jaxrl_reason.verifiers.pool import limited, linux, procfs, wire
from jaxrl_reason.verifiers.pool.interpreter import restore_stops_in_forks
from jaxrl_reason.verifiers.verdict import Verdict, judge, plain_of

MAX_CHUNK = 32
# Bytes of a chunk after its first case. A worker reads only between cases. If
# these bytes exceed the buffer of its socket (208 KB on Linux), the nursery
# waits until the worker reads and enforces no limit meanwhile.
MAX_UNREAD = 64 << 10
CASE = struct.Struct('!Q?')  # number of a case, whether it runs alone; its data
ANSWER = struct.Struct('!QB')  # number of a case, outcome; then JSON
MAX_ANSWER = 32 << 20  # bytes of an answer
# RETIRE: answered, and the worker exits. HANDED_OUT: no answer, but the numbers
# of the cases that a worker gets next.
DONE, RETIRE, KILLED, CRASHED, HANDED_OUT = range(5)
PARENT_POLL_S = 1.0
# Set only in the environment of the nursery and its workers.
INSIDE = 'JAXRL_REASON_VERIFIER'
# If there are more running processes than cores, a waiting worker gets up to
# this many limits before its case has a timeout.
STARVED = 4


class Case(NamedTuple):
  number: int
  alone: bool  # runs while no other case does
  data: bytes  # pickled (completion, example)

  def frame(self) -> bytes:
    return wire.frame(CASE.pack(self.number, self.alone) + self.data)


def case_of(payload: bytes) -> Case:
  """Reads the payload of `Case.frame`."""
  return Case(*CASE.unpack_from(payload), payload[CASE.size :])


@dataclasses.dataclass(frozen=True)
class Settings:
  reward: object  # a name or a spec
  files: tuple[str, ...]  # Python files to import first
  workers: int
  timeout_s: float
  memory_mb: int
  recycle_cases: int
  recycle_mb: int
  build: str  # name of the function that builds a function of `reward`
  chunk: int  # cases of a worker at a time, at most


# --- in a worker ---------------------------------------------------------


def _resident_mb() -> float:
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak / (2**20 if sys.platform == 'darwin' else 2**10)


def _payload(number: int, outcome: int, verdict: Verdict, seconds: float):
  """Returns the bytes of an answer."""
  answer = json.dumps([plain_of(verdict), seconds]).encode()
  return ANSWER.pack(number, outcome) + answer


def _answer(number: int, outcome: int, verdict: Verdict, seconds: float):
  """Returns the bytes of an answer, or of an error if the verdict is not
  plain.
  """
  try:
    payload = _payload(number, outcome, verdict, seconds)
    problem = f'over {MAX_ANSWER} bytes' if len(payload) > MAX_ANSWER else ''
  # A reward's own subclasses of str, dict or float may raise anything.
  except Exception as e:
    problem = f'not plain data: {type(e).__name__}: {e}'[:500]
  if not problem:
    return payload
  verdict = Verdict(0.0, 'error', detail=f'the verdict is {problem}')
  return _payload(number, outcome, verdict, seconds)


def _work(sock: socket.socket, reward, settings: Settings):
  """Answers cases until the socket closes or the worker has to be replaced."""
  done, pid = 0, os.getpid()
  for payload in wire.Reader(sock):
    case = case_of(payload)
    completion, example = pickle.loads(case.data)
    start = time.perf_counter()
    verdict = judge(reward, completion, example)
    seconds = time.perf_counter() - start
    if os.getpid() != pid:
      os._exit(0)  # a fork made by the reward: one answer is enough
    done += 1
    out_of_memory = verdict.status == 'error' and 'MemoryError' in (
      verdict.detail or ''
    )
    retire = (
      done >= settings.recycle_cases
      or out_of_memory
      or (done % MAX_CHUNK == 0 and _resident_mb() > settings.recycle_mb)
    )
    outcome = RETIRE if retire else DONE
    sock.sendall(wire.frame(_answer(case.number, outcome, verdict, seconds)))
    if retire:
      return


def _worker_main(sock: socket.socket, reward, settings: Settings):
  """Runs a worker and never returns: the forked process ends here."""
  code = 1
  try:
    os.setpgid(0, 0)  # so that processes of a reward end with the worker
    if linux.AVAILABLE:
      linux.die_with_parent()  # also in an endless loop
    restore_stops_in_forks()  # a reward may end its own with SIGTERM
    limited.limit_memory(settings.memory_mb)
    _work(sock, reward, settings)
    code = 0
  except ConnectionError:
    code = 0  # the nursery has ended
  finally:
    os._exit(code)


# --- in the nursery ------------------------------------------------------


class _Worker:
  """A forked process, its socket, and its cases."""

  def __init__(self, reward, settings: Settings, close_fds: list[int]):
    self.sock, theirs = socket.socketpair()
    self.pid = os.fork()
    if self.pid == 0:
      self.sock.close()
      for fd in close_fds:
        os.close(fd)
      _worker_main(theirs, reward, settings)
    theirs.close()
    self.reader = wire.Reader(self.sock, MAX_ANSWER)
    self.cases = collections.deque()  # of `Case`; the first one runs
    self.since = 0.0  # start time of the first case
    self.deadline = 0.0
    self.cpu_s = 0.0  # of the process, at the start of the first case
    self.retiring = False

  def start(self, limit: float):
    """Starts the clocks of the first case."""
    self.cpu_s = procfs.usage(self.pid)[1]
    self.since = time.monotonic()
    self.deadline = self.since + limit

  def give(self, cases: list, limit: float):
    self.cases.extend(cases)
    self.start(limit)
    try:
      self.sock.sendall(b''.join(case.frame() for case in cases))
    except ConnectionError:
      return  # it ended; `_hear` reads this from its socket and keeps the cases

  def starves(self, limit: float) -> bool:
    """Returns whether the worker is late because it did not get a core."""
    state, cpu_s = procfs.usage(self.pid)
    return state == 'R' and cpu_s - self.cpu_s < limit / 2

  def ended(self) -> bool:
    """Returns whether the process ended, though a child keeps its socket."""
    return procfs.usage(self.pid)[0] == 'Z'

  def kill(self) -> int:
    """Ends the process and its group; returns its exit status."""
    for pid in (-self.pid, self.pid):
      try:
        os.kill(pid, signal.SIGKILL)
      except ProcessLookupError:
        continue  # no group yet (just forked), or already gone
    self.sock.close()
    return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Nursery:
  """One thread: a select loop over the trainer and the workers."""

  def __init__(self, sock: socket.socket, reward, settings: Settings):
    self.sock, self.reward, self.settings = sock, reward, settings
    self.reader = wire.Reader(sock)
    self.queue: collections.deque[Case] = collections.deque()
    self.frames: list[bytes] = []  # for the trainer
    self.workers: set[_Worker] = set()
    self.selector = selectors.DefaultSelector()
    self.selector.register(sock, selectors.EVENT_READ, None)
    for _ in range(settings.workers):
      self._fork()

  def run(self):
    parent = os.getppid()
    open_ = True
    while open_ and os.getppid() == parent:
      # Messages before deadlines: a late look at the clock must not condemn a
      # case that was answered in time.
      for key, _ in self.selector.select(self._patience()):
        if key.data is None:
          open_ = self.reader.receive()
          self.queue.extend(map(case_of, self.reader.frames()))
        elif key.data in self.workers:
          self._hear(key.data)
      self._enforce()
      self._dispatch()
      self._flush()

  def close(self):
    for worker in self.workers:
      worker.kill()

  def _flush(self):
    if self.frames:
      self.sock.sendall(b''.join(self.frames))
      self.frames.clear()

  def _patience(self) -> float:
    """Returns the seconds to the next deadline, at most PARENT_POLL_S."""
    now = time.monotonic()
    ends = [w.deadline - now for w in self.workers if w.cases]
    return max(0.0, min([*ends, PARENT_POLL_S]))

  def _hear(self, worker: _Worker):
    alive = worker.reader.receive()
    try:
      for answer in worker.reader.frames():
        self._forward(worker, answer)
    except (ValueError, struct.error) as e:
      self._bury(worker, f'the worker is broken: {e}')
    else:
      # A child that the reward left behind may keep the socket open.
      if worker.retiring or not alive:
        self._bury(worker)

  def _forward(self, worker: _Worker, answer: bytes):
    number, outcome = ANSWER.unpack_from(answer)
    if not worker.cases or number != worker.cases[0].number:
      raise ValueError('an answer that no case has asked for')
    if outcome not in (DONE, RETIRE):
      raise ValueError(f'an answer of outcome {outcome}')
    worker.cases.popleft()
    worker.start(self.settings.timeout_s)
    worker.retiring = outcome == RETIRE
    self.frames.append(wire.frame(answer))

  def _bury(self, worker: _Worker, problem: str = ''):
    """Replaces a worker that ended or is broken.

    Its first case runs again alone, or is charged if it was alone.
    """
    code = self._remove(worker)
    if worker.cases and not worker.retiring:
      if worker.cases[0].alone:
        how = f'signal {-code}' if code < 0 else f'exit code {code}'
        detail = problem or f'the worker died ({how})'
        return self._charge(worker, CRASHED, 'error', detail)
      worker.cases[0] = worker.cases[0]._replace(alone=True)
    self.queue.extendleft(reversed(worker.cases))

  def _enforce(self):
    limit = self.settings.timeout_s
    now = time.monotonic()
    for worker in [w for w in self.workers if w.cases]:
      if now < worker.deadline:
        continue
      if worker.ended():
        self._bury(worker)
        continue
      patience = worker.since + STARVED * limit - now
      if patience > 0 and worker.starves(limit):
        worker.deadline = now + min(patience, limit / 4)
      else:
        self._charge(worker, KILLED, 'timeout', f'over {limit:g} s')

  def _charge(self, worker: _Worker, outcome: int, status: str, detail: str):
    """Ends a worker; its first case gets the verdict, the others run again."""
    if worker in self.workers:
      self._remove(worker)
    if worker.cases:
      case = worker.cases.popleft()
      seconds = time.monotonic() - worker.since
      verdict = Verdict(0.0, status, detail=detail)
      answer = _answer(case.number, outcome, verdict, seconds)
      self.frames.append(wire.frame(answer))
    self.queue.extendleft(reversed(worker.cases))

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
    if self.queue[0].alone and not any(w.cases for w in self.workers):
      # A signal of an earlier case may still be on its way to any of them.
      for worker in list(self.workers):
        self._remove(worker)
    while len(self.workers) < self.settings.workers:
      self._fork()
    for worker in self.workers:
      if worker.cases or worker.retiring:
        continue
      cases = self._next_cases()
      if not cases:
        return
      numbers = json.dumps([case.number for case in cases]).encode()
      self.frames.append(wire.frame(ANSWER.pack(0, HANDED_OUT) + numbers))
      self._flush()  # before a case can end this process
      worker.give(cases, self.settings.timeout_s)

  def _next_cases(self) -> list[Case]:
    """Takes a worker's next cases from the queue; [] if it has to wait."""
    running = [w.cases[0] for w in self.workers if w.cases]
    if not self.queue or any(case.alone for case in running):
      return []
    if self.queue[0].alone:
      return [] if running else [self.queue.popleft()]
    share = len(self.queue) // (2 * self.settings.workers)
    # An idle worker reads the first case whole, whatever its size.
    cases, unread = [self.queue.popleft()], 0
    while self.queue and len(cases) < min(share, self.settings.chunk):
      unread += len(self.queue[0].data)
      if self.queue[0].alone or unread > MAX_UNREAD:
        break
      cases.append(self.queue.popleft())
    return cases


def main(fd: int):
  """Reads the settings, imports the reward, reports that, then serves."""
  sock = socket.socket(fileno=fd)
  try:
    settings = pickle.loads(wire.Reader(sock).only())
    for path in settings.files:
      resolve.load_file(path)
    reward = resolve.load(settings.build)(settings.reward)
  # A user's module may raise anything at import; the caller reports it.
  except Exception as e:
    problem = f'{type(e).__name__}: {e}'
    sock.sendall(wire.frame(json.dumps(problem).encode()))
    return
  gc.collect()
  gc.freeze()  # collections in workers then copy no page of the imports
  nursery = Nursery(sock, reward, settings)
  try:
    sock.sendall(wire.frame(json.dumps(None).encode()))
    nursery.run()
  except ConnectionError:
    pass  # the trainer was killed
  finally:
    nursery.close()
