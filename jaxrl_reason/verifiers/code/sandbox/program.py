"""Runs the judged program in its own confined process.

The process is forked from the zygote, which never reads a test, and receives
only the program. A module is loaded and serves calls (`peer`); a script reads
its input and prints. Tests, expected values and verdicts are not in the memory
of this process, and it has no access to them.
"""

import atexit
import json
import linecache
import os
import resource
import socket
import sys
import tempfile
import threading
import types

from jaxrl_reason.verifiers.code.sandbox import (
  landlock,
  operations,
  peer,
  seccomp,
)
from jaxrl_reason.verifiers.pool import linux, wire

MODULE, SCRIPT = 'solution', '__main__'
MAX_FILE_MB = 16
MAX_FILES, MAX_THREADS = 64, 64


def main(link: socket.socket, output: int, cell):
  """Runs the program and exits. `cell` has the layers of this process."""
  code = 1
  try:
    # First close the judge's ends of the sockets. Otherwise this process would
    # not notice the judge's end.
    _keep_only(link.fileno(), output)
    frames = iter(wire.Reader(link))
    setup = json.loads(next(frames))
    try:
      _connect(setup, output)
      _shut_in(setup, cell)
    except (OSError, ValueError) as e:
      link.sendall(wire.frame(f'{type(e).__name__}: {e}'.encode()))
      return
    link.sendall(wire.frame(b''))
    program = next(frames).decode('utf-8', 'surrogatepass')
    if setup['stdin'] is None:
      _serve(program, link, frames)
    else:
      code = _run_script(program)
  finally:
    os._exit(code)


def _connect(setup: dict, output: int):
  """Connects standard input, output and error."""
  null = os.open(os.devnull, os.O_RDWR)
  if setup['stdin'] is None:
    os.dup2(null, 0)
    os.dup2(null, 1)
  else:
    with tempfile.TemporaryFile(dir=setup['folder']) as f:
      f.write(setup['stdin'].encode('utf-8', 'surrogatepass'))
      f.flush()
      os.dup2(f.fileno(), 0)
    os.lseek(0, 0, os.SEEK_SET)
    os.dup2(output, 1)
  os.dup2(null, 2)
  os.close(output)
  os.close(null)


def _keep_only(*fds: int):
  """Closes all descriptors except these and standard input, output and
  error.
  """
  start = 3
  for fd in sorted(fds):
    os.closerange(start, fd)
    start = fd + 1
  os.closerange(start, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _shut_in(setup: dict, cell):
  os.setsid()
  os.environ.clear()
  folder = setup['folder']
  os.environ.update(HOME=folder, TMPDIR=folder, PATH='', LANG='C.UTF-8')
  tempfile.tempdir = folder
  if cell.uid is not None:
    os.chown(folder, cell.uid, cell.uid)
  os.chdir(folder)
  _limit(setup, cell)
  if not linux.AVAILABLE:
    return
  linux.no_new_privileges()
  keep = 0
  if cell.has('landlock'):
    landlock.restrict(cell.shared, [folder, os.devnull])
    # Python may be installed in a folder that only root can read, such as
    # /root. Landlock still restricts reading.
    keep = 1 << linux.CAP_DAC_READ_SEARCH if cell.has('seccomp') else 0
  if cell.uid is not None:
    linux.become(cell.uid, keep=keep)
  else:
    linux.set_capabilities()
  linux.undumpable()
  linux.die_with_parent()
  if cell.has('seccomp'):
    seccomp.install()


def _limit(setup: dict, cell):
  """Sets hard limits, at most those of this process."""
  cpu_s = setup['cpu_s']
  wanted = {
    'RLIMIT_CORE': 0,
    'RLIMIT_CPU': cpu_s,
    'RLIMIT_FSIZE': MAX_FILE_MB << 20,
    'RLIMIT_NOFILE': MAX_FILES,
    'RLIMIT_MEMLOCK': 0,
    'RLIMIT_MSGQUEUE': 0,
    'RLIMIT_AS': cell.base_bytes + (setup['memory_mb'] << 20),
  }
  # RLIMIT_NPROC counts all processes of a user, so it needs an own uid. Without
  # one, the filter forbids new processes, and memory bounds the threads.
  if cell.uid is not None or cell.has('namespaces') or not cell.has('seccomp'):
    wanted['RLIMIT_NPROC'] = MAX_THREADS
  for name, value in wanted.items():
    cell.limit(name, value)


def _load(program: str, name: str) -> types.ModuleType:
  """Loads the module into `sys.modules`, for dataclasses and pickle."""
  program = program.removeprefix('\ufeff')  # the mark at the start of a file
  module = types.ModuleType(name)
  sys.modules[name] = module
  module.__file__ = path = f'{name}.py'
  lines = program.splitlines(keepends=True)
  linecache.cache[path] = len(program), None, lines, path  # for `inspect`
  exec(compile(program, path, 'exec'), module.__dict__)
  return module


def _serve(program: str, link: socket.socket, frames):
  """Serves requests for the module's names. 'load' returns its first error."""
  module = None

  def load():
    nonlocal module
    module = _load(program, MODULE)

  def get(name: str):
    try:
      return module.__dict__[name]
    except KeyError:
      raise NameError(f'the program defines no {name!r}') from None

  io = operations.Watch()
  own = {'get': get, 'load': load, 'watch': io.watch, 'seen': io.seen}
  own |= operations.OPERATIONS
  end = peer.Peer(link, frames, operations=own, exports=lambda x: True)
  end.serve()


def _run_script(program: str) -> int:
  """Runs a script as `python program.py` does and returns its exit code."""
  sys.stdin = open(0, encoding='utf-8', errors='surrogatepass')
  sys.stdout = open(1, 'w', encoding='utf-8', errors='surrogatepass')
  sys.argv = ['program.py']
  code = 0
  try:
    _load(program, SCRIPT)
    threading._shutdown()
    atexit._run_exitfuncs()
  except SystemExit as e:
    code = e.code if isinstance(e.code, int) else int(e.code is not None)
    atexit._run_exitfuncs()
  # Any other exception is a crash.
  except BaseException:
    code = 1
  sys.stdout.flush()
  return code & 0xFF
