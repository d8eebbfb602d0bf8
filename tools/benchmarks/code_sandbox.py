"""Measures the code sandbox on HumanEval, MBPP and hostile code.

  .venv/bin/python tools/benchmarks/code_sandbox.py [--layers=all]
    [--out=table.md]

Prints the table of docs/code_sandbox.md: speed and verdicts for every reference
solution, three mutations of each, and the forgeries and exhausting programs of
the tests. One caller runs one program after the other; for figures of one core,
use `taskset -c 1`. CPU time is that of all processes, including kernel time.
"""

import pathlib
import resource
import sys
import time

from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / 'tests' / 'verifiers')]

import forgeries  # noqa: E402
import hostile_programs  # noqa: E402
import mutations  # noqa: E402

from jaxrl_reason.verifiers import code  # noqa: E402
from jaxrl_reason.verifiers.code.sandbox import client  # noqa: E402

_LAYERS = flags.DEFINE_string(
  'layers', 'all', f"'all', or some of {','.join(client.LAYERS)}."
)
_EVERY = flags.DEFINE_integer('every', 1, 'Use only every n-th row.')
_OUT = flags.DEFINE_string('out', None, 'Markdown file for the table.')
TIMEOUT_S = 10.0  # one reference solution of MBPP takes 2.5 s
HOSTILE_S = 0.5


def cpu_s() -> float:
  """Returns CPU seconds of this process and of the children it waited for."""
  spent = [
    resource.getrusage(who)
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
  ]
  return sum(usage.ru_utime + usage.ru_stime for usage in spent)


class Measured:
  """Measures wall and CPU time of a block with its own sandbox."""

  def __init__(self, layers: tuple[str, ...]):
    self.layers = layers

  def __enter__(self):
    self.cpu_s, self.wall_s = cpu_s(), time.perf_counter()
    self.sandbox = client.Sandbox(self.layers)
    self.start_s = time.perf_counter() - self.wall_s
    return self

  def __exit__(self, *exc):
    self.wall_s = time.perf_counter() - self.wall_s
    self.sandbox.close()  # waits for the sandbox, so that its CPU time counts
    self.cpu_s = cpu_s() - self.cpu_s


def score(row: dict, program: str, sandbox) -> float:
  completion = mutations.fenced(program)
  return code.reward(
    completion, row, timeout_s=TIMEOUT_S, sandbox=sandbox
  ).score


def on_data(name: str, layers: tuple[str, ...], every: int) -> list[tuple]:
  rows = mutations.rows(name)[::every]
  with Measured(layers) as right:
    passed = sum(
      score(row, mutations.reference(row), right.sandbox) for row in rows
    )
  with Measured(layers) as wrong:
    failed = sum(
      score(row, mutations.mutant(row, change), wrong.sandbox) == 0
      for row in rows
      for change in mutations.MUTATIONS
    )
  n = len(rows)
  return [
    (f'{name}: references that pass', f'{passed:.0f} of {n}'),
    (f'{name}: mutations that fail', f'{failed} of {3 * n}'),
    (f'{name}: references a CPU second', f'{n / right.cpu_s:.0f}'),
    (f'{name}: references a second', f'{n / right.wall_s:.0f}'),
    (f'{name}: mutations a CPU second', f'{3 * n / wrong.cpu_s:.0f}'),
  ]


def on_hostile(layers: tuple[str, ...]) -> list[tuple]:
  limits = {'timeout_s': HOSTILE_S, 'memory_mb': 128}
  worst, zero = 0.0, 0
  programs = [(p, forgeries.TESTS) for p in forgeries.FORGERIES.values()]
  never = ['assert f(lambda x: x) == 5']
  programs += [(p, never) for p in hostile_programs.DRAINS.values()]
  with Measured(layers) as measured:
    for program, tests in programs:
      start = time.perf_counter()
      result = code.run_tests(
        program, tests, sandbox=measured.sandbox, **limits
      )
      worst = max(worst, time.perf_counter() - start)
      zero += result.score == 0 and result.valid
  return [
    ('hostile programs that score 0', f'{zero} of {len(programs)}'),
    (f'slowest of them, limit {HOSTILE_S:g} s', f'{worst:.2f} s'),
  ]


def overhead(layers: tuple[str, ...], count: int = 500) -> list[tuple]:
  """Measures the cost of the sandbox with an empty program."""
  tests = ['assert f(1) == 1']
  with Measured(layers) as measured:
    for _ in range(count):
      code.run_tests('def f(x): return x', tests, sandbox=measured.sandbox)
  return [
    ('layers', ', '.join(measured.sandbox.report['layers'])),
    ('start of the zygote', f'{measured.start_s:.2f} s'),
    ('CPU of an empty program', f'{1000 * measured.cpu_s / count:.1f} ms'),
    ('empty programs a CPU second', f'{count / measured.cpu_s:.0f}'),
    ('empty programs a second', f'{count / measured.wall_s:.0f}'),
  ]


def main(argv):
  del argv
  names = _LAYERS.value
  layers = client.LAYERS if names == 'all' else tuple(names.split(','))
  rows = overhead(layers)
  for name in mutations.FILES:
    if (mutations.DATA / name).exists():
      rows += on_data(name, layers, _EVERY.value)
  rows += on_hostile(layers)
  lines = ['| | |', '|---|---|', *(f'| {a} | {b} |' for a, b in rows)]
  text = '\n'.join(lines)
  print(text)
  if _OUT.value:
    pathlib.Path(_OUT.value).write_text(text + '\n')


if __name__ == '__main__':
  app.run(main)
