"""Rewards for the pool's tests; workers import this file by its path."""

import contextlib
import os
import signal
import socket
import stat
import sys
import threading
import time

from jaxrl_reason.verifiers.verdict import Verdict


def behave(completion: str, example: dict) -> float:
  """Behaves as the completion requests."""
  if completion == 'hang':
    while True:
      pass
  if completion == 'sleep':
    time.sleep(60)
  if completion == 'wait':
    time.sleep(0.1)
    return 1.0
  if completion == 'die':
    os._exit(3)
  if completion == 'eat':
    bytearray(10**10)
  if completion == 'raise':
    raise ValueError('a bad day')
  if completion == 'exit':
    sys.exit(1)
  if completion == 'spawn':
    os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', example['seconds'])
    time.sleep(60)
  if completion == 'nan':
    return float('nan')
  if completion == 'nothing':
    return None
  return float(completion == example['answer'])


def attack(completion: str, example: dict):
  """Attacks other processes as the completion requests."""
  if completion == 'kill parent':
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
  if completion == 'stop parent':
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(60)
  if completion == 'kill others':
    for pid in _children_of(os.getppid()):
      if pid != os.getpid():
        with contextlib.suppress(ProcessLookupError):
          os.kill(pid, signal.SIGKILL)
  if completion == 'fork':
    os.fork()
  if completion == 'end a child':
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
      os.write(theirs, b'started')
      time.sleep(60)
    os.read(ours, 7)
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
  if completion == 'leave a child':  # which keeps the worker's socket open
    if os.fork() == 0:
      if os.fork() == 0:
        os.setsid()
        time.sleep(20)
      os._exit(0)
    os.wait()
  if completion == 'end later':
    threading.Timer(0.02, os._exit, [1]).start()
  if completion == 'end, leave a child':
    if os.fork() == 0:
      time.sleep(20)
      os._exit(0)
    threading.Timer(0.02, os._exit, [1]).start()
  if completion == 'write later' and os.fork() == 0:
    for fd in _sockets():
      os.write(fd, b'\0\0\0\5hello')
    os._exit(0)
  if completion == 'write':
    for fd in _sockets():
      os.write(fd, b'\0\0\0\5hello' * 3)
  if completion == 'write much':
    for fd in _sockets():
      os.write(fd, b'\xff' * 64)
  if completion == 'text':
    return Verdict(1.0, extracted=Text('x'), detail=Text('y'))
  if completion == 'number':
    return Verdict(Number(1.0), parts={'p': Number(0.5)})
  if completion == 'deep':
    deep = []
    for _ in range(100_000):
      deep = [deep]
    return Verdict(1.0, detail=deep)
  time.sleep(0.005)
  return 1.0


class Text(str):
  """A str that runs code in a process that unpickles it."""

  def __reduce__(self):
    return os.mkdir, (os.environ['PICKLE_READ'],)


class Number(float):
  """A float that runs code in a process that unpickles it."""

  def __reduce__(self):
    return os.mkdir, (os.environ['PICKLE_READ'],)


def _children_of(pid: int) -> list[int]:
  with open(f'/proc/{pid}/task/{pid}/children') as f:
    return [int(p) for p in f.read().split()]


def _sockets() -> list[int]:
  fds = [int(fd) for fd in os.listdir('/proc/self/fd')]
  found = []
  for fd in fds:
    try:
      if stat.S_ISSOCK(os.fstat(fd).st_mode):
        socket.socket(fileno=os.dup(fd)).close()
        found.append(fd)
    except OSError:
      continue  # of the listing itself
  return found


def always_raises(completion: str, example: dict) -> float:
  raise KeyError('no such thing')


def jax_loaded(completion: str, example: dict) -> float:
  return float('jax' in sys.modules)


def pid(completion: str, example: dict) -> float:
  return float(os.getpid())


def grow(completion: str, example: dict) -> float:
  """Leaks 8 MB per case."""
  grow.kept.append(bytearray(8 * 2**20))
  return float(os.getpid())


grow.kept = []


def echo(completion: str, example: dict) -> float:
  time.sleep(example.get('sleep', 0.0))
  while 'after' in example and not os.path.exists(example['after']):
    time.sleep(0.01)
  return float(completion)


def scaled(completion: str, example: dict, *, by: float = 1.0) -> float:
  return by * float(completion)


def has_letter_a(completion: str, example: dict) -> float:
  return float('a' in completion)


def length(completion: str, example: dict) -> float:
  return float(len(completion))
