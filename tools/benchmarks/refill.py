"""Compares accuracy with and without refill at equal numbers of tokens.

  .venv/bin/python tools/benchmarks/refill.py [--seeds=0,1,2] [--steps=100]
    [--folder=...]
    [--variants=none,masked,refill,kept]

Each seed has one warm start. The variants train configs/dapo_refill_tiny.py
from its weights: without a filter (none), with zero-variance groups masked
(masked) or replaced (refill), and with surplus groups kept for the next step
(kept). Accuracies are interpolated linearly between evaluations, at equal
numbers of generated tokens. The last column is the total of the shortest run.
"""

import argparse
import importlib.util
import json
import pathlib

import numpy as np

from jaxrl_reason.run import train

RECIPE = pathlib.Path(__file__).parents[2] / 'configs' / 'dapo_refill_tiny.py'
# Variant -> changes to the recipe, and share of the steps. Refill generates
# more tokens per step.
VARIANTS = {
  'none': (dict(filter='none', refill_rounds=0), 1.0),
  'masked': (dict(refill_rounds=0), 1.0),
  'refill': ({}, 0.6),
  'kept': (dict(refill_keep=True, old_logp='sampler'), 0.6),
}
METRIC = 'eval/heldout/pass@1'


def recipe(seed: int, steps: int):
  """Returns the recipe without its harder split."""
  spec = importlib.util.spec_from_file_location('recipe', RECIPE)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  c = module.get_config()
  c.seed, c.rl.steps, c.eval.harder = seed, steps, False
  return c


def curve(workdir: pathlib.Path) -> np.ndarray:
  """Returns (tokens generated since rl began, accuracy, seconds) [E, 3]."""
  tokens = seconds = n = 0.0
  out = []
  for line in (workdir / 'metrics.jsonl').read_text().splitlines():
    row = json.loads(line)
    if 'train/tokens' in row:
      n, before = row['step'], n
      tokens += row['train/tokens'] * (n - before)
      seconds += row['perf/step_s'] * (n - before)
    elif METRIC in row:
      out.append((tokens, row[METRIC], seconds))
  return np.array(out)


def warm(folder: pathlib.Path, seed: int) -> pathlib.Path:
  """Returns the workdir of a seed's warm start, and trains it if needed."""
  c, path = recipe(seed, 5), folder / f'warm-{seed}'
  c.stages = ('sft',)
  train.run(c, path)
  return path


def measure(folder: pathlib.Path, seed: int, steps: int, name: str):
  """Returns the curve of a variant, and trains it if needed."""
  changes, share = VARIANTS[name]
  c = recipe(seed, round(steps * share / 10) * 10)
  c.stages, c.init_from = ('rl',), str(warm(folder, seed))
  c.rl.update(changes)
  path = folder / f'{name}-{seed}'
  train.run(c, path)
  return curve(path)


def table(curves: dict[str, list[np.ndarray]], columns: int = 4) -> str:
  """Formats mean accuracies and standard errors over seeds, at equal tokens."""
  least = min(c[-1, 0] for many in curves.values() for c in many)
  at = np.linspace(0, least, columns + 1)[1:]
  lines = ['generated tokens  ' + '  '.join(f'{x:13,.0f}' for x in at)]
  for name, many in curves.items():
    accuracy = np.array([np.interp(at, c[:, 0], c[:, 1]) for c in many])
    error = accuracy.std(axis=0, ddof=min(len(many) - 1, 1)) / len(many) ** 0.5
    cells = [
      f'{m:.3f} +- {e:.3f}' for m, e in zip(accuracy.mean(axis=0), error)
    ]
    rate = np.mean([c[-1, 2] / c[-1, 0] for c in many])
    lines.append(
      f'{name:16}  ' + '  '.join(cells) + f'  {1e6 * rate:.1f} us/token'
    )
  return '\n'.join(lines)


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--seeds', default='0,1,2')
  parser.add_argument('--steps', type=int, default=100)
  parser.add_argument('--folder', default='runs/refill')
  parser.add_argument('--variants', default=','.join(VARIANTS))
  args = parser.parse_args()
  folder, curves = pathlib.Path(args.folder), {}
  for seed in args.seeds.split(','):
    for name in args.variants.split(','):
      points = measure(folder, int(seed), args.steps, name)
      curves.setdefault(name, []).append(points)
  print(table(curves))


if __name__ == '__main__':
  main()
