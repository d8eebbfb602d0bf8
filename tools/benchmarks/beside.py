"""Compares this library with another one: our worker, and the driver.

`beside_tunix.py` and `beside_trl.py` have the worker of the other library and
its commands. Each library has one process; they run alternately (alternate.py).
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator, Sequence

import alternate
import jax
import numpy as np

B, G, V = 8, 8, 512


@dataclasses.dataclass(frozen=True)
class Shape:
  layers: int
  width: int
  prompt: int
  new: int


SHAPES = {
  '4x256': Shape(4, 256, 32, 64),
  '2x64': Shape(2, 64, 32, 64),
  '8x512': Shape(8, 512, 64, 256),
}


class Numbers:
  """A tokenizer whose text is the token ids in decimal."""

  # No token has these ids, so nothing stops and nothing is padding. With the id
  # 0 for `bos`, tunix prepends no token.
  pad_id = staticmethod(lambda: -1)
  eos_id = staticmethod(lambda: -2)
  bos_id = staticmethod(lambda: 0)

  def encode(self, text: str) -> list[int]:
    return [int(word) for word in text.split()]

  def decode(self, ids: list[int]) -> str:
    return ' '.join(map(str, ids))


def scores(texts: Sequence[str], shape: Shape) -> list[float]:
  """Computes rewards that differ between samples, as grpo_step.reward_fn."""
  rows = [text.split() for text in texts]
  check_full(rows, shape)
  return [float(int(row[0]) % 7) for row in rows]


def check_full(completions, shape: Shape):
  lengths = [len(row) for row in completions]
  if lengths != [shape.new] * (B * G):
    raise RuntimeError(f'completions are not {shape.new} tokens: {lengths}')


def about(packages: Sequence[str], n_weights: int) -> dict:
  """Returns the first line of a worker."""
  return {
    'weights': n_weights,
    'versions': ' '.join(
      f'{name} {importlib.metadata.version(name)}' for name in packages
    ),
  }


class InlinePool:
  """A verifier pool in the calling process, as in tunix."""

  def __init__(self, shape: Shape):
    self.shape = shape

  def submit(self, cases) -> concurrent.futures.Future:
    from jaxrl_reason.verifiers import verdict

    values = scores([text for text, _ in cases], self.shape)
    future = concurrent.futures.Future()
    future.set_result([verdict.Verdict(x) for x in values])
    return future


def host_step(learner, gen, state, prompts, shape: Shape) -> Callable:
  """Returns a function that runs one step with rewards in Python."""
  import grpo_step

  from jaxrl_reason import logits
  from jaxrl_reason.rollouts import host
  from jaxrl_reason.run.rl import host_step as host_lib
  from jaxrl_reason.run.rl import programs
  from jaxrl_reason.verifiers import compose

  names = (compose.SINGLE,)
  generate = jax.jit(programs.rl_rollout, static_argnums=0)
  source = host.HostSource(
    generate=functools.partial(generate, gen),
    greedy=None,
    n_samples=gen.n_samples,
    part_names=names,
    pool=InlinePool(shape),
    tokenizer=Numbers(),
    pieces=1,
    root=jax.random.key(2),
    sampling=logits.Sampling.make(),
    stop=grpo_step.NEVER,
  )
  learner = dataclasses.replace(learner, part_names=names)
  request = host.Asked(prompts, dict.fromkeys(range(B), {}).__getitem__)

  def questions(control, step):
    return request

  step = host_lib.HostStep(source, learner, questions)
  state = jax.tree.map(jax.numpy.copy, state)  # it is donated

  def run():
    nonlocal state
    state, metrics, *_ = step(state)
    return state, metrics

  return run


def our_phases(shape: Shape) -> tuple[dict[str, Callable], dict]:
  """Returns the functions of the phases by name, and the first line."""
  import grpo_step

  problem = grpo_step.problem(
    shape.layers,
    shape.width,
    prompt=shape.prompt,
    new=shape.new,
    rope_theta=1e6,  # that of tunix's Llama3, which ignores its config
  )
  programs = grpo_step.programs(*problem)

  def sample():
    out = programs['sampler']()
    rows = zip(np.asarray(out.tokens), np.asarray(out.length))
    rows = [row[:n].tolist() for row, n in rows]
    check_full(rows, shape)
    return [len(Numbers().decode(row)) for row in rows]

  def step():
    metrics = programs['step']()
    if float(metrics['length_mean']) != shape.new:
      raise RuntimeError(f'a completion stopped early: {metrics}')
    return metrics

  phases = {
    'sampler': sample,
    'step': step,
    'host step': host_step(*problem, shape),
  }
  n_weights = sum(x.size for x in jax.tree.leaves(problem[2].params))
  return phases, about(('jax', 'flax'), n_weights)


def ours(shape: Shape, commands: Iterator[str], reply: Callable, _):
  import grpo_step

  phases, first = our_phases(shape)
  reply(first)
  for phase in commands:
    if phase == 'peak':
      reply({'gflops': grpo_step.matmul_peak(3) / 1e9})
    else:
      reply(alternate.timed(phases[phase]))


@dataclasses.dataclass(frozen=True)
class Other:
  """The other library of a comparison.

  Attributes:
    name: name of the library.
    phases: {phase: {'ours': command, name: command}}.
    worker: function of (shape, commands, reply, parsed arguments) that runs in
      its own process.
    passed: names of the arguments that are passed to the worker.
    note: function of (parsed arguments, shape) -> note in the table's head.
  """

  name: str
  phases: dict
  worker: Callable
  passed: Sequence[str] = ()
  note: Callable = lambda args, shape: ''


def compare(other: Other, name: str, args) -> dict:
  """Measures one shape: the workers' first lines, peaks and replies."""
  phases = {phase: other.phases[phase] for phase in args.phases.split(',')}
  options = [f'--shapes={name}']
  for key in other.passed:
    value = getattr(args, key.replace('-', '_'))
    options.append(f'--{key}={value}')
  pythons = {'ours': sys.executable, other.name: args.python}
  workers = {
    side: alternate.Worker(
      [python, sys.argv[0], f'--worker={side}', *options], ours=side == 'ours'
    )
    for side, python in pythons.items()
  }
  weights = {side: w.about['weights'] for side, w in workers.items()}
  if len(set(weights.values())) != 1:
    raise RuntimeError(f'the models differ in size: {weights}')
  rows, peaks = alternate.in_turn(workers, phases, args.repeats, args.warm_up)
  for w in workers.values():
    w.close()
  versions = {side: w.about['versions'] for side, w in workers.items()}
  return {
    'shape': name,
    'weights': weights['ours'],
    'versions': versions,
    'peak_gflops': peaks,
    'rows': rows,
  }


