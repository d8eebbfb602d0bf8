"""Runs functions on hostile text in a process with limits of the kernel.

  call(function, request, seconds) --JSON--> process --JSON--> result

Neither the text nor a slow instruction can change the limits: the kernel ends
the process when a call has used up its CPU time, and refuses memory beyond the
bound before a value is built. A process serves one function of one caller, and
is started again after it has ended. Any thread may call.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from jaxrl_reason.verifiers.pool import interpreter, wire

PATIENCE_S = 120.0  # seconds without an answer before a process is ended
MAX_ANSWER = 1 << 28  # bytes


class Failed(ValueError):
  """The function raised an exception, or its process ended.

  Attributes:
    kind: name of the exception's class; '' if the process ended.
  """

  def __init__(self, kind: str, message: str):
    super().__init__(message)
    self.kind = kind


class Late(Failed):
  """The call used up its CPU time."""


@dataclasses.dataclass(frozen=True)
class Function:
  """A function of a JSON value that runs in its own process.

  Attributes:
    module, name: of the function; its imports are not limited.
    memory_mb: address space beyond that of the imports; on Linux only.
  """

  module: str
  name: str
  memory_mb: int

  def __call__(self, request: Any, seconds: float) -> Any:
    """Returns the function's result.

    Args:
      request: a JSON value.
      seconds: CPU time of the call.

    Raises:
      Late: the call took longer. Failed: it raised, or ended its process.
    """
    return _process(self).call(request, seconds)


class _Process:
  """The process of a function, and the socket to it."""

  def __init__(self, function: Function):
    self._function = function
    self._lock = threading.Lock()
    self._start()

  def _start(self):
    name = self._function.name
    code = f'from {__name__} import main; from {self._function.module} '
    code += f'import {name}; main({name}, {{}}, {self._function.memory_mb})'
    self._process, self._sock = interpreter.start(
      code, env=interpreter.environment()
    )
    self._sock.settimeout(PATIENCE_S)
    self._reader = wire.Reader(self._sock, MAX_ANSWER)

  @property
  def pid(self) -> int:
    return self._process.pid

  def call(self, request: Any, seconds: float) -> Any:
    payload = json.dumps([request, seconds]).encode()
    with self._lock:
      if self._process.poll() is not None:
        self._sock.close()
        self._start()
      try:
        self._sock.sendall(wire.frame(payload))
        answer = self._reader.only()
      except (TimeoutError, ValueError) as e:
        self._end()
        raise Failed('', f'its process does not answer: {e}') from e
      except OSError:  # it has ended; its status is read
        answer = None
      except BaseException:  # Ctrl-C: the next call would read this answer
        self._end()
        raise
      if answer is None:
        self._explain_end(seconds)
    status, content = json.loads(answer)
    if status != 'ok':
      raise Failed(status, content)
    return content

  def _explain_end(self, seconds: float):
    code = self._process.wait()
    if code == -signal.SIGPROF:
      raise Late('', f'still running after {seconds:g} s of CPU time')
    raise Failed('', f'its process ended with status {code}')

  def _end(self):
    self._process.kill()
    self._process.wait()


_lock = threading.Lock()
# (process id, function) -> its process; a fork of this process starts its own.
_processes: dict[tuple[int, Function], _Process] = {}


def processes() -> set[int]:
  """Returns the ids of this process's function processes."""
  here = [p for (pid, _), p in _processes.items() if pid == os.getpid()]
  return {process.pid for process in here}


def _process(function: Function) -> _Process:
  with _lock:
    key = os.getpid(), function
    if key not in _processes:
      _processes[key] = _Process(function)
    return _processes[key]


def require(module: str, remedy: str) -> None:
  """Raises ImportError if a module that the process needs is missing."""
  if importlib.util.find_spec(module) is None:
    raise ImportError(remedy)


# --- in the process ----------------------------------------------------------


@contextlib.contextmanager
def _timed(seconds: float):
  """Ends the process with SIGPROF after so many seconds of CPU time."""
  signal.setitimer(signal.ITIMER_PROF, seconds)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(function: Callable, request: Any, seconds: float) -> bytes:
  try:
    with _timed(seconds):
      return json.dumps(['ok', function(request)]).encode()
  # Hostile text may make the function raise anything; the caller reports it.
  except Exception as e:
    return json.dumps([type(e).__name__, f'{e}'[:1000]]).encode()


def limit_memory(memory_mb: int) -> None:
  """Bounds the address space beyond its size now; on Linux only."""
  if not sys.platform.startswith('linux'):
    return  # macOS accepts RLIMIT_AS and ignores it
  with open('/proc/self/statm') as f:
    used = int(f.read().split()[0]) * resource.getpagesize()
  limit, hard = (
    used + memory_mb * 2**20,
    resource.getrlimit(resource.RLIMIT_AS)[1],
  )
  if hard != resource.RLIM_INFINITY:
    limit = min(limit, hard)
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(function: Callable, fd: int, memory_mb: int) -> None:
  """Answers calls until the caller closes the socket."""
  sock = socket.socket(fileno=fd)
  signal.signal(signal.SIGPROF, signal.SIG_DFL)
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  limit_memory(memory_mb)
  for frame in wire.Reader(sock):
    sock.sendall(wire.frame(_answer(function, *json.loads(frame))))
