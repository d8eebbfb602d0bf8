"""Measures the time that a shared prompt saves, by group size.

  .venv/bin/python tools/benchmarks/group_size.py [--layers=4 --width=256]
    [--rows=64]
    [--prompt=512] [--new=64] [--repeats=5]

The number of rows is constant, in groups of G. `shared` prefills each prompt
once and stores one copy of its keys for its G rows. `repeated` prefills the
prompt for every row. Both sample the same tokens, which is checked.
"""

import argparse

import grpo_step
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts import sampler


def generator(model, prompts, n_samples: int, new: int):
  """Returns a compiled function: params -> Rollout of the prompts [B,P]."""
  return jax.jit(
    lambda params: sampler.generate(
      model,
      params,
      prompts,
      jnp.ones(prompts.shape, bool),
      jax.random.key(2),
      Sampling.make(),
      grpo_step.NEVER,
      n_samples=n_samples,
      max_new=new,
      segments=4,
    )
  )


def measure(args, group: int) -> tuple[float, float]:
  """Measures seconds (shared, repeated) for one group size."""
  learner, _, state, _ = grpo_step.problem(
    args.layers, args.width, prompt=args.prompt, new=args.new
  )
  shape = args.rows // group, args.prompt
  prompts = jax.random.randint(jax.random.key(1), shape, 0, grpo_step.V)
  runs = {
    'shared': generator(learner.model, prompts, group, args.new),
    'repeated': generator(
      learner.model, jnp.repeat(prompts, group, axis=0), 1, args.new
    ),
  }
  drawn = [np.asarray(f(state.params).tokens) for f in runs.values()]
  # Sums in another order may change a sampled token and the rest of its row.
  if (drawn[0] == drawn[1]).mean() < 0.9:
    raise RuntimeError('shared and repeated prompts sample different tokens')
  return tuple(
    grpo_step.timed(lambda: f(state.params), args.repeats)[0]  # noqa: B023
    for f in runs.values()
  )


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--layers', type=int, default=4)
  parser.add_argument('--width', type=int, default=256)
  parser.add_argument('--rows', type=int, default=64)
  parser.add_argument('--prompt', type=int, default=512)
  parser.add_argument('--new', type=int, default=64)
  parser.add_argument('--repeats', type=int, default=5)
  args = parser.parse_args()
  print(
    f'{args.layers} layers x {args.width}, {args.rows} rows, {args.prompt} + '
    f'{args.new} tokens; jax {jax.__version__}'
  )
  print(f'{"G":>4} {"shared s":>9} {"repeated s":>11} {"saves":>6}')
  for group in (1, 4, 16, 64):
    shared, repeated = measure(args, group)
    ratio = repeated / shared
    print(f'{group:4} {shared:9.3f} {repeated:11.3f} {ratio:6.2f}', flush=True)


if __name__ == '__main__':
  main()
