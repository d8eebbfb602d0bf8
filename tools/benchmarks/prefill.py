"""Measures memory and time of prefill in chunks of columns, by chunk size.

  .venv/bin/python tools/benchmarks/prefill.py [--layers=4 --width=256]
    [--rows=8]
    [--prompt=2048] [--chunks=0,1024,512,256,128] [--repeats=5]

`full` times prompts that fill their columns, `half` prompts whose first half is
padding. `MiB` is the size of the program's temporaries, without the cache that
it returns.
"""

import argparse

import grpo_step
import jax
import jax.numpy as jnp


def measure(args, chunk: int) -> list[float]:
  """Measures [MiB, seconds full, seconds half] of a chunk size; 0: whole."""
  learner, _, state, _ = grpo_step.problem(
    args.layers,
    args.width,
    prompt=args.prompt,
    prefill=f'chunks:{chunk}' if chunk else 'whole',
  )
  shape = args.rows, args.prompt
  prompts = jax.random.randint(jax.random.key(1), shape, 0, grpo_step.V)
  f = jax.jit(lambda p, valid: learner.model.prefill(p, prompts, valid, 1, 1))
  full = jnp.ones(shape, bool)
  compiled = f.lower(state.params, full).compile()
  row = [compiled.memory_analysis().temp_size_in_bytes / 2**20]
  for valid in (full, full & (jnp.arange(args.prompt) >= args.prompt // 2)):

    def run(valid=valid):
      return compiled(state.params, valid)

    row.append(grpo_step.timed(run, args.repeats)[0])
  return row


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--layers', type=int, default=4)
  parser.add_argument('--width', type=int, default=256)
  parser.add_argument('--rows', type=int, default=8)
  parser.add_argument('--prompt', type=int, default=2048)
  parser.add_argument('--chunks', default='0,1024,512,256,128')
  parser.add_argument('--repeats', type=int, default=5)
  args = parser.parse_args()
  print(
    f'{args.layers} layers x {args.width}, {args.rows} prompts of '
    f'{args.prompt} tokens; {jax.default_backend()}, jax {jax.__version__}'
  )
  print(f'{"chunk":>6} {"MiB":>9} {"full s":>8} {"half s":>8}')
  for chunk in map(int, args.chunks.split(',')):
    memory, full, half = measure(args, chunk)
    name = chunk or 'whole'
    print(f'{name:>6} {memory:9.1f} {full:8.3f} {half:8.3f}', flush=True)


if __name__ == '__main__':
  main()
