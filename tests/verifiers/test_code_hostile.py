"""Programs that cheat, break out, exhaust resources or leave things behind.

The tests run in every mode that this system allows: from all layers to only a
uid of its own (`bare`, for kernels that offer no other layer).
"""

import glob
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time

import forgeries
import hostile_programs as hostile
import pytest
from waiting import eventually

import jaxrl_reason
from jaxrl_reason.verifiers import code, pool
from jaxrl_reason.verifiers.code.sandbox import client
from jaxrl_reason.verifiers.pool import procfs

pytestmark = pytest.mark.skipif(
  not procfs.AVAILABLE, reason='the tests look for harm through /proc'
)
MODES = {
  'all': client.LAYERS,
  'own user': ('namespaces', 'seccomp'),
  'no namespaces': ('own_uid', 'landlock', 'seccomp'),
  'bare': ('own_uid',),
}
# If a program runs as root without a uid of its own, becoming root is no
# attack.
ROOT_ALREADY = {'root'} if os.getuid() == 0 else set()
QUICK = {
  'a loop',
  'a fork bomb',
  'a fork bomb that stays quiet',
  'stops itself',
}
QUICK |= {'swallows signals', 'threads that never end'}
NEVER = ['assert f(lambda x: x) == 5']
LED_ASTRAY = {
  'an answer that keeps the judge busy': 'for i in range(f(0)): pass',
  'an answer that keeps the judge in one instruction': '3 ** f(0)',
}


@pytest.fixture(scope='module')
def sandboxes():
  made = {}
  yield made
  for sandbox in made.values():
    sandbox.close()


def open_sandbox(made: dict, mode: str) -> client.Sandbox:
  if mode not in made:
    made[mode] = client.Sandbox(MODES[mode])
  layers = set(made[mode].report['layers'])
  if mode != 'all' and layers != set(MODES[mode]):
    pytest.skip(f'this system gives {sorted(layers)}')
  return made[mode]


@pytest.fixture(params=MODES)
def sandbox(request, sandboxes):
  return open_sandbox(sandboxes, request.param)


@pytest.fixture
def full(sandboxes):
  return open_sandbox(sandboxes, 'all')


