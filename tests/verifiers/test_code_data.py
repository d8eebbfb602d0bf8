"""`verifiers.code` on HumanEval and MBPP, from threads, forks and the pool."""

import json
import os
import signal
import subprocess
import sys
import threading

import mutations
import pytest
from waiting import eventually

from jaxrl_reason.verifiers import code, pool, verdict
from jaxrl_reason.verifiers.code import livecodebench
from jaxrl_reason.verifiers.code.sandbox import client
from jaxrl_reason.verifiers.pool import procfs

pytestmark = pytest.mark.skipif(
  not hasattr(os, 'fork'), reason='the sandbox needs fork'
)
ADD = 'def add(a, b):\n  return a + b\n'
TESTS = ['assert add(1, 2) == 3']
needs_data = pytest.mark.skipif(
  not mutations.DATA.exists(), reason='no data sets beside the repository'
)


def score(program, tests) -> float:
  found = code.run_tests(program, tests)
  assert found.status == 'parsed', found.detail
  return found.score


# --- real data -------------------------------------------------------------


def parts(name: str, count: int = 4):
  return [pytest.param(name, i, count, id=f'{name}-{i}') for i in range(count)]


@needs_data
@pytest.mark.parametrize(
  ('name', 'part', 'of'), parts('humaneval', 1) + parts('mbpp')
)
def test_every_reference_solution_passes(name, part, of):
  for row in mutations.rows(name)[part::of]:
    completion = row.get('canonical_solution') or mutations.fenced(row['code'])
    found = code.reward(completion, row, timeout_s=10.0)
    assert found.score == 1.0, (row['task_id'], found)


@needs_data
@pytest.mark.parametrize(('name', 'every'), [('humaneval', 1), ('mbpp', 3)])
def test_mutations_fail(name, every):
  """Tests one of three mutations per row; tools/benchmarks/code_sandbox.py
  tests all.
  """
  for i, row in enumerate(mutations.rows(name)[::every]):
    mutation = mutations.MUTATIONS[i % 3]
    completion = mutations.fenced(mutations.mutant(row, mutation))
    found = code.reward(completion, row)
    where = row['task_id'], mutation, found
    assert found.score == 0.0 and found.status == 'parsed', where


METHOD = 'class Solution:\n  def f(self, x):\n    return '


@pytest.mark.parametrize(
  ('program', 'given', 'expected', 'right'),
  [
    ('print(pow(3, 4, 5))', '', '1', 1),
    ('print(open(0).read(), mean([1, 1]), json.dumps(copy.copy([1])))',
     '5', '5 1 [1]', 1),
    ('def r(n): return n and 1 + r(n - 1)\nprint(r(5000))', '', '5000', 1),
    ('"""Says 5."""\nfrom __future__ import annotations\nprint(5)',
     '', '5', 1),
    ('print(5.0, 6)', '', '5 6', 1),
    ('\ufeffprint(5)', '', '5', 1),
    ('print(5.5)', '', '5', 0),
    (METHOD + '(x, 3)', '3', '[3, 3]', 1),
    (METHOD + '(x, (3,))', '3', '[3, [3]]', 0),
    (METHOD + 'x.append(4) or x[1]', '[3]', '4', 1),
    (METHOD + 'x.append(4) or x[0]', '[3]', '4', 0),
    (METHOD + 'x', '"a\u2028b"', '"a\u2028b"', 1),
  ],
)  # fmt: skip
def test_livecodebench_agrees_with_the_published_judge(
  program, given, expected, right
):
  name = {'func_name': 'f'} if program.startswith(METHOD) else {}
  cases = [{'input': given, 'output': expected}]
  example = {
    'public_test_cases': json.dumps(cases),
    'private_test_cases': '[]',
    'metadata': json.dumps(name),
  }
  first = '```python\nclass Solution:\n  pass\n```\nBetter:\n'
  completion = first + mutations.fenced(program)
  found = livecodebench.reward(completion, example)
  assert (found.score, found.status) == (right, 'parsed'), found


# --- from everywhere -------------------------------------------------------


def test_from_many_threads_at_once():
  found = {}

  def ask(i: int):
    tests = [f'assert add({i}, {n}) == {i + n}' for n in range(3)]
    found[i] = [score(ADD, tests), score(ADD.replace('+', '-'), tests)]

  threads = [threading.Thread(target=ask, args=(i,)) for i in range(1, 13)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert found == {i: [1.0, 0.0] for i in range(1, 13)}


def test_a_fork_of_the_caller_has_a_sandbox_of_its_own():
  assert score(ADD, TESTS) == 1.0
  ours = client.shared()
  pid = os.fork()
  if pid == 0:
    same = client.shared() is ours
    ok = not same and score(ADD, TESTS) == 1.0
    os._exit(0 if ok else 1)
  assert os.waitpid(pid, 0)[1] == 0
  assert score(ADD, TESTS) == 1.0


def test_a_lost_sandbox_is_an_error_once_and_then_replaced():
  sandbox = client.Sandbox()
  sandbox.close()
  found = code.run_tests(ADD, TESTS, sandbox=sandbox)
  assert found.status == 'error' and not found.valid
  client.shared().close()
  assert score(ADD, TESTS) == 1.0


def test_in_the_pool():
  program, example = mutations.fenced(ADD), {'tests': TESTS}
  loop = mutations.fenced('def add(a, b):\n  while True: pass')
  spec = {'reward': 'code', 'kwargs': {'timeout_s': 0.4}}
  with pool.VerifierPool({'code': spec}, workers=2, timeout_s=10) as verifiers:
    cases = [(program, example), (loop, example), ('', example)] * 4
    verdicts = verifiers.map(cases)
  assert [v.score for v in verdicts] == [1.0, 0.0, 0.0] * 4
  assert all(v.valid for v in verdicts)


HANGING = f"""
import json, os, sys, threading, time
from jaxrl_reason.verifiers import code
from jaxrl_reason.verifiers.code.sandbox import client
code.run_tests({ADD!r}, {TESTS!r})
loop = lambda: code.run_tests('while True: pass', ['assert f'], timeout_s=60)
threading.Thread(target=loop).start()
time.sleep(0.3)
print(client.shared()._process.pid, flush=True)
time.sleep(60)
"""


def family(pid: int) -> list[int]:
  below = procfs.children(pid)
  return [pid, *(p for child in below for p in family(child))]


def running(pid: int) -> bool:
  return procfs.usage(pid)[0] not in 'Z?X'


@pytest.mark.skipif(not procfs.AVAILABLE, reason='reads /proc')
@pytest.mark.parametrize('how', [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_caller_is_killed(how):
  script = subprocess.Popen(
    [sys.executable, '-c', HANGING],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
  )
  zygote = int(script.stdout.readline())
  pids = family(zygote)
  assert len(pids) == 3  # zygote, judge, program
  script.kill() if how == signal.SIGKILL else os.kill(zygote, signal.SIGKILL)
  assert eventually(lambda: not any(map(running, pids)))
  script.kill()
  script.communicate()


def test_it_imports_neither_jax_nor_numpy():
  script = (
    'import sys, jaxrl_reason.verifiers.code;'
    'sys.exit("jax" in sys.modules or "numpy" in sys.modules)'
  )
  assert subprocess.run([sys.executable, '-c', script]).returncode == 0


def test_a_verdict_is_plain():
  found = code.run_tests(ADD, TESTS)
  assert found == verdict.Verdict(1.0, 'parsed', ADD)
