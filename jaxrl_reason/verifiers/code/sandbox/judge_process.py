"""Runs the judge of one program, a process between caller and program.

  caller --job--> judge --program, calls--> program process
  caller <--verdict-- judge                 (forked before the job arrives)

The judge runs the tests or compares the output, enforces the time limit, and
kills the program process and all its children. Then it writes the verdict, with
the caller's nonce, to a socket that the program process does not have.
"""

import json
import math
import os
import signal
import socket
import time

from jaxrl_reason.verifiers.code import output
from jaxrl_reason.verifiers.code.sandbox import asserts, peer, program
from jaxrl_reason.verifiers.pool import linux, procfs, wire

MAX_ANSWER = 32 << 20  # bytes of one reply of the program
MAX_PRINTED = 16 << 20  # bytes of standard output
TICK = 0.25  # time between checks after the limit, as a share of the limit
SWEEP_S = 5.0  # limit for ending the program's processes
# A program that waits for a core has up to this many limits, as pool workers
# do.
STARVED = 4
ENOUGH = 0.9  # share of the limit in CPU time that counts as the full limit


class Failed(Exception):
  """The sandbox failed, independently of the program."""


def main(caller: socket.socket, cell):
  """Writes a frame of JSON (nonce, score, status, detail, ...) and exits."""
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
    # With its own uid, the program cannot affect the judge. CAP_KILL lets the
    # judge kill the program.
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
  """Limits the judge itself, since values of the program can exhaust tests."""
  spare_mb = 4 * (MAX_ANSWER >> 20)  # to read and compare a reply
  # The soft limit sends a signal that identifies the cause. The timer is
  # usually earlier, but does not interrupt a long instruction.
  cell.limit('RLIMIT_CPU', math.ceil(limit) + 1, slack=2)
  cell.limit('RLIMIT_AS', cell.base_bytes + (memory_mb + spare_mb << 20))


def _parse(job: dict) -> asserts.Plan:
  try:
    return asserts.parse(job)
  except (SyntaxError, ValueError, ImportError, RecursionError) as e:
    raise Failed(f'the tests: {type(e).__name__}: {e}') from e


class _Clock:
  """Raises `peer.Overrun` at the limit, or later on a busy machine.

  While the program or the test waits for a core, the limit is extended until
  they have had their CPU time, up to four limits.
  """

  def __init__(self, limit: float, child):
    self.limit, self.child = limit, child

  def start(self):
    signal.signal(signal.SIGALRM, self._tick)
    signal.signal(signal.SIGTERM, self._stop)
    self.end = time.monotonic() + STARVED * self.limit
    # The timer repeats, because a handler of the tests may catch an Overrun.
    signal.setitimer(signal.ITIMER_REAL, self.limit, TICK * self.limit)

  def stop(self):
    signal.setitimer(signal.ITIMER_REAL, 0)

  def _stop(self, *args):
    """Ends the program when the zygote ends."""
    raise peer.Overrun

  def _tick(self, *args):
    state, cpu_s = self.child.usage()
    wants = state == 'R' or not self.child.peer.waiting
    starves = wants and cpu_s + time.process_time() < ENOUGH * self.limit
    if not starves or time.monotonic() > self.end:
      raise peer.Overrun


class _Child:
  """The program process, forked before the judge reads the job."""

  def __init__(self, cell):
    self.link, theirs = socket.socketpair()
    self.frames = iter(wire.Reader(self.link, MAX_ANSWER))
    self.peer = peer.Peer(
      self.link, self.frames, operations={}, exports=callable
    )
    self.output, output_end = os.pipe()
    self.cell, self.folder = cell, cell.enter()
    self.status = None  # exit code, or -signal
    self.printed = bytearray()
    self.ended = None  # reason why a program with captured output failed
    self.pid = os.fork()
    if self.pid == 0:
      program.main(theirs, output_end, cell)
    theirs.close()
    os.close(output_end)

  def prepare(self, job: dict):
    """Confines the process and sends it the program."""
    setup = {
      'stdin': job['stdin'],
      'memory_mb': job['memory_mb'],
      # The kernel's limit is a fallback: the clock is earlier.
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
    """Returns at most `most` bytes of output."""
    if not most:
      return {}
    text = bytes(self.printed[:most]).decode('utf-8', 'replace')
    return {'printed': text, 'ended': self.ended}

  def wait(self):
    """Waits until the process ends and closes the link. Ignores its
    messages.
    """
    try:
      while self.link.recv(1 << 16):
        continue
    except ConnectionError:
      return

  def kill(self):
    """Kills the process and all its descendants, also detached ones.

    In a process namespace, the kernel kills them. Otherwise orphans become
    children of this process, a subreaper, which kills them one by one.
    """
    if self.status is not None:
      return
    for pid in (-self.pid, self.pid):
      try:
        os.kill(pid, signal.SIGKILL)
      except (ProcessLookupError, PermissionError):
        continue  # no such group yet; on macOS also a zombie
    self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
    if not procfs.end_children(SWEEP_S, proc=self.cell.proc):
      raise Failed('processes of the program do not end')


def _by_asserts(child: _Child, job: dict, tally: asserts.Tally):
  try:
    child.peer.ask('load')
    asserts.run(child.peer, job, tally)
  # The program did not load, or ended, or has no such function.
  except (Exception, SystemExit) as e:
    tally.note(e)


def _by_output(child: _Child, job: dict, tally: asserts.Tally):
  """Compares the output of a script, which must exit with status 0."""
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
