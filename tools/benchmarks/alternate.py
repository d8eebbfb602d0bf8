"""Measures two implementations alternately, each in its own process.

A worker compiles, warms up, and then reads commands from stdin. It replies to
each line with a line of JSON. The driver alternates between the workers in
every repeat, so that other load on the machine affects them equally.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax

ROOT = pathlib.Path(__file__).parents[2]


class Clock:
  """Measures wall and CPU seconds since its construction."""

  def __init__(self):
    self.wall, self.cpu = time.perf_counter(), time.process_time()

  def read(self) -> dict[str, float]:
    return {
      'wall_s': time.perf_counter() - self.wall,
      'cpu_s': time.process_time() - self.cpu,
    }


def timed(f: Callable) -> dict[str, float]:
  clock = Clock()
  jax.block_until_ready(f())
  return clock.read()


def serve() -> tuple[Iterator[str], Callable]:
  """Returns a worker's commands, and the function that replies to one."""
  # Libraries may print to stdout, so replies have their own file descriptor.
  answers = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)

  def reply(answer):
    return print(json.dumps(answer), file=answers, flush=True)

  return (line.strip() for line in sys.stdin), reply


class Worker:
  """A worker process, as the driver uses it. Its first line is `about`.

  Args:
    command: command line of the process.
    ours: True if the process imports this checkout; others must not.
  """

  def __init__(self, command: Sequence[str], *, ours: bool):
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    if ours:
      env['PYTHONPATH'] = str(ROOT)
    self.process = subprocess.Popen(
      command,
      env=env,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    self.about = self._read()

  def _read(self) -> dict:
    line = self.process.stdout.readline()
    if not line:
      raise RuntimeError(f'{self.process.args} ended: {self.process.wait()}')
    return json.loads(line)

  def ask(self, what: str) -> dict:
    print(what, file=self.process.stdin, flush=True)
    return self._read()

  def close(self):
    self.process.stdin.close()
    self.process.wait()


def in_turn(
  workers: Mapping[str, Worker],
  phases: Mapping[str, Mapping[str, str]],
  repeats: int,
  warm_up: int,
) -> tuple[dict, list[float]]:
  """Sends commands to the workers alternately.

  Args:
    phases: phase -> side -> command.
    warm_up: number of rounds that are not measured.

  Returns:
    ({phase: {side: replies}}, replies of the first worker to 'peak' before each
    measured round, GFLOP/s).
  """
  rows = {phase: {side: [] for side in workers} for phase in phases}
  peaks = []
  first = next(iter(workers.values()))
  for _ in range(warm_up + repeats):
    peaks.append(first.ask('peak')['gflops'])
    for phase, commands in phases.items():
      for side, worker in workers.items():
        rows[phase][side].append(worker.ask(commands[side]))
  for sides in rows.values():
    for answers in sides.values():
      del answers[:warm_up]
  return rows, peaks[warm_up:]


def machine(peaks: Sequence[float]) -> str:
  return (
    f'{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.2f}, '
    f'matmul peak {min(peaks):.0f} to {max(peaks):.0f} GFLOP/s'
  )


def print_table(rows: Mapping, tokens: int):
  """Prints medians by phase. The last columns are second side / first side."""
  one, two = next(iter(rows.values()))
  columns = f'| {"wall s":>7} {"CPU s":>7} {"tokens/s":>8} '
  print(f'{"":9} | {one:^24} | {two:^24} | {two} / {one}')
  print(f'{"phase":9} {columns}{columns}| {"wall":>5} {"CPU":>5}')
  for phase, sides in rows.items():

    def median(side, key, of=sides):
      return statistics.median(answer[key] for answer in of[side])

    wall, cpu = (
      [median(side, key) for side in sides] for key in ('wall_s', 'cpu_s')
    )
    cells = ''.join(
      f'| {w:7.3f} {c:7.3f} {tokens / w:8.0f} ' for w, c in zip(wall, cpu)
    )
    print(f'{phase:9} {cells}| {wall[1] / wall[0]:5.2f} {cpu[1] / cpu[0]:5.2f}')
