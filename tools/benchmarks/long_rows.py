"""Compares attention with whole scores and with blocks, for long rows on a CPU.

  .venv/bin/python tools/benchmarks/long_rows.py [--layers=4 --width=256]
    [--lengths=512,1024,2048] [--tokens=8192] [--repeats=3]

A batch has --tokens tokens, in rows of each length. The update is reference
log-probs (KL 0.04), log-probs, loss, gradient and AdamW in float32. Updates
with `model.attention` einsum and blocked alternate in one process. `of_peak` is
the rate of the model's FLOPs (causal scores) relative to a 2048^3 product,
which is measured between the repeats. `MiB` is the size of the program's
temporaries. `ratios` are einsum's wall and CPU seconds / those of the row.
"""

import argparse
import functools

import grpo_step
import jax
import shared_prompt

from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import transformer
from jaxrl_reason.rollouts import fused
from jaxrl_reason.update import step as step_lib

KINDS = 'einsum', 'blocked'
GROUP = 2  # rows per prompt; the prompt is a quarter of a row


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--layers', type=int, default=4)
  parser.add_argument('--width', type=int, default=256)
  parser.add_argument('--lengths', default='512,1024,2048')
  parser.add_argument('--tokens', type=int, default=8192, help='per batch')
  parser.add_argument('--repeats', type=int, default=3)
  return parser.parse_args()


def compiled(a: argparse.Namespace, length: int, kind: str):
  """Compiles an update: (() -> metrics, MiB of temporaries, model FLOPs)."""
  config = grpo_step.shape(a.layers, a.width, attention=kind)
  rows, prompt = a.tokens // length, length // 4
  gen = fused.Generation(transformer.build(config), GROUP, length - prompt)
  learner, _, state, _ = grpo_step.problem_of(
    config, gen, rows // GROUP, prompt
  )
  batch = shared_prompt.make_batch(rows, length, prompt, GROUP)
  f = jax.jit(functools.partial(step_lib.update, learner))
  args = state, batch, Sampling.make(), jax.random.key(0)
  f = f.lower(*args).compile()
  # Passes: 1 of the reference, 1 forward and 2 backward of the policy.
  work = a.tokens * learner.model.flops_per_token(length / 2) * 4
  room = f.memory_analysis().temp_size_in_bytes / 2**20
  return functools.partial(f, *args), room, work


def main():
  a = arguments()
  print(
    f'{a.layers} layers x {a.width}, {a.tokens} tokens, float32; '
    f'{jax.default_backend()}, jax {jax.__version__}'
  )
  form = '{:>6} {:8} {:>8} {:>8} {:>8} {:>8}  {}'
  print(form.format(*'length scores wall,s CPU,s of_peak MiB ratios'.split()))
  for length in shared_prompt.numbers(a.lengths):
    programs, room, work = zip(*(compiled(a, length, k) for k in KINDS))
    product = grpo_step.product()
    seen = shared_prompt.in_turn([*programs, product], a.repeats)
    peak = 2 * 2048**3 / seen[-1][0]
    for i, kind in enumerate(KINDS):
      wall, cpu = seen[i]
      ratios = [f'{seen[0][k] / seen[i][k]:.2f}' for k in (0, 1)]
      cells = f'{wall:.3f}', f'{cpu:.3f}', f'{work[i] / peak / wall:.2f}'
      print(
        form.format(length, kind, *cells, f'{room[i]:.0f}', ' '.join(ratios)),
        flush=True,
      )


if __name__ == '__main__':
  main()
