"""Controllers beside each other, from the same warm starts: accuracy at equal
generated tokens, and at equal seconds.

  python tools/benchmarks/controllers.py [--recipe=curriculum_tiny] [--seeds=3]
    [--steps=100] [--every=20] [--out=runs/controllers]
    [--only=uniform,ladder] [--split=heldout] [--picture=FILE.png]

Every seed has one supervised warm start, from which each controller trains with
reinforcement learning for as many steps. Prints two tables in Markdown: the
sampled accuracy (pass@1) of a split at shares of the least tokens, and of the
least seconds, that any run took; means over seeds, with standard errors where
there are several. A run that is done is not made again.
"""

import argparse
import importlib.util
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from jaxrl_reason.run import train

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Settings of data.controller, and of the rl section; on sources, controllers
# that go by the difficulty of all problems are held to no shares.
REFILL = dict(filter='dead_groups', refill_rounds=2)
CONTROLLERS = {
  'uniform': (dict(name='uniform'), {}),
  'refill': (dict(name='uniform'), REFILL),
  'band': (dict(name='band', low=0.1, high=0.9), {}),
  'priority': (dict(name='priority', floor=0.05), {}),
  'greso': (dict(name='greso'), {}),
  'learnability': (dict(name='learnability'), {}),
  'easy_to_hard': (dict(name='easy_to_hard'), {}),
  'ladder': (dict(name='ladder'), {}),
}
SETTINGS = ('rungs', 'climb', 'review')  # of the recipe's own controller
PARTS = 4  # columns of a table


def recipe(name: str, seed: int):
  """A recipe's config."""
  path = ROOT / 'configs' / f'{name}.py'
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  c = module.get_config()
  c.seed = seed
  return c


def controlled(c, settings: dict, steps: int):
  """Puts a controller into a config, in place."""
  own = c.data.controller
  kept = {k: own[k] for k in SETTINGS if own[k] is not None}
  for key in own:
    if key not in ('window', 'refresh', 'memory', 'prior'):
      own[key] = None if key not in ('name', 'sources') else own[key]
  own.update(sources='free' if len(c.data.sources) else 'weights', **settings)
  if own.name == 'ladder':
    own.update(**kept)
  if own.name == 'easy_to_hard':
    own.steps = steps
  return c


def curve(workdir: pathlib.Path, split: str) -> np.ndarray:
  """[(tokens generated since rl began, seconds, pass@1)] of evaluations;
  seconds of steps alone, those of the median interval for each.
  """
  rows = [json.loads(line) for line in (workdir / 'metrics.jsonl').open()]
  seconds = np.median([r['perf/step_s'] for r in rows if 'train/loss' in r])
  tokens, before, out = 0.0, 0, []
  for r in rows:
    if 'train/tokens' in r:
      tokens += r['train/tokens'] * (r['step'] - before)
      before = r['step']
    elif f'eval/{split}/pass@1' in r:
      out.append((tokens, seconds * before, r[f'eval/{split}/pass@1']))
  return np.array(out)


def table(curves: dict[str, list[np.ndarray]], axis: int, unit: str) -> str:
  """Accuracy at equal places of an axis: mean and standard error over seeds."""
  least = min(c[-1, axis] for many in curves.values() for c in many)
  at = np.linspace(0, least, PARTS + 1)
  lines = [
    '| controller | ' + ' | '.join(f'{x:,.0f} {unit}' for x in at) + ' |',
    '|---' * (2 + PARTS) + '|',
  ]
  for name, many in curves.items():
    found = np.array([np.interp(at, c[:, axis], c[:, 2]) for c in many])
    cells = [f'{x:.3f}' for x in found.mean(axis=0)]
    if len(many) > 1:
      errors = found.std(axis=0, ddof=1) / len(many) ** 0.5
      cells = [f'{x} ± {e:.3f}' for x, e in zip(cells, errors)]
    lines.append(f'| {name} | ' + ' | '.join(cells) + ' |')
  return '\n'.join(lines)


def draw(curves: dict[str, list[np.ndarray]], path: str, split: str) -> None:
  """Draws the mean over seeds by generated tokens."""
  import matplotlib

  matplotlib.use('agg')
  import matplotlib.pyplot as plt

  figure, axes = plt.subplots(figsize=(7, 4))
  for name, many in curves.items():
    x = np.linspace(0, min(c[-1, 0] for c in many), 50)
    y = np.mean([np.interp(x, c[:, 0], c[:, 2]) for c in many], axis=0)
    axes.plot(x / 1000, y, label=name)
  axes.set_xlabel('generated tokens, thousands')
  axes.set_ylabel(f'pass@1, {split}')
  axes.legend()
  figure.tight_layout()
  figure.savefig(path, dpi=120)


def made(args, out: pathlib.Path, name: str, seed: int) -> np.ndarray:
  """The curve of one run, trained if need be."""
  warm, (settings, changes) = out / f'warm-{seed}', CONTROLLERS[name]
  c = recipe(args.recipe, seed)
  c.stages = ('sft',)
  train.run(c, warm)
  c = controlled(recipe(args.recipe, seed), settings, args.steps)
  c.stages, c.init_from = ('rl',), str(warm)
  c.rl.update(steps=args.steps, **changes)
  c.eval.every, c.checkpoint.every = args.every, args.steps
  train.run(c, out / f'{name}-{seed}')
  return curve(out / f'{name}-{seed}', args.split)


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--recipe', default='curriculum_tiny')
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument('--steps', type=int, default=100)
  parser.add_argument('--every', type=int, default=20)
  parser.add_argument('--out', default=str(ROOT / 'runs' / 'controllers'))
  parser.add_argument('--only', default=','.join(CONTROLLERS))
  parser.add_argument('--split', default='heldout')
  parser.add_argument('--picture', default='')
  args = parser.parse_args()
  out = pathlib.Path(args.out).absolute() / args.recipe
  curves = {name: [] for name in args.only.split(',')}
  for seed in range(args.seeds):
    for name, found in curves.items():
      found.append(made(args, out, name, seed))
  print(table(curves, 0, 'tokens'))
  print()
  print(table(curves, 1, 's'))
  if args.picture:
    draw(curves, args.picture, args.split)


if __name__ == '__main__':
  main()
