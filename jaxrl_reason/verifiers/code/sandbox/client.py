"""Runs jobs in the sandbox: one zygote per process, one judge per job.

```
outcome = run({'program': ..., 'tests': [...], ...}, timeout_s=3.0, ...)
```
Any thread may call `run`; no signals are used. A judge enforces its own time
limit. If it does not reply for much longer, the zygote and all its processes
are killed.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading

from jaxrl_reason.verifiers.code.sandbox import folders, judge_process, zygote
from jaxrl_reason.verifiers.pool import interpreter, wire

# With `-m` the module would exist twice. -P adds no folder to the path.
START = f'from {zygote.__name__} import main; main({{}})'
FLAGS = ('-S', '-P', '-B')
# Folder of this package. An editable install may be on no path: only a finder
# locates it, which -S disables.
ROOT = __file__.removesuffix(f'{__name__.replace(".", os.sep)}.py')
LAYERS = ('own_uid', 'namespaces', 'landlock', 'seccomp')
LIBRARIES = ('/lib', '/lib64', '/usr/lib', '/usr/lib64')
SYSTEM = (*LIBRARIES, '/etc/ld.so.cache', '/etc/alternatives')
ZONES = ('/usr/share/zoneinfo', '/etc/localtime')
# The environment of a program. The seed fixes the order of sets of strings, and
# so the verdict.
ENVIRONMENT = {
  'LANG': 'C.UTF-8',
  'PYTHONHASHSEED': '0',
  **interpreter.ONE_THREAD,
}
START_S = 20.0
GRACE_S = 10.0  # wait for a judge after its own limits


class SandboxError(RuntimeError):
  """The sandbox failed, independently of the program."""


class Sandbox:
  """A zygote and the socket to it. `layers`: layers to use if they work."""

  def __init__(self, layers: tuple[str, ...] = LAYERS):
    self._lock = threading.Lock()
    # The zygote builds its new root on this folder, or creates the programs'
    # folders in it. The users of the programs must be able to enter it.
    self._folder = tempfile.mkdtemp(prefix='sandbox_')
    os.chmod(self._folder, 0o711)
    paths = [os.path.abspath(p or '.') for p in sys.path]
    self._process, self._control = interpreter.start(
      START,
      *FLAGS,
      env={**ENVIRONMENT, 'PYTHONPATH': os.pathsep.join([*paths, ROOT])},
      stdout=subprocess.DEVNULL,
      cwd='/',
    )
    self.report = self._greet(_settings(paths, layers, self._folder))
    if 'namespaces' in self.report['layers']:
      os.rmdir(self._folder)

  def _greet(self, settings: dict) -> dict:
    """Reads the zygote's message about its layers."""
    self._control.settimeout(START_S)
    try:
      self._control.sendall(wire.frame(json.dumps(settings).encode()))
      answer = wire.Reader(self._control).only()
    except OSError as e:
      answer, problem = None, f'{type(e).__name__}: {e}'
    else:
      problem = 'it ended at once; its messages are above'
    if answer is None:
      self.close()
      raise SandboxError(f'the sandbox cannot start: {problem}')
    self._control.settimeout(None)
    return json.loads(answer)

  def run(self, job: dict) -> dict:
    """Runs a job. Returns the judge's status, score, detail and overran."""
    nonce = secrets.token_hex(16)
    ours, theirs = socket.socketpair()
    limit = job['timeout_s']
    with contextlib.closing(ours):
      with contextlib.closing(theirs):
        self._hand_over(theirs)
      ours.settimeout(judge_process.STARVED * (limit + 1) + GRACE_S)
      try:
        payload = json.dumps({**job, 'nonce': nonce}).encode()
        ours.sendall(wire.frame(payload))
        return _answer(ours, nonce, limit)
      except TimeoutError:
        self.close()  # the next job starts a new zygote
        raise SandboxError('the judge does not answer') from None
      except OSError as e:
        raise SandboxError(f'the judge was lost: {e}') from e

  def _hand_over(self, fd: socket.socket):
    try:
      with self._lock:
        socket.send_fds(self._control, [b'j'], [fd.fileno()])
    except OSError as e:
      self.close()
      raise SandboxError(f'the sandbox was lost: {e}') from e

  @property
  def pid(self) -> int:
    return self._process.pid

  @property
  def alive(self) -> bool:
    return self._process.poll() is None

  def close(self):
    """Ends the zygote and all its processes."""
    with self._lock:
      self._control.close()
      try:
        self._process.wait(timeout=2 * zygote.CLOSE_S)
      except subprocess.TimeoutExpired:
        self._process.kill()
        self._process.wait()
      folders.remove(self._folder)


def _settings(paths: list[str], layers: tuple[str, ...], root: str) -> dict:
  """Returns the zygote's settings. Programs can read only libraries, not other
  folders of the caller.
  """
  names = ('stdlib', 'platstdlib', 'purelib', 'platlib')
  python = [sysconfig.get_path(name) for name in names]
  python += [os.path.join(sys.base_prefix, 'lib')]
  shared = []
  for path in sorted({*python, *SYSTEM, *ZONES}):
    if not any(path.startswith(f'{other}/') for other in shared):
      shared.append(path)
  inside = [
    p for p in paths if any(f'{p}/'.startswith(f'{s}/') for s in shared)
  ]
  return {'path': inside, 'shared': shared, 'layers': layers, 'folder': root}


def _answer(sock: socket.socket, nonce: str, limit: float) -> dict:
  """Returns the verdict with the nonce, or the reason why the judge ended."""
  for frame in wire.Reader(sock):
    answer = json.loads(frame)
    if answer.get('status') == 'error':
      raise SandboxError(answer['detail'])
    if answer.get('nonce') == nonce:
      return answer
    if 'ended' in answer:
      return _lost(answer['ended'], limit)
  raise SandboxError('the judge was lost')


def _lost(code: int, limit: float) -> dict:
  """Returns the result for a judge that the kernel stopped, because of the
  values of the program.
  """
  out_of_time = (-signal.SIGXCPU, -signal.SIGALRM)
  if code not in out_of_time:
    raise SandboxError(f'the judge ended with {code}')
  detail = f'timeout: over {limit:g} s, in a test'
  return {'status': 'parsed', 'score': 0.0, 'detail': detail, 'overran': True}


_lock = threading.Lock()
_shared: dict[int, Sandbox] = {}  # process id -> sandbox, because of forks


def processes() -> set[int]:
  """Returns the process ids of this process's sandbox."""
  sandbox = _shared.get(os.getpid())
  return set() if sandbox is None else {sandbox.pid}


def shared() -> Sandbox:
  """Returns this process's sandbox. Starts a new one if the last one ended."""
  with _lock:
    pid = os.getpid()
    sandbox = _shared.get(pid)
    if sandbox is None or not sandbox.alive:
      _shared.clear()
      sandbox = _shared[pid] = Sandbox()
    return sandbox
