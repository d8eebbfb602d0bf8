"""Runs the zygote, a warm interpreter that forks a judge for every program.

  caller --a socket each--> zygote --fork--> judge --fork--> program

The zygote starts in a new interpreter, confines itself as far as the system
allows, and then only forks. No program, test or reply is ever in its memory, so
children cannot find any. When a judge ends, the zygote writes a last frame to
the judge's socket with the exit status. When the caller ends for any reason,
the zygote reads the end of its socket and stops. The kernel then kills the
judges, and with each judge its program (PR_SET_PDEATHSIG).
"""

import dataclasses
import functools
import gc
import importlib
import itertools
import json
import os
import resource
import select
import signal
import site
import socket
import sys
import tempfile
import time

from jaxrl_reason.verifiers.code.sandbox import (
  folders,
  judge_process,
  landlock,
  seccomp,
)
from jaxrl_reason.verifiers.pool import linux, procfs, wire

BOX = '/box'  # the program's folder if it has its own mounts
BOX_MB = 32
CLOSE_S = 2.0  # time for judges to end after the caller ended
DEVICES = ('/dev/null', '/dev/zero', '/dev/random', '/dev/urandom')
# Modules that programs often import. They are loaded once here.
WARM = (
  'array bisect calendar cmath collections.abc copy dataclasses datetime '
  'decimal enum fractions functools heapq itertools json math operator queue '
  'random re statistics string struct textwrap threading typing'
)


@dataclasses.dataclass
class Cell:
  """The layers that confine a program; docs/code_sandbox.md describes each."""

  layers: set[str]  # of 'own_uid', 'namespaces', 'landlock', 'seccomp'
  shared: list[str]  # files and folders that a program may read
  base_bytes: int  # address space of the interpreter
  uids: tuple[int, int] | None  # (first, number); None: no own uids
  proc: int | None = None  # descriptor of /proc, for the judge
  uid: int | None = None  # uid of this program; the judge has the next one
  folder: str | None = None  # folder of this program, unless it is BOX

  def has(self, layer: str) -> bool:
    return layer in self.layers

  def enter(self) -> str:
    """Enters namespaces for a judge's program; returns the program's folder."""
    if not self.has('namespaces'):
      return self.folder
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWPID)
    owner = os.getuid() if self.uid is None else self.uid
    linux.mount_box(BOX, owner, BOX_MB)
    return BOX

  @staticmethod
  def limit(name: str, value: int, slack: int = 0):
    """Sets a soft limit, and a hard limit `slack` above it, at most those of
    this process.
    """
    which = getattr(resource, name, None)
    # macOS ignores or refuses a limit of memory.
    if which is None or (name == 'RLIMIT_AS' and not linux.AVAILABLE):
      return
    hard = resource.getrlimit(which)[1]
    wanted = value + slack
    if hard != resource.RLIM_INFINITY:
      wanted = min(wanted, hard)
    resource.setrlimit(which, (min(value, wanted), wanted))


def main(fd: int):
  """Reads the settings, confines the process, reports its layers, and forks."""
  control = socket.socket(fileno=fd)
  settings = json.loads(wire.Reader(control).only())
  sys.path[:] = settings['path']
  for name in WARM.split():
    importlib.import_module(name)
  site.setquit()  # adds `exit` and `quit`, which -S omits
  for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, signal.SIG_IGN)  # the caller handles it
  cell = _build(settings)
  gc.collect()
  gc.freeze()  # so that collections in children do not copy these pages
  report = {'layers': sorted(cell.layers)}
  control.sendall(wire.frame(json.dumps(report).encode()))
  _Zygote(control, cell, settings['folder']).run()


