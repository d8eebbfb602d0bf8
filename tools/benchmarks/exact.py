"""Measures the price of exact numerics (docs/exactness.md).

  .venv/bin/python tools/benchmarks/exact.py [--width=256 --layers=4]
    [--repeats=7]
  .venv/bin/python tools/benchmarks/exact.py --topologies=v5e:4x4,v5p:2x2x4
    [--models=qwen2.5-0.5b,qwen3-8b] [--mesh=1,16,1] [--phases=generate,update]
    [--depth=2]

On this machine, it measures CPU seconds and wall seconds of sampling, scoring
and the gradient: medians of alternated repeats in one process. With topologies,
it compiles phases of a recipe for them and does not run them (this needs the
extra `tpu`). It then prints figures of one device: the seconds of the roofline
if computation and memory traffic overlap, and ratios of FLOPs and bytes. An
int8 FLOP counts half, as it takes half the time of a bfloat16 one.
"""

import argparse
import runpy
import statistics
import time

import alternate
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import config as config_lib
from jaxrl_reason.base import Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs, spec, transformer
from jaxrl_reason.planning import planner
from jaxrl_reason.rollouts import sampler

RECIPE = 'configs/grpo_gsm8k.py'
NUMERICS = 'fast', 'exact'
FORM = '{:26}' + ' {:>11}' * 6
SAMPLING = Sampling.fixed(1.0, 0, 1.0, 0.0)


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--width', type=int, default=256)
  parser.add_argument('--layers', type=int, default=4)
  parser.add_argument('--prompts', type=int, default=8)
  parser.add_argument('--samples', type=int, default=4)
  parser.add_argument('--prompt-len', type=int, default=64)
  parser.add_argument('--completion-len', type=int, default=64)
  parser.add_argument('--repeats', type=int, default=7)
  parser.add_argument('--topologies', default='', help='as for jaxrl plan')
  parser.add_argument('--models', default='qwen2.5-0.5b,qwen3-8b')
  parser.add_argument('--mesh', default='1,16,1', help='data,fsdp,tensor')
  parser.add_argument('--phases', default='generate,update')
  parser.add_argument('--depth', type=int, default=0, help='layers; 0: all')
  return parser.parse_args()


def here(a: argparse.Namespace) -> None:
  """Measures programs of a small model on this machine."""
  programs = {n: _programs(a, n) for n in NUMERICS}
  for name in ('sample', 'score', 'gradient'):
    runs = {n: [] for n in NUMERICS}
    for i in range(a.repeats + 1):  # the first run compiles
      for n in NUMERICS:
        seconds = alternate.timed(programs[n][name])
        runs[n] += [seconds] if i else []
    cpu, wall = (
      [statistics.median(s[key] for s in runs[n]) for n in NUMERICS]
      for key in ('cpu_s', 'wall_s')
    )
    _print(name, [*cpu, cpu[1] / cpu[0], *wall, wall[1] / wall[0]])


def _programs(a: argparse.Namespace, numerics: str) -> dict:
  """Returns the three compiled functions, without arguments."""
  heads = dict(heads=a.width // 32, kv_heads=a.width // 64, head_dim=32)
  model = transformer.build(
    transformer.Config(
      vocab=512,
      layers=a.layers,
      width=a.width,
      mlp=3 * a.width,
      dtype='bfloat16',
      numerics=numerics,
      **heads,
    )
  )
  params = spec.init(model.specs, jax.random.key(0))
  r, rows = np.random.default_rng(0), a.prompts * a.samples
  prompts = jnp.asarray(r.integers(2, 512, (a.prompts, a.prompt_len)))
  whole = r.integers(2, 512, (rows, a.prompt_len + a.completion_len))
  batch = Rows(jnp.asarray(whole), jnp.ones(whole.shape, bool), jnp.ones(rows))

  @jax.jit
  def sample(params):
    how = dict(n_samples=a.samples, max_new=a.completion_len)
    seen, key = jnp.ones(prompts.shape, bool), jax.random.key(0)
    stop = jnp.asarray([0, 1])
    return sampler.generate(
      model, params, prompts, seen, key, SAMPLING, stop, **how
    )

  def score(params):
    how = dict(start=a.prompt_len)
    return logprobs.score(model, params, batch, SAMPLING, **how)[0]

  jitted = {
    'sample': sample,
    'score': jax.jit(score),
    'gradient': jax.jit(jax.grad(lambda p: score(p).sum())),
  }
  return {k: (lambda f=f: f(params)) for k, f in jitted.items()}


def planned(a: argparse.Namespace, topology: str, model: str) -> None:
  """Plans the phases of a recipe with both numerics."""
  config = config_lib.read(runpy.run_path(RECIPE)['get_config']())
  how = dict(
    mesh=tuple(int(n) for n in a.mesh.split(',')),
    data__prompt_len=256,
    data__completion_len=512,
    rl__prompts=16,
    rl__samples=8,
    rl__parts=1,
    rl__micro_batches=1,
    model__remat='full',
  )
  facts = {n: {} for n in NUMERICS}
  for phase in a.phases.split(','):
    for n in NUMERICS:
      start = time.monotonic()
      plan = planner.Planner(
        config.changed(model__numerics=n, **how),
        topology,
        slices=1,
        model=model,
        code=True,
        say=lambda text: None,
      )
      (facts[n],) = plan.facts_of(plan.parts(plan.config, a.depth), (phase,))
      facts[n]['compiled'] = time.monotonic() - start
    one, other = (facts[n] for n in NUMERICS)
    keys = 'step_seconds', 'flops', 'bytes', 'compiled'
    ratios = [other[key] / one[key] for key in keys]
    seconds = [f['step_seconds'] for f in (one, other)]
    _print(f'{model} {topology} {phase}', [*seconds, *ratios])


def _print(name: str, values: list[float]) -> None:
  print(FORM.format(name, *(f'{x:.3g}' for x in values)), flush=True)


def main():
  a = arguments()
  if not a.topologies:
    cpu = 'fast', 'exact', 'ratio'
    print(FORM.format('CPU s, then wall s', *cpu, *cpu))
    here(a)
    return
  print(
    FORM.format('', 'fast s', 'exact s', 'ratio', 'FLOPs', 'bytes', 'compile')
  )
  for topology in a.topologies.split(','):
    for model in a.models.split(','):
      planned(a, topology, model)


if __name__ == '__main__':
  main()
