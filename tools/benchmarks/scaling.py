"""Fits the exponents of sampler and update time against size.

  .venv/bin/python tools/benchmarks/scaling.py [--width=128] [--repeats=5]

From 2 layers x 128 and 8 x 8 rows of 32 + 64 tokens, one size is multiplied by
1, 4 and 16: parameters (the width by 1, 2 and 4), rows (samples of a prompt),
or length (prompt and completion). The number of micro-batches grows with the
tokens, so that the memory does not. `exponent` is the slope of log seconds over
log size, by least squares, and `arithmetic` the slope of the model's FLOPs.
`CPU s` and the share of a large product's rate are those of the largest size.
"""

import argparse
import math

import grpo_step
import jax
import numpy as np

FACTORS = (1, 4, 16)


def shape(axis: str, factor: int, width: int) -> dict:
  """Returns arguments of `grpo_step.problem`, with one size x factor."""
  shape = dict(
    width=width,
    samples=grpo_step.G,
    prompt=grpo_step.P,
    new=grpo_step.C,
    micro_batches=1 if axis == 'parameters' else factor,
  )
  if axis == 'parameters':
    shape['width'] *= math.isqrt(factor)
  elif axis == 'rows':
    shape['samples'] *= factor
  else:
    shape['prompt'] *= factor
    shape['new'] *= factor
  return shape


def exponent(values) -> float:
  return float(np.polyfit(np.log(FACTORS), np.log(values), 1)[0])


def measure(axis: str, width: int, repeats: int) -> dict:
  """Measures phase -> ([(wall, CPU seconds)], [FLOPs]), each by factor."""
  phases = {'sampler': ([], []), 'update': ([], [])}
  for factor in FACTORS:
    sizes = shape(axis, factor, width)
    problem = grpo_step.problem(2, **sizes)
    flops = grpo_step.flops(problem[0], **sizes)
    programs = grpo_step.programs(*problem)
    for phase, (seconds, work) in phases.items():
      seconds.append(grpo_step.timed(programs[phase], repeats))
      work.append(flops[phase])
  return phases


def print_row(axis: str, phase: str, seconds: list, work: list, peak: float):
  wall, cpu = zip(*seconds)
  cells = ' '.join(f'{s:8.3f}' for s in wall)
  slopes = f'{exponent(wall):9.2f} {exponent(work):11.2f}'
  last = f'{cpu[-1]:8.2f} {work[-1] / peak / wall[-1]:8.2f}'
  print(f'{axis:10} {phase:8} {cells} {slopes} {last}', flush=True)


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--width', type=int, default=128)
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--axes', default='parameters,rows,length')
  args = parser.parse_args()
  peak = grpo_step.matmul_peak(args.repeats)
  print(
    f'2 layers x {args.width}, {grpo_step.B} x {grpo_step.G} rows, '
    f'{grpo_step.P} + {grpo_step.C} tokens at x1; jax {jax.__version__}, '
    f'matmul peak {peak / 1e9:.0f} GFLOP/s'
  )
  columns = ' '.join(f'{f"x{n} s":>8}' for n in FACTORS)
  print(
    f'{"axis":10} {"phase":8} {columns} {"exponent":>9} {"arithmetic":>11} '
    f'{"CPU s":>8} {"of peak":>8}'
  )
  for axis in args.axes.split(','):
    phases = measure(axis, args.width, args.repeats)
    for phase, (seconds, work) in phases.items():
      print_row(axis, phase, seconds, work, peak)


if __name__ == '__main__':
  main()