def print_result(other: Other, result: dict, args):
  shape = SHAPES[result['shape']]
  versions = result['versions']
  print(
    f'\n{shape.layers} layers x {shape.width}, '
    f'{result["weights"] / 1e6:.2f} M weights, {B} x {G} rows, '
    f'{shape.prompt} + {shape.new} tokens, vocabulary {V}, float32\n'
    f'ours: {versions["ours"]}; {other.name}: {versions[other.name]}'
    f'{other.note(args, shape)}\n'
    f'{alternate.machine(result["peak_gflops"])}, medians of {args.repeats}'
  )
  alternate.print_table(result['rows'], B * G * shape.new)


def parser(other: Other, doc: str) -> argparse.ArgumentParser:
  p = argparse.ArgumentParser(description=doc.split('\n')[0])
  p.add_argument(
    f'--{other.name}-python', dest='python', help='interpreter of its venv'
  )
  p.add_argument('--shapes', default='4x256,2x64')
  p.add_argument('--phases', default=','.join(other.phases))
  p.add_argument('--repeats', type=int, default=5)
  p.add_argument('--warm-up', type=int, default=2, help='unmeasured rounds')
  p.add_argument('--json', help='file to append every measurement to')
  p.add_argument(
    '--worker', choices=('ours', other.name), help=argparse.SUPPRESS
  )
  return p


def main(other: Other, p: argparse.ArgumentParser):
  args = p.parse_args()
  if args.worker:
    work = {'ours': ours, other.name: other.worker}[args.worker]
    work(SHAPES[args.shapes], *alternate.serve(), args)
    return
  if not args.python:
    p.error(f'--{other.name}-python is needed')
  for name in args.shapes.split(','):
    result = compare(other, name, args)
    print_result(other, result, args)
    if args.json:
      with open(args.json, 'a') as f:
        print(json.dumps(result), file=f)
