"""Times proposals and observations of a pool by its size, and fused steps with
and without a controller.

  .venv/bin/python tools/benchmarks/pool.py [--problems=1000000] [--prompts=256]
    [--samples=16] [--repeats=20] [--step]

Seconds are medians of jitted calls. With `--step`, it instead trains the
default recipe for a few dispatches, alternately without a controller, with
`uniform` and with `priority`, and prints wall and CPU seconds. Other work on
the machine affects CPU seconds less.
"""

import argparse
import pathlib
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from jaxrl_reason import config as config_lib
from jaxrl_reason import trees
from jaxrl_reason.data import chooser as chooser_lib

ROOT = pathlib.Path(__file__).resolve().parents[2]

KEY = jax.random.key(0)


def median(f, args, repeats: int) -> float:
  """Measures the median seconds of f(*args) without compilation."""
  jax.block_until_ready(f(*args))
  times = []
  for _ in range(repeats):
    begun = time.perf_counter()
    jax.block_until_ready(f(*args))
    times.append(time.perf_counter() - begun)
  return sorted(times)[len(times) // 2]


def costs(name: str, args) -> tuple[float, float, float, int]:
  """Returns seconds of propose, observe and metrics, and statistics' bytes."""
  data = config_lib.default().data
  data.controller.update(name=name)
  chooser = chooser_lib.make(data, ('all',), (1.0,))
  m, n = args.problems, args.prompts * args.samples
  rng = np.random.default_rng(0)
  stats = chooser.start(np.zeros(m), rng.random(m), jnp.int32(0))
  stats = stats.replace(rate=jnp.asarray(rng.random(m), jnp.float32))
  propose = jax.jit(lambda s, i: chooser.propose(s, KEY, args.prompts, i))
  ids = jnp.repeat(propose(stats, 0), args.samples)
  right = jnp.asarray(rng.integers(0, 2, n), jnp.float32)
  ones = jnp.ones(n, jnp.int32)
  rows = ids, right, right > 0, right >= 0, ones, ids, ids, ones

  # Statistics are donated, as in a train state.
  observe = jax.jit(
    lambda s, rows: chooser.observe(s, *rows, jnp.int32(1)), donate_argnums=0
  )
  metrics = jax.jit(lambda s: chooser.metrics(s, ids, ids >= 0, jnp.int32(1)))
  n_bytes, out = trees.n_bytes(stats), []
  out.append(median(propose, (stats, 1), args.repeats))
  out.append(median(metrics, (stats,), args.repeats))
  times = []
  for _ in range(args.repeats + 1):
    begun = time.perf_counter()
    stats = jax.block_until_ready(observe(stats, rows))
    times.append(time.perf_counter() - begun)
  out.append(sorted(times)[len(times) // 2])
  return *out, n_bytes


def steps(repeats: int) -> None:
  """Prints seconds of fused steps with and without a controller."""
  sys.path.insert(0, str(ROOT / 'configs'))
  import arithmetic_tiny
  from etils import epath

  from jaxrl_reason.run import prepare, stages, states
  from jaxrl_reason.run import stage_list as staging

  dispatch, state = {}, {}
  folder = epath.Path(tempfile.mkdtemp())
  for name in ('none', 'uniform', 'priority'):
    c = arithmetic_tiny.get_config()
    c.rollouts.every = 0
    c.data.controller.name = name
    c = config_lib.read(c)
    prepared = prepare.prepare(c, folder)
    with jax.set_mesh(prepared.mesh):
      stage = stages.build(staging.Planned('rl', 'rl', c), prepared)
      params = states.init_params(prepared, folder)
      dispatch[name] = stage.dispatch
      state[name] = stage.layout.begin(params, 0)
  times = {name: [] for name in dispatch}
  with jax.set_mesh(prepared.mesh):
    for _ in range(repeats + 1):
      for name, f in dispatch.items():
        begun = time.perf_counter(), time.process_time()
        state[name], metrics, _ = f(state[name], True)
        jax.block_until_ready(metrics)
        ended = time.perf_counter(), time.process_time()
        k = c.rl.steps_per_dispatch
        times[name].append([(b - a) / k for a, b in zip(begun, ended)])
  for name, t in times.items():
    for clock, x in zip(('wall', 'processor'), np.sort(t[1:], axis=0).T):
      middle = x[len(x) // 2]
      print(f'{name:10s} {clock}: least {x[0]:.4f} s, median {middle:.4f} s')


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--problems', type=int, default=1_000_000)
  parser.add_argument('--prompts', type=int, default=256)
  parser.add_argument('--samples', type=int, default=16)
  parser.add_argument('--repeats', type=int, default=20)
  parser.add_argument('--step', action='store_true')
  args = parser.parse_args()
  if args.step:
    steps(args.repeats)
    return
  print('controller     propose   metrics   observe  ms    statistics MiB')
  for name in ('uniform', 'priority', 'band', 'greso', 'drive', 'ladder'):
    *seconds, size = costs(name, args)
    cells = '  '.join(f'{1000 * s:8.2f}' for s in seconds)
    print(f'{name:12s} {cells}        {size / 2**20:8.1f}')


if __name__ == '__main__':
  main()