def _build(settings: dict) -> Cell:
  """Builds the requested layers that this system allows."""
  wanted = set(settings['layers'])
  shared = [p for p in (*settings['shared'], *DEVICES) if os.path.exists(p)]
  cell = Cell(set(), shared, _address_space(), None)
  if not linux.AVAILABLE:
    return cell
  # Opened before the root changes. Judges read the CPU times of programs there.
  cell.proc = os.open('/proc', os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
  if 'own_uid' in wanted and os.geteuid() == 0:
    uids = linux.spare_uids()
    if uids is not None and _works(functools.partial(linux.become, uids[0])):
      cell.uids = uids
      cell.layers.add('own_uid')

  def change():
    return _change_root(cell, settings['folder'])

  def change_and_enter():
    change()
    cell.enter()

  if 'namespaces' in wanted and _works(change_and_enter):
    change()
  elif 'landlock' in wanted and landlock.version():
    cell.layers.add('landlock')
  if 'seccomp' in wanted and _works(_filter):
    cell.layers.add('seccomp')
  return cell


def _works(step) -> bool:
  """Tries a step in a child process, because some steps cannot be undone."""
  pid = os.fork()
  if pid == 0:
    code = 1
    try:
      step()
      code = 0
    except OSError:
      pass  # the system does not allow the step: exit code 1
    finally:
      os._exit(code)
  return os.waitpid(pid, 0)[1] == 0


def _change_root(cell: Cell, root: str):
  linux.enter_namespaces(own_user=cell.uids is None)
  linux.private_root(root, cell.shared, BOX)
  cell.layers.add('namespaces')


def _filter():
  if not seccomp.AVAILABLE:
    raise OSError(f'no filter for {linux.MACHINE}')
  linux.no_new_privileges()
  seccomp.install()


def _address_space() -> int:
  if not procfs.AVAILABLE:
    return 0
  with open('/proc/self/statm') as f:
    return int(f.read().split()[0]) * resource.getpagesize()


class _Zygote:
  """The loop over requests and ended judges."""

  def __init__(self, control: socket.socket, cell: Cell, folder: str):
    self.control, self.cell, self.folder = control, cell, folder
    self.cleaners: set[int] = set()  # children that remove a folder
    self.judges: dict[int, tuple[socket.socket, str | None]] = {}
    self.numbers = itertools.count()
    # An ended judge wakes the loop through this pair.
    self.wake, wakes = socket.socketpair()
    for end in (self.wake, wakes):
      end.setblocking(False)
    self.wakes = wakes
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *args: None)

  def run(self):
    while True:
      ready = select.select([self.control, self.wake], [], [])[0]
      if self.wake in ready:
        self.wake.recv(4096)
        self._reap()
      if self.control in ready and not self._accept():
        break
    self._close()

  def _accept(self) -> bool:
    try:
      data, fds, *_ = socket.recv_fds(self.control, 1, 1)
    except ConnectionError:
      return False
    if not data:
      return False
    self._fork(socket.socket(fileno=fds[0]))
    return True

  def _fork(self, caller: socket.socket):
    cell = dataclasses.replace(self.cell)
    if cell.uids is not None:
      first, count = cell.uids
      # Two uids per judge. A pid is unique among all zygotes of the machine.
      number = 64 * os.getpid() + 2 * (next(self.numbers) % 32)
      cell.uid = first + number % (count - 1)
    if not cell.has('namespaces'):
      cell.folder = tempfile.mkdtemp(prefix='program_', dir=self.folder)
    pid = os.fork()
    if pid == 0:
      signal.set_wakeup_fd(-1)
      signal.signal(signal.SIGTERM, signal.SIG_DFL)  # sent by `_close`
      for end in (self.control, self.wake, self.wakes):
        end.close()
      for other, _ in self.judges.values():
        other.close()
      judge_process.main(caller, cell)
    self.judges[pid] = caller, cell.folder

  def _close(self):
    """Stops the judges, which end their programs. The kernel kills the rest."""
    for pid in self.judges:
      os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + CLOSE_S
    while (self.judges or self.cleaners) and time.monotonic() < end:
      time.sleep(0.01)
      self._reap()
    for pid in self.cleaners:  # two that remove a folder disturb each other
      os.kill(pid, signal.SIGKILL)
      os.waitpid(pid, 0)
    if not self.cell.has('namespaces'):
      folders.remove(self.folder)  # the caller may have ended before

  def _reap(self):
    while self.judges or self.cleaners:
      pid, status = os.waitpid(-1, os.WNOHANG)
      if pid == 0:
        return
      if pid in self.cleaners:
        self.cleaners.remove(pid)
        continue
      caller, folder = self.judges.pop(pid)
      ended = json.dumps({'ended': os.waitstatus_to_exitcode(status)})
      try:
        caller.sendall(wire.frame(ended.encode()))
      except OSError:
        pass  # the caller closed the socket
      caller.close()
      if folder is not None:
        self._clean(folder)

  def _clean(self, folder: str):
    """Removes a program's folder, in a child process unless it is empty.

    A large folder would delay the next job.
    """
    try:
      return os.rmdir(folder)
    except OSError:
      pid = os.fork()
    if pid == 0:
      try:
        folders.remove(folder)
      finally:
        os._exit(0)
    self.cleaners.add(pid)
