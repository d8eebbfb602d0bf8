"""Compares updates with one prompt per row and with one prompt per group.

  .venv/bin/python tools/benchmarks/shared_prompt.py [--layers=2 --width=128]
    [--rows=64 --tokens=256] [--shares=0.1,0.25,0.5,0.75,0.9]
    [--groups=4,16,64] [--columns=4,12] [--repeats=5]
  .venv/bin/python tools/benchmarks/shared_prompt.py --topology=v5p:2x2x1
    [--model=qwen2.5-0.5b] [--mesh=1,4,1]

`share` is the prompt's share of a row's tokens, G the number of rows per
prompt. There is no padding. The update is reference log-probs (KL 0.04),
log-probs, loss, gradient and AdamW for one batch. `flops` is the ratio of XLA's
counts for the compiled programs (with unrolled layers). `tokens` is the ratio
of computed tokens, share / G + 1 - share. With columns, the rows of a group are
the leaves of trees that fork in two before these columns of completions, and
the update computes each distinct token once (`rl.padding=tree:N`). Both updates
alternate in one process, because other work on the machine affects ratios less
than seconds.

With a topology, the update of a recipe is compiled for it and not run (needs
the extra `tpu`). The table has FLOPs of matrix products on one device, bytes,
and seconds by the roofline.
"""

import argparse
import dataclasses
import functools
import statistics
import time

import grpo_step
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.base import Batch
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import transformer
from jaxrl_reason.rollouts import fused
from jaxrl_reason.update import packing
from jaxrl_reason.update import step as step_lib


def numbers(text: str, kind=int) -> list:
  return [kind(x) for x in text.split(',') if x]


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--layers', type=int, default=2)
  parser.add_argument('--width', type=int, default=128)
  parser.add_argument('--rows', type=int, default=64)
  parser.add_argument('--tokens', type=int, default=256, help='tokens of a row')
  parser.add_argument('--shares', default='0.1,0.25,0.5,0.75,0.9')
  parser.add_argument('--groups', default='4,16,64')
  parser.add_argument('--columns', default='', help='as rl.tree.columns')
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--topology', default='', help='as for jaxrl plan')
  parser.add_argument('--model', default='qwen2.5-0.5b', help='a zoo name')
  parser.add_argument('--mesh', default='1,4,1', help='data,fsdp,tensor')
  return parser.parse_args()


def parts_of(t: int, prompt: int, group: int, columns: list[int]) -> list:
  """Lists (tokens, rows that share them) of the parts of rows of t tokens."""
  ends = [0, prompt, *(prompt + column for column in columns), t]
  leaves = [2**level for level in range(len(columns), -1, -1)]
  return list(zip(np.diff(ends), [group, *leaves]))


