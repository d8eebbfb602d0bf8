"""Runs a command with one fault, for test_faults.

Reads jobs from stdin, a JSON object a line: {workdir, n, what, command, args,
log}. The command is a module of jaxrl_reason: main, or evaluate. The
fault occurs at the n-th call that opens, lists, renames, makes or removes a
path in the workdir that contains `of`, in any thread, also of orbax. The
process then receives the signal `what`, or the call fails with the error
`what`. With n=0 there is no fault. With `hang`, the first dispatch, evaluation
or save (`where`) after that step never ends, as a stuck collective does not.

Each job is a process of its own. It is forked after the imports, which take
longer than a run. Its output is written to the file `log`. The reply is [exit
code, number of counted calls].
"""

import errno
import importlib
import json
import os
import signal
import sys
import threading
import time

LIMIT_S = 300  # a run takes seconds; after this limit a signal ends it
EVENTS = (
  'open os.rename os.mkdir os.remove os.rmdir os.listdir os.scandir '
  'os.truncate os.link'.split()
)


class Fault:
  """Counts the calls that a folder receives, and fails at the n-th one."""

  def __init__(self, workdir: str, n: int, what: str, of: str):
    self._workdir, self._n, self._what, self._of = workdir, n, what, of
    self.count, self._lock = 0, threading.Lock()

  def __call__(self, event: str, args: tuple) -> None:
    if event not in EVENTS or not args or not isinstance(args[0], (str, bytes)):
      return
    path = os.fsdecode(args[0])
    if not path.startswith(self._workdir) or self._of not in path:
      return
    with self._lock:
      self.count += 1
      if self.count != self._n:
        return
    if self._what.startswith('SIG'):
      os.kill(os.getpid(), signal.Signals[self._what])
    else:
      code = getattr(errno, self._what)
      raise OSError(code, os.strerror(code), args[0])


def hang_after(step: int, where: str) -> None:
  from jaxrl_reason.hosts import peers
  from jaxrl_reason.run import evaluator, loop, train

  owner, name = {
    'dispatch': (loop.Loop, 'dispatch'),
    'evaluation': (evaluator.Evaluator, '__call__'),
    'save': (train.manager.Checkpoints, 'save'),
  }[where]
  before = getattr(owner, name)

  def hangs_here(*args, **kwargs):
    while peers.standing['step'] == step:
      time.sleep(1)
    return before(*args, **kwargs)

  setattr(owner, name, hangs_here)


def run(job: dict) -> None:
  """Ends this process as the command does."""
  from jaxrl_reason.checkpoints import files

  command = importlib.import_module(f'jaxrl_reason.{job["command"]}')
  out = os.open(job['log'], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
  os.dup2(out, 1)
  os.dup2(out, 2)
  files.WAITS_S = (0.01, 0.02)
  signal.alarm(LIMIT_S)
  if job['hang']:
    hang_after(job['hang'], job['where'])
  fault = Fault(job['workdir'], job['n'], job['what'], job['of'])
  sys.addaudithook(fault)
  code = 0
  try:
    command.main(job['args'])
  except SystemExit as e:
    code = e.code or 0
  finally:
    sys.stderr.flush()
    with open(job['log'] + '.count', 'w') as f:
      f.write(str(fault.count))
  # As the interpreter does at exit: orbax may print messages.
  sys.exit(code)


def serve() -> None:
  # tensorboardX would import torch if it is installed, which takes seconds.
  sys.modules['torch'] = None
  import tensorboardX  # noqa: F401

  from jaxrl_reason.reports import plots
  from jaxrl_reason.run import train  # noqa: F401

  plots.save = lambda workdir: 'not drawn'  # drawing takes seconds
  for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
      run(job)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps(code), flush=True)


if __name__ == '__main__':
  serve()
