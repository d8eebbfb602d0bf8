"""Compares updates with padded rows, packed rows and rows cut by length.

  .venv/bin/python tools/benchmarks/packing.py [--layers=4 --width=256]
    [--repeats=7]
    [--rows=64 --prompt=32 --new=256] [--micro=1] [--sizes=8]

Completion lengths are log-normal (sigma 1) with a mean of a quarter of the
limit, truncated at the limit. Prompts fill half to all of their columns. The
update is GRPO with a reference (KL 0.04), AdamW and a vocabulary of 512, in
float32 on CPU and bfloat16 elsewhere. `tokens/s` counts tokens without padding,
with prompts. `floor` is padded seconds x the share of tokens that are not
padding: the time of perfect packing.
"""

import argparse
import dataclasses
import functools

import grpo_step
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.base import Batch
from jaxrl_reason.logits import Sampling
from jaxrl_reason.update import packing
from jaxrl_reason.update import step as step_lib


def lengths(n: int, limit: int, seed: int = 0) -> np.ndarray:
  """Samples n completion lengths, with mean limit / 4 before truncation."""
  rng = np.random.default_rng(seed)
  drawn = rng.lognormal(np.log(limit / 4) - 0.5, 1.0, n)
  return np.clip(np.ceil(drawn), 1, limit).astype(int)


def make_batch(n: int, prompt: int, new: int, group: int = 8) -> Batch:
  """Returns rows of random tokens with rewards that differ within a group."""
  rng = np.random.default_rng(1)
  columns = np.arange(prompt + new)
  first = prompt - rng.integers(prompt // 2, prompt + 1, n)
  end = prompt + lengths(n, new)
  valid = (columns >= first[:, None]) & (columns < end[:, None])
  reward = jnp.asarray(rng.random(n), jnp.float32)
  return Batch(
    tokens=jnp.asarray(rng.integers(0, grpo_step.V, valid.shape)),
    valid=jnp.asarray(valid),
    mask=jnp.asarray(valid & (columns >= prompt)),
    reward=reward,
    reward_parts=reward[:, None],
    reward_valid=reward >= 0,
    group=jnp.arange(n) // group,
    truncated=reward < 0,
    temperature=jnp.ones(n),
    sampler_logp=jnp.full(valid.shape, -np.log(grpo_step.V), jnp.float32),
  )


def measure(args) -> tuple[list[tuple], int]:
  """Returns ([(kind, computed tokens, wall s, CPU s)], real tokens)."""
  dtype = 'float32' if jax.default_backend() == 'cpu' else 'bfloat16'
  learner, _, state, _ = grpo_step.problem(
    args.layers, args.width, prompt=args.prompt, new=args.new, dtype=dtype
  )
  batch = make_batch(args.rows, args.prompt, args.new)
  t = batch.tokens.shape[1]
  ways = {
    'padded': None,
    'cut': packing.Lengths(args.prompt, args.sizes),
    f'packed {t}': packing.Packing(t, args.sizes),
    f'packed {2 * t}': packing.Packing(2 * t, args.sizes),
  }
  table = []
  for name, how in ways.items():
    learn = dataclasses.replace(learner, packing=how, micro_batches=args.micro)
    f = functools.partial(step_lib.update, learn)
    update = functools.partial(
      jax.jit(f), state, batch, Sampling.make(), jax.random.key(0)
    )
    wall, cpu = grpo_step.timed(update, args.repeats)
    table.append((name, tokens_run(how, batch, args.micro), wall, cpu))
  return table, int(batch.valid.sum())


def tokens_run(how, batch: Batch, parts: int) -> int:
  """Counts the computed tokens of all micro-batches, with padding."""
  batch, _ = packing.arranged(how, batch, batch, parts)

  def size(rows, packed):
    return jnp.int32(rows.size if packed is None else packed.source.size)

  split = [
    jax.tree.map(lambda x, i=i: x[i::parts], batch) for i in range(parts)
  ]
  return sum(int(packing.fit(how, x, x.valid, size)) for x in split)


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--layers', type=int, default=4)
  parser.add_argument('--width', type=int, default=256)
  parser.add_argument('--rows', type=int, default=64)
  parser.add_argument('--prompt', type=int, default=32)
  parser.add_argument('--new', type=int, default=256)
  parser.add_argument('--micro', type=int, default=1)
  parser.add_argument('--sizes', type=int, default=8)
  parser.add_argument('--repeats', type=int, default=7)
  args = parser.parse_args()
  table, real = measure(args)
  padded = table[0]
  print(
    f'{args.layers} layers x {args.width}, {args.rows} rows of {args.prompt} + '
    f'{args.new} tokens, {real:,} of {padded[1]:,} real, {args.micro} '
    f'micro-batches, {args.sizes} sizes; {jax.default_backend()}, '
    f'jax {jax.__version__}'
  )
  print(
    f'{"update":12} {"tokens run":>10} {"wall s":>8} {"CPU s":>8} '
    f'{"tokens/s":>9} {"padded / it":>11}'
  )
  floor = padded[2] * real / padded[1], padded[3] * real / padded[1]
  for name, size, wall, cpu in [*table, ('floor', real, *floor)]:
    print(
      f'{name:12} {size:10,} {wall:8.3f} {cpu:8.3f} {real / wall:9.0f} '
      f'{padded[2] / wall:11.2f}'
    )


if __name__ == '__main__':
  main()
