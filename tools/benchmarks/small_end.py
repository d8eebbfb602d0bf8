"""Measures the overhead of a small step over its matrix products, and start-up.

  .venv/bin/python tools/benchmarks/small_end.py [--layers=2 --width=64]
    [--repeats=9]
    [--steps=1,8] [--seeds=1,4] [--startup=configs/arithmetic_tiny.py]

The fused GRPO step of grpo_step.py with 0.2 M parameters is compared with its
matrix products. Every dot_general of the step's jaxpr is timed alone on arrays
of its shapes, and counted as often as its loops run it. `ratio` is step /
products. Times of K steps in one dispatch and S seeds in one program are per
step and seed.

Start-up is the time of a `jaxrl_reason.main` process until its first line of
training metrics, with an empty and then with a filled compilation cache.
"""

import argparse
import collections
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import grpo_step
import jax
import jax.numpy as jnp

from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts.fused import FusedSource
from jaxrl_reason.run.rl import programs, several_runs

ROOT = pathlib.Path(__file__).parents[2]
MANY = 32  # products per dispatch, which makes the dispatch's cost negligible


def _inner(eqn, trips: int):
  """Returns (jaxpr, number of executions) of the programs in an equation."""
  times = {'scan': eqn.params.get('length', 1), 'while': trips}
  n = times.get(eqn.primitive.name, 1)
  for value in eqn.params.values():
    for x in value if isinstance(value, (tuple, list)) else (value,):
      inner = getattr(x, 'jaxpr', x)
      if hasattr(inner, 'eqns'):
        yield inner, n


def products(jaxpr, trips: int) -> collections.Counter:
  """Counts executions by (shapes, dtypes, dimension numbers) of a product.

  Args:
    trips: iterations of a while loop: the tokens after the first.
  """
  counts = collections.Counter()
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'dot_general':
      shapes = tuple((x.aval.shape, x.aval.dtype.name) for x in eqn.invars)
      counts[shapes, eqn.params['dimension_numbers']] += 1
    for inner, n in _inner(eqn, trips):
      for key, count in products(inner, trips).items():
        counts[key] += n * count
  return counts


def product_seconds(counts: collections.Counter, repeats: int) -> float:
  """Measures the seconds of all products, with each kind timed alone."""
  total = 0.0
  for (shapes, dims), count in counts.items():
    args = [jnp.ones((MANY, *shape), dtype) for shape, dtype in shapes]
    one = functools.partial(jax.lax.dot_general, dimension_numbers=dims)
    many = jax.jit(functools.partial(_mapped, one))
    f = functools.partial(many, *args)
    total += count * grpo_step.timed(f, repeats)[0] / MANY
  return total


def _mapped(f, *args):
  return jax.lax.map(lambda xs: f(*xs), args)


def step_seconds(problem, k: int, seeds: int, repeats: int) -> float:
  """Measures seconds per step and seed, for K steps and S seeds at once."""
  learner, gen, state, prompts = problem
  stacked = jax.tree.map(lambda x: jnp.stack([x] * k), prompts)
  source = FusedSource(gen, grpo_step.reward_fn)
  parts, root = (learner, source, Sampling.make()), jax.random.key(2)

  def run(s):
    learner, source, sampling = parts
    given = s, stacked, root, sampling, grpo_step.NEVER
    return programs.rl_steps(learner, source, *given)

  if seeds > 1:
    root = jax.random.split(root, seeds)

    def copies(tree):
      return jax.tree.map(lambda x: jnp.stack([x] * seeds), tree)

    state, stacked = copies(state), copies(stacked)

    def run(s):
      given = s, stacked, root, {}, grpo_step.NEVER
      return several_runs.rl_seeds(lambda _: parts, *given)

  f = jax.jit(run, donate_argnums=0)
  moving = jax.tree.map(jnp.copy, state)

  def once():
    nonlocal moving
    moving, metrics = f(moving)
    return metrics

  return grpo_step.timed(once, repeats)[0] / k / seeds


def startup(recipe: str) -> list[float]:
  """Measures seconds to the first training line, with cold and warm cache."""
  out = []
  with tempfile.TemporaryDirectory() as cache:
    env = os.environ | {'XDG_CACHE_HOME': cache, 'PYTHONPATH': str(ROOT)}
    for i in range(2):
      workdir = pathlib.Path(cache, f'run{i}')
      command = [sys.executable, '-m', 'jaxrl_reason.main']
      command += [f'--config={recipe}', f'--workdir={workdir}']
      begun = time.monotonic()
      process = subprocess.Popen(
        [*command, '--config.log_every=5'], env=env, stderr=subprocess.DEVNULL
      )
      while not _trained(workdir / 'metrics.jsonl'):
        if process.poll() is not None:
          raise RuntimeError(f'{recipe} ended before its first line')
        time.sleep(0.02)
      out.append(time.monotonic() - begun)
      process.terminate()
      process.wait()
  return out


def _trained(path: pathlib.Path) -> bool:
  lines = path.read_text().splitlines() if path.exists() else []
  return any('train/loss' in json.loads(line) for line in lines)


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--layers', type=int, default=2)
  parser.add_argument('--width', type=int, default=64)
  parser.add_argument('--repeats', type=int, default=9)
  parser.add_argument('--steps', default='1,8')
  parser.add_argument('--seeds', default='1,4')
  parser.add_argument('--startup', default='', help='a recipe; empty: skip')
  args = parser.parse_args()
  problem = grpo_step.problem(args.layers, args.width)
  learner, gen, state, prompts = problem
  source = FusedSource(gen, grpo_step.reward_fn)
  jaxpr = jax.make_jaxpr(
    functools.partial(programs.fused_step, learner, source)
  )(state, prompts, jax.random.key(2), Sampling.make(), grpo_step.NEVER)
  counts = products(jaxpr.jaxpr, grpo_step.C - 1)
  floor = product_seconds(counts, args.repeats)
  print(
    f'{args.layers} layers x {args.width}: {sum(counts.values()):,} products '
    f'of {len(counts)} kinds per step, {1e3 * floor:.1f} ms alone; '
    f'jax {jax.__version__}'
  )
  print(f'{"K":>3} {"S":>3} {"ms a step and seed":>20} {"ratio":>6}')
  for k in map(int, args.steps.split(',')):
    for s in map(int, args.seeds.split(',')):
      seconds = step_seconds(problem, k, s, args.repeats)
      print(f'{k:3} {s:3} {1e3 * seconds:20.1f} {seconds / floor:6.2f}')
  if args.startup:
    cold, warm = startup(args.startup)
    print(f'first training line: {cold:.1f} s cold, {warm:.1f} s warm')


if __name__ == '__main__':
  main()
