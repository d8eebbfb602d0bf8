"""The judge of one program: a process between the caller and the program.

  caller --job--> judge --program, calls--> program process
  caller <--verdict-- judge                 (forked before the job arrives)

It runs the tests or compares the output, keeps the time, kills the program
process and all that it started, and only then writes the verdict, with the
caller's nonce, into a socket that the program process does not have.
"""

import json
import math
import os
import signal
import socket
import time

from jaxrl_reason.verifiers.code import output
from jaxrl_reason.verifiers.code.sandbox import asserts, linux, peer, program
from jaxrl_reason.verifiers.pool import procfs, wire

MAX_ANSWER = 32 << 20  # bytes of one answer of the program
MAX_PRINTED = 16 << 20  # bytes on its standard output
TICK = 0.25  # of the limit, between two looks once it is reached
SWEEP_S = 5.0  # to end what a program left behind, before we give up
# As for the pool's workers: one that waits for a core gets up to so many.
STARVED = 4
ENOUGH = 0.9  # of the limit in CPU time: it had what it was promised


class Failed(Exception):
  """Our own machinery: the program is not to blame."""


def main(caller: socket.socket, cell):
  """Writes a frame of JSON (nonce, score, status, detail, ...); never
  returns.
  """
  try:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
      answer = _judge(caller, cell)
    except (Failed, OSError, MemoryError) as e:
      answer = {'status': 'error', 'detail': f'{type(e).__name__}: {e}'}
    caller.sendall(wire.frame(json.dumps(answer).encode()))
  finally:
    os._exit(0)


def _judge(caller: socket.socket, cell) -> dict:
  if linux.AVAILABLE:
    linux.adopt_orphans()
  child = _Child(cell)
  if cell.uid is not None:
    # Its own uid, so that the program cannot touch it; it can kill a program.
    linux.become(cell.uid + 1, keep=1 << linux.CAP_KILL)
  if linux.AVAILABLE:
    linux.undumpable()
    linux.die_with_parent()
  job = json.loads(wire.Reader(caller).only())
  nonce = job.pop('nonce')
  limit = job['timeout_s']
  _limit_self(limit, job['memory_mb'], cell)
  if job['stdin'] is None:
    job['plan'] = _parse(job)
  child.prepare(job)
  clock = _Clock(limit, child)
  tally = asserts.Tally()
  run = _by_output if job['stdin'] is not None else _by_asserts
  overran = False
  try:
    clock.start()
    run(child, job, tally)
    clock.stop()
  except peer.Overrun:
    clock.stop()
    overran, tally.finished = True, False
    tally.problem = f'timeout: over {limit:g} s'
  child.kill()
  if tally.undecided and not overran:
    raise Failed(tally.undecided)
  return {
    'nonce': nonce,
    'status': 'parsed',
    'score': tally.score(fraction=job['fraction']),
    'detail': tally.problem,
    'overran': overran,
    **child.shown(job.get('shows', 0)),
  }


def _limit_self(limit: float, memory_mb: int, cell):
  """Test code can be led astray by what the program returns."""
  spare_mb = 4 * (MAX_ANSWER >> 20)  # to read an answer and to compare it
  # First the signal that tells the caller why; the timer should be earlier,
  # but does not interrupt one long instruction.
  cell.limit('RLIMIT_CPU', math.ceil(limit) + 1, slack=2)
  cell.limit('RLIMIT_AS', cell.base_bytes + (memory_mb + spare_mb << 20))


def _parse(job: dict) -> asserts.Plan:
  try:
    return asserts.parse(job)
  except (SyntaxError, ValueError, ImportError, RecursionError) as e:
    raise Failed(f'the tests: {type(e).__name__}: {e}') from e