def left_behind(sandbox: client.Sandbox) -> list[int]:
  """Returns processes of the zygote, by parent or by its uids."""
  zygote = sandbox._process.pid
  found = procfs.children(zygote)
  for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
      uid = os.stat(f'/proc/{pid}').st_uid
      with open(f'/proc/{pid}/status') as f:
        uid = int(re.search(r'^Uid:\s+(\d+)', f.read(), re.M)[1])
    except (FileNotFoundError, ProcessLookupError):
      continue
    if uid >= 2**31 and (uid - (2**32 - 1) // 2) // 64 == zygote:
      found.append(int(pid))
  return [pid for pid in found if alive(pid)]


def alive(pid: int) -> bool:
  return procfs.usage(pid)[0] not in 'Z?X'  # dead ones wait for their parent


def nothing_left(sandbox) -> bool:
  return eventually(lambda: not left_behind(sandbox))


def score(program, tests, sandbox, **limits) -> float:
  found = code.run_tests(
    program, tests, entry_point='f', sandbox=sandbox, **limits
  )
  assert found.status == 'parsed', found.detail
  return found.score


@pytest.mark.parametrize('name', forgeries.FORGERIES)
def test_a_forgery_scores_nothing(full, name):
  limits = {'timeout_s': 0.4, 'memory_mb': 128}
  program = forgeries.FORGERIES[name]
  assert score(program, forgeries.TESTS, full, **limits) == 0.0


def test_clever_forgeries_score_nothing_in_any_mode(sandbox):
  for name in forgeries.CLEVER:
    program = forgeries.FORGERIES[name]
    # The tests are also scored one by one, except the last one, which `None`
    # passes.
    tests = forgeries.TESTS[:-1]
    assert score(program, tests, sandbox, score='fraction') == 0.0, name
    pairs = [('1\n', forgeries.SECRET)]
    assert score(program + '\nprint(f(1))', pairs, sandbox) == 0.0, name
  assert score(forgeries.HONEST, forgeries.TESTS, sandbox) == 1.0


def test_the_search_for_tests_finds_planted_texts(full):
  """Otherwise an empty search would prove nothing."""
  secret = repr(forgeries.SECRET)
  assert (
    score(forgeries.HUNTER, [f'assert f({secret}) == {secret}'], full) == 1.0
  )
  kept = f'KEPT = {secret}\n' + forgeries.HUNTER
  assert score(kept, [f'assert f(0) == {secret}'], full) == 1.0


def test_earlier_tests_and_programs_leave_no_trace(full):
  """The zygote is the ancestor of all programs, so it must not read any of
  them.
  """
  for _ in range(3):
    score(forgeries.HONEST, forgeries.TESTS, full)
    score('print(1)', [(forgeries.SECRET, forgeries.SECRET)], full)
  found = f'assert f(0) == {forgeries.SECRET!r}'
  assert score(forgeries.HUNTER, [found], full) == 0.0


def test_no_attempt_to_break_out_succeeds(sandbox, tmp_path):
  layers = sandbox.report['layers']
  if 'seccomp' not in layers or not {'namespaces', 'landlock'} & set(layers):
    pytest.skip('these need a filter and a file system of their own')
  target = tmp_path / 'target'
  target.write_text('mine')
  for path in (target, *target.parents[:3]):  # pytest's own folders
    path.chmod(0o777)  # file permissions must not be the protection
  program = hostile.attempting(
    {k: v for k, v in hostile.ATTEMPTS.items() if k not in exempt(layers)},
    caller=os.getpid(),
    zygote=sandbox._process.pid,
    target=str(target),
  )
  succeeded = code.run_tests(
    program, ['raise ValueError(f())\nassert f'], sandbox=sandbox
  )
  assert succeeded.detail == 'ValueError: []'
  assert target.read_text() == 'mine'
  assert nothing_left(sandbox)
  for folder in ('/tmp', '/dev/shm'):
    assert not os.path.exists(f'{folder}/escaped_from_{os.getpid()}')


def exempt(layers) -> set[str]:
  return ROOT_ALREADY if 'own_uid' not in layers else set()


def test_attempts_outside_a_sandbox_do_succeed(tmp_path):
  """Otherwise their failure inside would prove nothing."""
  target = tmp_path / 'target'
  target.write_text('mine')
  names = ('tcp', 'unix socket', 'fork', 'read the target', 'system', 'memfd')
  names += ('write to the target', 'read the password file', 'kill the caller')
  names += ('a large file', 'be readable', 'clone')
  program = hostile.attempting(
    {name: hostile.ATTEMPTS[name] for name in names},
    caller=os.getpid(),
    zygote=0,
    target=str(target),
  )
  shown = subprocess.run(
    [sys.executable, '-c', program + '\nprint(*f(), sep="\\n")'],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
  )
  assert set(names) <= set(shown.stdout.splitlines()), shown


@pytest.mark.parametrize('name', hostile.DRAINS)
def test_an_exhausting_program_ends_at_its_limit_and_leaves_nothing(full, name):
  drain(full, name)


def test_the_most_exhausting_programs_in_every_mode(sandbox):
  for name in sorted(QUICK):
    drain(sandbox, name)


def drain(sandbox, name: str):
  tests = [LED_ASTRAY[name], *NEVER] if name in LED_ASTRAY else NEVER
  start = time.monotonic()
  found = code.run_tests(
    hostile.DRAINS[name], tests, sandbox=sandbox, timeout_s=0.2, memory_mb=128
  )
  assert (found.score, found.status) == (0.0, 'parsed'), found
  # Allows four time limits on a busy machine, and the search for processes of
  # the mode `bare`.
  assert time.monotonic() - start < 10, name
  assert nothing_left(sandbox), name


def test_output_of_a_program_is_limited(full):
  program = 'while True: print("x" * 100000)'
  found = code.run_tests(program, [('', 'x')], sandbox=full, timeout_s=10)
  assert found.score == 0.0 and 'bytes of output' in found.detail


def test_a_folder_of_its_own_empty_and_gone_afterwards(sandbox):
  program = (
    'import os, tempfile\n'
    'def f():\n'
    '  seen = os.listdir()\n'
    '  open("a", "w").write("x"); tempfile.mkstemp()\n'
    '  return seen, os.getcwd(), len(os.listdir())'
  )
  test = 'assert f()[0] == [] and f()[2] >= 2'
  for _ in range(2):
    assert score(program, [test], sandbox) == 1.0
  show = 'raise ValueError(f()[1])\nassert f'
  folder = code.run_tests(program, [show], sandbox=sandbox).detail.split()[-1]
  assert folder.startswith('/') and nothing_left(sandbox)
  assert eventually(lambda: not os.path.exists(folder))


@pytest.mark.parametrize('mode', MODES)
def test_closing_ends_running_programs_and_removes_their_folders(mode):
  made = {}
  sandbox = open_sandbox(made, mode)
  jobs = [
    threading.Thread(
      target=code.run_tests,
      args=('while True: pass', NEVER),
      kwargs={'sandbox': sandbox, 'timeout_s': 60},
    )
    for _ in range(3)
  ]
  for job in jobs:
    job.start()
  # Some are in a loop, others may not have started.
  assert eventually(lambda: len(left_behind(sandbox)) >= 3)
  sandbox.close()
  for job in jobs:
    job.join(timeout=60)
    assert not job.is_alive()
  assert nothing_left(sandbox)
  assert not os.path.exists(sandbox._folder)


NESTED = """
import os
def f(x):
  top = os.getcwd()
  for i in range(1_500):  # more than Python's stack is deep
    try:
      os.mkdir('d')
      if i % 100 == 0:
        os.symlink(top, 'l')
        open('a', 'w').close()
    except OSError:
      return i  # no more room
    os.chdir('d')
  os.chdir(top)
  os.mkdir('shut')
  os.mkdir('shut/in')
  os.chmod('shut/in', 0)
  os.chmod('shut', 0)
  os.chmod('.', 0o500)
"""


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('ends', ['itself', 'closed'])
def test_nested_folders_are_removed(mode, ends):
  sandbox = open_sandbox({}, mode)
  try:
    found = code.run_tests(
      NESTED, ['assert f(0) == 5'], sandbox=sandbox, timeout_s=60
    )
    assert (found.score, found.status) == (0.0, 'parsed'), found
    if ends == 'itself':
      assert score(forgeries.HONEST, forgeries.TESTS, sandbox) == 1.0
      assert sandbox.alive and nothing_left(sandbox)
      there = glob.glob(f'{sandbox._folder}/*')
      assert eventually(lambda: not glob.glob(f'{sandbox._folder}/*')), there
  finally:
    folder = sandbox._folder
    sandbox.close()
  assert nothing_left(sandbox)
  assert folder and eventually(lambda: not os.path.exists(folder))


def test_folders_are_removed_when_the_caller_is_killed():
  start = (
    'import sys, time\n'
    'from jaxrl_reason.verifiers import code\n'
    'from jaxrl_reason.verifiers.code.sandbox import client\n'
    f'sandbox = client.Sandbox({MODES["no namespaces"]!r})\n'
    'print(sandbox._folder, flush=True)\n'
    f'code.run_tests({NESTED!r} + "  while True: pass", ["assert f(0)"],'
    ' sandbox=sandbox, timeout_s=60)'
  )
  caller = subprocess.Popen(
    [sys.executable, '-c', start],
    stdout=subprocess.PIPE,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
  )
  with caller:
    folder = caller.stdout.readline().decode().strip()
    assert folder and eventually(
      lambda: (
        glob.glob(f'{folder}/program_*/d/d') or not os.path.exists(folder)
      )  # with namespaces it is not on disk
    )
    caller.kill()
  assert eventually(lambda: not os.path.exists(folder))


def test_an_editable_install_in_another_folder_starts(tmp_path):
  """The package is on no path. Only a finder locates it, which `site` would
  install.
  """
  package = os.path.dirname(jaxrl_reason.__file__)
  finder = (
    'import importlib.util, sys\n'
    'class Finder:\n'
    '  @staticmethod\n'
    '  def find_spec(name, path=None, target=None):\n'
    '    if name == "jaxrl_reason":\n'
    '      return importlib.util.spec_from_file_location(name,\n'
    f'        {package!r} + "/__init__.py",'
    f' submodule_search_locations=[{package!r}])\n'
    'sys.meta_path.append(Finder)\n'
    'from jaxrl_reason.verifiers import code\n'
    f'assert not any(p and {os.path.dirname(package)!r}.startswith(p)'
    ' for p in sys.path)\n'
    'print(code.run_tests("f = abs", ["assert f(-1) == 1"]))\n'
  )
  site = sysconfig.get_path('purelib')
  environment = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
  done = subprocess.run(
    [sys.executable, '-S', '-P', '-c', finder],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    env={**environment, 'PYTHONPATH': site},
  )
  assert 'score=1.0' in done.stdout, done.stderr


def test_an_early_end_leaves_no_process_that_waits():
  """The caller closes at every stage between the request and the running
  program.
  """
  for delay in (0.0, 0.001, 0.002, 0.004, 0.008, 0.016):
    sandbox = client.Sandbox()
    ours, theirs = socket.socketpair()
    sandbox._hand_over(theirs)
    time.sleep(delay)
    os.kill(sandbox._process.pid, signal.SIGKILL)
    sandbox.close()
    ours.close()
    theirs.close()
    # Before a judge has its own uid, it can be found only by its session.
    assert nothing_waits(sandbox), delay
    assert nothing_left(sandbox), (delay, left_behind(sandbox))


def nothing_waits(sandbox) -> bool:
  return eventually(lambda: not waiting_orphans(sandbox))


def waiting_orphans(sandbox) -> list[int]:
  """Returns processes in the zygote's session, which confined programs have
  left.
  """
  found = []
  for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
      if os.getsid(int(pid)) == sandbox._process.pid and alive(int(pid)):
        found.append(int(pid))
    except ProcessLookupError:
      continue
  return found


def test_the_environment_is_scrubbed(sandbox, monkeypatch):
  monkeypatch.setenv('A_TOKEN', 'secret')
  program = 'import os, sys\nf = lambda: (dict(os.environ), sys.argv, sys.path)'
  show = 'raise ValueError(f())\nassert f'
  found = code.run_tests(program, [show], sandbox=sandbox).detail
  assert 'LANG' in found and 'A_TOKEN' not in found
  assert repr(os.getcwd()) not in found  # it may contain the environment


def test_the_order_of_a_set_is_the_same_everywhere(full):
  program = 'f = lambda: list(set("abcdefgh"))'
  other = client.Sandbox()
  show = ['raise ValueError(f())\nassert f']
  orders = {
    code.run_tests(program, show, sandbox=each).detail for each in (full, other)
  }
  other.close()
  assert len(orders) == 1


def test_the_callers_environment_is_not_passed_on(monkeypatch):
  monkeypatch.setenv('A_TOKEN', 'secret')
  sandbox = client.Sandbox()
  with open(f'/proc/{sandbox._process.pid}/environ') as f:
    assert 'A_TOKEN' not in f.read()
  sandbox.close()


def test_a_program_sees_no_other_process(full):
  if 'namespaces' not in full.report['layers']:
    pytest.skip('needs namespaces')
  program = 'import os\nf = lambda: (os.getpid(), os.listdir("/"))'
  test = 'pid, root = f()\nassert pid == 1 and "proc" not in root'
  assert score(program, [test], full) == 1.0


def test_hostile_programs_in_the_pool():
  spec = {'code': {'reward': 'code', 'kwargs': {'timeout_s': 0.3}}}
  names = ['a loop', 'a fork bomb', 'stops itself', 'a memory bomb']
  texts = [f'```python\n{hostile.DRAINS[name]}\n```' for name in names]
  honest = f'```python\n{forgeries.HONEST}\n```'
  cases = [(t, {'tests': forgeries.TESTS}) for t in (*texts, honest)]
  with pool.VerifierPool(spec, workers=1, timeout_s=20) as verifiers:
    verdicts = verifiers.map(cases)
    assert verifiers.stats()['crashes'] == 0
  assert [v.score for v in verdicts] == [0.0] * 4 + [1.0]
  assert all(v.valid for v in verdicts)


UNPRIVILEGED = """
import sys
sys.path[:0] = {paths!r}
import os
import forgeries
import hostile_programs as hostile
from jaxrl_reason.verifiers import code
from jaxrl_reason.verifiers.code.sandbox import client
sandbox = client.Sandbox({layers!r})
def score(program):
  return code.run_tests(program, forgeries.TESTS, sandbox=sandbox).score
assert score(forgeries.HONEST) == 1.0
bad = [n for n in forgeries.CLEVER if score(forgeries.FORGERIES[n]) != 0]
program = hostile.attempting(hostile.ATTEMPTS, caller=os.getpid(),
  zygote=sandbox._process.pid, target='/proc/%d/environ' % os.getpid())
found = code.run_tests(program, ['assert f() == []'], sandbox=sandbox)
tests = ['raise ValueError(f()); assert f']
why = code.run_tests(program, tests, sandbox=sandbox)
print(sandbox.report['layers'], bad, found.score, why.detail)
"""
SYSTEM_PYTHON = '/usr/bin/python3'


@pytest.mark.parametrize('layers', [client.LAYERS, ('landlock', 'seccomp')])
def test_for_an_ordinary_user(layers, tmp_path):
  """Uses the system's Python, which every user can read."""
  if os.getuid() or not os.path.exists(SYSTEM_PYTHON):
    pytest.skip('needs root, to become somebody else, and a system Python')
  asked = 'import sys; assert sys.version_info >= (3, 11)'
  if subprocess.run([SYSTEM_PYTHON, '-c', asked], stderr=-3).returncode:
    pytest.skip('the system Python is too old')
  here = os.path.dirname(os.path.abspath(__file__))
  root = os.path.dirname(os.path.dirname(here))
  script = UNPRIVILEGED.format(paths=[root, here], layers=layers)
  done = subprocess.run(
    [SYSTEM_PYTHON, '-B', '-c', script],
    capture_output=True,
    text=True,
    user=65533,
    group=65533,
    extra_groups=[],
    cwd='/',
    timeout=60,
  )
  if "No module named 'jaxrl_reason'" in done.stderr:
    pytest.skip('the repository is not readable for others')
  assert done.returncode == 0, done.stderr
  assert "'seccomp'] [] 1.0 ValueError: []" in done.stdout, done.stdout
