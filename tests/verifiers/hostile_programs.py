"""Harmful programs for the tests of `verifiers.code`.

`ATTEMPTS` are single expressions that must fail in the sandbox; the program of
`attempting` names the ones that did not. `DRAINS` exhaust resources; they must
score 0, within the limits, and leave no files or processes.
"""

# Each of these must raise an exception in the sandbox.
ATTEMPTS = {
  'fork': 'os.fork()',
  'vfork': 'subprocess.run(["/bin/true"])',
  'posix_spawn': 'os.posix_spawn("/bin/sh", ["sh", "-c", "true"], {})',
  'exec': 'os.execv("/usr/bin/true", ["true"])',
  'system': 'os.system("true") and 1 / 0',
  'clone': 'raw(SYS["clone"], 17, 0, 0, 0, 0)',
  'clone3': 'raw(435, ctypes.byref(ctypes.create_string_buffer(88)), 88)',
  'tcp': 'socket.socket()',
  'unix socket': 'socket.socket(socket.AF_UNIX)',
  'netlink': 'socket.socket(16, 3, 0)',
  'kill everything': 'os.kill(-1, signal.SIGSTOP)',
  'stop the parent': 'parent(signal.SIGSTOP)',
  'kill the parent': 'parent(signal.SIGKILL)',
  'kill the zygote': 'os.kill(ZYGOTE, signal.SIGKILL)',
  'kill the caller': 'os.kill(CALLER, 0)',
  'stop its group': 'os.killpg(0, signal.SIGSTOP)',
  'pidfd of the caller': 'os.pidfd_open(CALLER)',
  'ptrace the caller': 'raw(SYS["ptrace"], 16, CALLER, 0, 0)',
  'read the memory of the caller': 'open(f"/proc/{CALLER}/mem", "rb").read(1)',
  'the environment of the caller': 'open(f"/proc/{CALLER}/environ").read()',
  'limits of the caller': (
    'resource.prlimit(CALLER, resource.RLIMIT_CORE, (0, 0))'
  ),
  'priority of the caller': 'os.setpriority(os.PRIO_PROCESS, CALLER, 19)',
  'affinity of the caller': 'os.sched_setaffinity(CALLER, {0})',
  'write beside the folder': 'open("../escaped", "w")',
  'write to /tmp': 'open(f"/tmp/escaped_from_{CALLER}", "w")',
  'write to shared memory': 'open(f"/dev/shm/escaped_from_{CALLER}", "w")',
  'write to its library': 'open(os.__file__ + "x", "w")',
  'write to the target': 'open(TARGET, "w")',
  'remove the target': 'os.remove(TARGET)',
  'read the target': 'open(TARGET).read()',
  'link to the target': 'open(os.symlink(TARGET, "l") or "l").read()',
  'read the password file': 'open("/etc/passwd").read()',
  'a large file': 'open("large", "wb").write(bytes(20 << 20))',
  'more memory': 'bytearray(600 << 20)',
  'its own limits': (
    'resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))'
  ),
  'root': 'os.setuid(0)',
  'mount': 'raw(SYS["mount"], b"x", b"/box", b"tmpfs", 0, None)',
  'unshare': 'raw(SYS["unshare"], 0x10000000)',
  'chroot': 'os.chroot("/")',
  'memfd': 'os.memfd_create("x")',
  'forget its parent': 'linux.call("prctl", 1, 0, 0, 0, 0)',
  'be readable': 'linux.call("prctl", 4, 1, 0, 0, 0)',
  'signals by fcntl': 'fcntl.fcntl(0, fcntl.F_SETOWN, CALLER)',
  'bpf': 'raw(SYS["bpf"], 0, 0, 0)',
  'io_uring': 'raw(425, 8, 0)',
}
_ATTEMPTING = """
import ctypes, fcntl, os, resource, signal, socket, subprocess
from jaxrl_reason.verifiers.pool import linux
CALLER, ZYGOTE, TARGET = {caller}, {zygote}, {target!r}
COLUMN = {{'x86_64': 0, 'aarch64': 1}}[os.uname().machine]
SYS = {{'clone': (56, 220), 'ptrace': (101, 117), 'mount': (165, 40),
        'unshare': (272, 97), 'bpf': (321, 280)}}
SYS = {{name: numbers[COLUMN] for name, numbers in SYS.items()}}
raw = linux.syscall
def parent(sig):
  if os.getppid() == 0:
    raise PermissionError('the parent has no number here')
  os.kill(os.getppid(), sig)

def f():
  succeeded = []
  for name, code in {attempts!r}.items():
    me = os.getpid()
    try:
      eval(code)
    except Exception:
      pass
    else:
      succeeded.append(name)
    if os.getpid() != me:
      os._exit(0)
  return succeeded
"""


def attempting(attempts: dict, **what) -> str:
  """Returns a program whose `f()` names the attempts that succeeded."""
  return _ATTEMPTING.format(attempts=attempts, **what)


DRAINS = {
  'a loop': 'def f(x):\n  while True: pass',
  'a loop at once': 'while True: pass',
  'sleep': 'import time\nf = lambda x: time.sleep(100)',
  'a fork bomb': """
import os
def f(x):
  while True:
    try: os.fork()
    except OSError: pass
""",
  'a fork bomb that stays quiet': """
import os, signal
def f(x):
  for number in range(1, 64):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
  for i in range(10):
    try:
      if os.fork() == 0:
        os.setsid()
        if os.fork():
          os._exit(0)
        while True: pass
    except OSError: pass
""",
  'a thread bomb': """
import threading, time
def f(x):
  while True:
    try: threading.Thread(target=time.sleep, args=(100,)).start()
    except (RuntimeError, MemoryError): pass
""",
  'threads that never end': """
import threading
def forever():
  while True: pass
for i in range(3): threading.Thread(target=forever).start()
f = lambda x: 0
""",
  'a memory bomb': """
def f(x):
  kept = []
  while True:
    try: kept.append(bytearray(1 << 20))
    except MemoryError: pass
""",
  'many files': """
def f(x):
  i = 0
  while True:
    i += 1
    try: open(f'{i}', 'w').write('x' * 100000)
    except OSError: pass
""",
  'open files': """
def f(x):
  kept = []
  while True:
    try: kept.append(open('a', 'w'))
    except OSError: pass
""",
  'output': """
def f(x):
  while True: print('x' * 100000)
""",
  'swallows signals': """
import signal
for number in range(1, 64):
  try: signal.signal(number, signal.SIG_IGN)
  except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
def f(x):
  while True: pass
""",
  'swallows exceptions': """
def f(x):
  while True:
    try:
      while True: pass
    except BaseException: pass
""",
  'stops itself': """
import os, signal
def f(x):
  os.kill(os.getpid(), signal.SIGSTOP)
  while True: pass
""",
  'one slow instruction': 'f = lambda x: 3 ** (10 ** 9)',
  'a slow expression': """
import re
f = lambda x: re.match('(a|a)*b', 'a' * 60)
""",
  'an answer that keeps the judge busy': 'f = lambda x: 1 << 62',
  'an answer that keeps the judge in one instruction': (
    'f = lambda x: 10 ** 9'
  ),
  'calls without end': """
def f(x):
  while True: x(1)
""",
}