def make_batch(
  n: int, t: int, prompt: int, group: int, columns: list[int]
) -> Batch:
  """Returns full rows of random tokens, with one prompt per group."""
  rng = np.random.default_rng(1)

  def part(size, rows):
    tokens = rng.integers(0, grpo_step.V, (n // rows, size))
    return np.repeat(tokens, rows, axis=0)

  parts = parts_of(t, prompt, group, columns)
  tokens = np.concatenate([part(*x) for x in parts], axis=1)
  reward = jnp.asarray(rng.random(n), jnp.float32)
  of = jnp.arange(n, dtype=jnp.int32) // group
  return Batch(
    tokens=jnp.asarray(tokens, jnp.int32),
    valid=jnp.ones((n, t), bool),
    mask=jnp.broadcast_to(jnp.arange(t) >= prompt, (n, t)),
    reward=reward,
    reward_parts=reward[:, None],
    reward_valid=reward >= 0,
    group=of,
    truncated=reward < 0,
    temperature=jnp.ones(n),
    sampler_logp=jnp.full((n, t), -np.log(grpo_step.V), jnp.float32),
    prompt_index=of,
  )


@dataclasses.dataclass(frozen=True)
class OneSize(packing.Tree):
  """Trees with the one number of distinct tokens that is needed, so that FLOPs
  are those of its program.

  Attributes:
    number: index of the size.
  """

  number: int = 0

  def cuts(self, batch, slabs):
    which, cuts = super().cuts(batch, slabs)
    return jnp.zeros_like(which), cuts[self.number :][:1]


def compiled(a: argparse.Namespace, share: float, group: int) -> list:
  """Compiles both updates: (() -> metrics, FLOPs) of each."""
  prompt = round(share * a.tokens)
  config = grpo_step.shape(a.layers, a.width, train_layers='unroll')
  model = transformer.build(config)
  gen = fused.Generation(model, group, a.tokens - prompt)
  learner, _, state, _ = grpo_step.problem_of(
    config, gen, a.rows // group, prompt
  )
  columns = numbers(a.columns)
  batch = make_batch(a.rows, a.tokens, prompt, group, columns)
  once = packing.Shared(prompt, 1, group, a.rows // group)
  if columns:
    once = OneSize(prompt, 64, group, a.rows // group)
    number = packing.Tree.cuts(once, batch, 1)[0]
    once = dataclasses.replace(once, number=int(number))
  updates = []
  for how in (None, once):
    learn = dataclasses.replace(learner, packing=how)
    f = jax.jit(functools.partial(step_lib.update, learn))
    args = state, batch, Sampling.make(), jax.random.key(0)
    f = f.lower(*args).compile()
    updates.append((functools.partial(f, *args), f.cost_analysis()['flops']))
  return updates


def in_turn(programs: list, repeats: int) -> list[tuple[float, float]]:
  """Measures median wall and CPU seconds of each program after a warm-up."""
  times = [[] for _ in programs]
  for _ in range(repeats + 1):
    for f, rows in zip(programs, times):
      wall, cpu = time.perf_counter(), time.process_time()
      jax.block_until_ready(f())
      rows.append((time.perf_counter() - wall, time.process_time() - cpu))
  return [tuple(map(statistics.median, zip(*rows[1:]))) for rows in times]


def measured(a: argparse.Namespace) -> None:
  print(
    f'{a.layers} layers x {a.width}, {a.rows} rows of {a.tokens} tokens, '
    f'vocabulary {grpo_step.V}, float32; {jax.default_backend()}, '
    f'jax {jax.__version__}; shared / whole'
  )
  form = '{:>5} {:>3} | {:>7} {:>7} | {:>8} {:>8} | {:>6} {:>5} {:>5} {:>5}'
  print(
    form.format(
      *'share G whole shared CPU,s shared tokens flops wall CPU'.split()
    )
  )
  for share in numbers(a.shares, float):
    for group in numbers(a.groups):
      programs, flops = zip(*compiled(a, share, group))
      (wall, cpu), (wall_once, cpu_once) = in_turn(programs, a.repeats)
      columns = numbers(a.columns)
      parts = parts_of(a.tokens, round(share * a.tokens), group, columns)
      tokens = sum(size / rows for size, rows in parts)
      ratios = [tokens / a.tokens, flops[1] / flops[0]]
      ratios += [wall_once / wall, cpu_once / cpu]
      seconds = [f'{x:.3f}' for x in (wall, wall_once, cpu, cpu_once)]
      cells = [f'{x:.2f}' for x in ratios]
      print(form.format(share, group, *seconds, *cells), flush=True)


def planned(a: argparse.Namespace) -> None:
  """Compiles both updates of a published model's shape for a topology."""
  import decode_tpu

  from jaxrl_reason.planning import planner as plan

  a.prompts, a.samples, a.segments, a.micro_batches = 8, 16, 1, 8
  print(
    f'{a.model}, 128 rows of {a.tokens} tokens, 8 micro-batches, mesh '
    f'{a.mesh}, {a.topology}; one device, shared / whole'
  )
  form = '{:>5} {:>3} | {:>9} {:>9} | {:>6} {:>5} {:>5} {:>7}'
  print(form.format(*'share G TFLOP shared tokens flops bytes seconds'.split()))
  for share in numbers(a.shares, float):
    for group in numbers(a.groups):
      a.prompt_len = round(share * a.tokens)
      a.completion_len = a.tokens - a.prompt_len
      a.prompts, a.samples = 128 // group, group
      config = decode_tpu.recipe(a)
      planner = plan.Planner(
        config, a.topology, slices=1, model=a.model, say=lambda text: None
      )
      seen = []
      for padding in ('whole', 'shared:1'):
        changed = config.changed(rl__padding=padding)
        run = planner.parts(changed)
        (facts,) = planner.facts_of(run, ('update',))
        seen.append(facts)
      whole, once = seen
      part = a.prompt_len / a.tokens
      ratios = [part / group + 1 - part]
      ratios += [once[k] / whole[k] for k in ('flops', 'bytes', 'step_seconds')]
      tera = [f'{x["flops"] / 1e12:.1f}' for x in seen]
      print(
        form.format(share, group, *tera, *(f'{x:.2f}' for x in ratios)),
        flush=True,
      )


def main():
  a = arguments()
  planned(a) if a.topology else measured(a)


if __name__ == '__main__':
  main()