class _Clock:
  """Raises `peer.Overrun` at the limit, or later on a busy machine.

  Later while the program, or the test that it does not keep waiting, would
  run if it got a core: until they had their time, or four limits are over.
  """

  def __init__(self, limit: float, child):
    self.limit, self.child = limit, child

  def start(self):
    signal.signal(signal.SIGALRM, self._tick)
    signal.signal(signal.SIGTERM, self._stop)
    self.end = time.monotonic() + STARVED * self.limit
    # It goes on: one Overrun may hit a handler of the tests.
    signal.setitimer(signal.ITIMER_REAL, self.limit, TICK * self.limit)

  def stop(self):
    signal.setitimer(signal.ITIMER_REAL, 0)

  def _stop(self, *args):
    """The zygote goes: there is a program to end first."""
    raise peer.Overrun

  def _tick(self, *args):
    state, cpu_s = self.child.usage()
    wants = state == 'R' or not self.child.peer.waiting
    starves = wants and cpu_s + time.process_time() < ENOUGH * self.limit
    if not starves or time.monotonic() > self.end:
      raise peer.Overrun


class _Child:
  """The program process, forked before this one knows anything."""

  def __init__(self, cell):
    self.link, theirs = socket.socketpair()
    self.frames = iter(wire.Reader(self.link, MAX_ANSWER))
    self.peer = peer.Peer(
      self.link, self.frames, operations={}, exports=callable
    )
    self.output, output_end = os.pipe()
    self.cell, self.folder = cell, cell.enter()
    self.status = None  # its exit code, or minus its signal
    self.printed = bytearray()
    self.ended = None  # why a program whose output is shown did, if not well
    self.pid = os.fork()
    if self.pid == 0:
      program.main(theirs, output_end, cell)
    theirs.close()
    os.close(output_end)

  def prepare(self, job: dict):
    """Shuts it in and hands it the program, and nothing else."""
    setup = {
      'stdin': job['stdin'],
      'memory_mb': job['memory_mb'],
      # Kernel's own limit, should all else fail; the clock comes first.
      'cpu_s': math.ceil(job['timeout_s']) + 1,
      'folder': self.folder,
    }
    self.link.sendall(wire.frame(json.dumps(setup).encode()))
    answer = next(self.frames, None)
    if answer != b'':
      raise Failed(f'the program process cannot be shut in: {answer}')
    text = job['program'].encode('utf-8', 'surrogatepass')
    self.link.sendall(wire.frame(text))

  def usage(self) -> tuple[str, float]:
    return procfs.usage(self.pid, proc=self.cell.proc)

  def shown(self, most: int) -> dict[str, str | None]:
    """Returns the output for a caller who asked for so many bytes of it."""
    if not most:
      return {}
    text = bytes(self.printed[:most]).decode('utf-8', 'replace')
    return {'printed': text, 'ended': self.ended}

  def wait(self):
    """Until it ends: it holds the link. What it writes there means nothing."""
    try:
      while self.link.recv(1 << 16):
        continue
    except ConnectionError:
      return

  def kill(self):
    """Ends it and all it started, whatever they did to be forgotten.

    In a namespace of processes the kernel does that. Elsewhere orphans become
    children of this process, a subreaper, which ends them one by one.
    """
    if self.status is not None:
      return
    for pid in (-self.pid, self.pid):
      try:
        os.kill(pid, signal.SIGKILL)
      except (ProcessLookupError, PermissionError):
        continue  # no such group yet; on macOS also for a zombie
    self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
    end = time.monotonic() + SWEEP_S
    while time.monotonic() < end:
      orphans = procfs.children(os.getpid(), proc=self.cell.proc)
      if not orphans:
        return
      for pid in orphans:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    raise Failed('processes of the program do not end')


def _by_asserts(child: _Child, job: dict, tally: asserts.Tally):
  try:
    child.peer.ask('load')
    asserts.run(child.peer, job, tally)
  # The program did not load, or ended, or has no such function.
  except Exception as e:
    tally.note(e)


def _by_output(child: _Child, job: dict, tally: asserts.Tally):
  """Reads all it prints; it must end by itself, without a crash."""
  tally.statements = 1
  printed = child.printed
  while data := os.read(child.output, 1 << 16):
    printed += data
    if len(printed) > MAX_PRINTED:
      tally.problem = child.ended = f'over {MAX_PRINTED} bytes of output'
      return
  child.wait()
  child.kill()
  if child.status:
    child.ended = f'the program ended with status {child.status}'
    tally.problem = child.ended
  elif not output.same(printed.decode('utf-8', 'replace'), job['expected']):
    tally.problem = 'the output differs'
  tally.held[0] = tally.problem is None
  tally.finished = True
