"""Controllers beside each other, from the same warm starts: accuracy at equal
generated tokens, and at equal seconds.

  python tools/benchmarks/controllers.py [--recipe=curriculum_tiny:5]
    [--seeds=3] [--steps=100] [--every=20] [--out=runs/controllers]
    [--only=uniform,ladder] [--set=model.width=64,rl.prompts=16]
    [--split=heldout] [--picture=FILE.png]

Every seed has one supervised warm start, from which each controller trains with
reinforcement learning for as many steps. Prints two tables in Markdown: the
sampled accuracy (pass@1) of a split at shares of the least tokens, and of the
least seconds, that any run took; means over seeds, with standard errors where
there are several.

Seconds are those of a controller's steps: the lower quartile of what its
intervals took per step, over all seeds, so that other work on the machine moves
them little; compilation, evaluations and saves are left out.

Runs are kept in --out with their metrics: one that is done is not made again,
and one that was cut short goes on.
"""

import argparse
import ast
import dataclasses
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
  'adarft': (dict(name='adarft'), {}),
  'mastered': (dict(name='mastered', retest=20), {}),
  'drive': (dict(name='drive'), {}),
  'sec': (dict(name='uniform', sources='sec'), {}),
  'dump': (dict(name='uniform', sources='dump'), {}),
  'ladder': (dict(name='ladder'), {}),
}
SETTINGS = ('rungs', 'climb', 'review')  # of the recipe's own controller
PARTS = 4  # columns of a table


def recipe(text: str, seed: int, changes: dict):
  """A recipe's config, with some keys changed; NAME or NAME:ARGUMENT."""
  name, *argument = text.split(':')
  path = ROOT / 'configs' / f'{name}.py'
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  c = module.get_config(*argument)
  c.update_from_flattened_dict(changes)
  c.seed = seed
  return c


def changed(text: str) -> dict:
  """The keys and values of --set."""
  pairs = (pair.partition('=') for pair in text.split(',') if pair)
  return {key: ast.literal_eval(value) for key, _, value in pairs}


def controlled(c, settings: dict, steps: int):
  """Puts a controller into a config, in place."""
  own = c.data.controller
  kept = {k: own[k] for k in SETTINGS if own[k] is not None}
  for key in own:
    if key not in ('window', 'refresh', 'memory', 'prior'):
      own[key] = None if key not in ('name', 'sources') else own[key]
  own.sources = 'free' if len(c.data.sources) else 'weights'
  own.update(settings)
  if own.name == 'ladder':
    own.update(**kept)
  if own.name in ('easy_to_hard', 'drive'):
    own.steps = steps
  return c


@dataclasses.dataclass
class Run:
  """What a run has told.

  Attributes:
    points: [E, 3], evaluations: generated tokens and steps since rl began, and
      pass@1.
    step_s: seconds of a step, by interval.
  """

  points: np.ndarray
  step_s: list[float]


def told(workdir: pathlib.Path, split: str) -> Run:
  """Reads a run's metrics."""
  tokens, before, points, step_s = 0.0, 0, {}, []
  for r in map(json.loads, (workdir / 'metrics.jsonl').open()):
    if 'train/tokens' in r:
      tokens += r['train/tokens'] * (r['step'] - before)
      before = r['step']
      step_s.append(r['perf/step_s'])
    elif f'eval/{split}/pass@1' in r:
      points[before] = tokens, before, r[f'eval/{split}/pass@1']
  return Run(np.array([*points.values()]), step_s)


def by_seconds(many: list[Run]) -> list[np.ndarray]:
  """The points of a controller's runs by seconds in place of steps."""
  second = np.quantile(np.concatenate([r.step_s for r in many]), 0.25)
  return [r.points[:, 1:] * [second, 1] for r in many]


def table(curves: dict[str, list[np.ndarray]], unit: str) -> str:
  """Accuracy at equal places of an axis: mean and standard error over seeds.

  Args:
    curves: by controller, of every seed [E, 2]: a place and the accuracy there.
  """
  least = min(c[-1, 0] for many in curves.values() for c in many)
  at = np.linspace(0, least, PARTS + 1)
  lines = [
    '| controller | ' + ' | '.join(f'{x:,.0f} {unit}' for x in at) + ' |',
    '|---' * (2 + PARTS) + '|',
  ]
  for name, many in curves.items():
    found = np.array([np.interp(at, *c.T) for c in many])
    cells = [f'{x:.3f}' for x in found.mean(axis=0)]
    if len(many) > 1:
      errors = found.std(axis=0, ddof=1) / len(many) ** 0.5
      cells = [f'{x} ± {e:.3f}' for x, e in zip(cells, errors)]
    lines.append(f'| {name} | ' + ' | '.join(cells) + ' |')
  return '\n'.join(lines)


def draw(curves: dict[str, list[np.ndarray]], axes, label: str) -> None:
  """Draws means over seeds, with their standard errors."""
  for name, many in curves.items():
    x = np.linspace(0, min(c[-1, 0] for c in many), 50)
    y = np.array([np.interp(x, *c.T) for c in many])
    (line,) = axes.plot(x, y.mean(axis=0), label=name)
    if len(many) > 1:
      error = y.std(axis=0, ddof=1) / len(many) ** 0.5
      low, high = y.mean(axis=0) - error, y.mean(axis=0) + error
      axes.fill_between(x, low, high, color=line.get_color(), alpha=0.12)
  axes.set_xlabel(label)
  axes.xaxis.set_major_formatter('{x:,.0f}')
  axes.locator_params(axis='x', nbins=5)


def picture(path: str, split: str, *axes_of) -> None:
  """Saves a picture of curves by generated tokens and by seconds."""
  import matplotlib

  matplotlib.use('agg')
  import matplotlib.pyplot as plt

  figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
  for one, (curves, label) in zip(axes, axes_of):
    draw(curves, one, label)
  axes[0].set_ylabel(f'pass@1, {split}')
  axes[0].legend(fontsize=8)
  figure.tight_layout()
  figure.savefig(path, dpi=100)


def made(args, out: pathlib.Path, name: str, seed: int) -> Run:
  """What one run has told, trained if need be."""
  where, given = out / f'{name}-{seed}', changed(args.set)
  if (where / 'metrics.jsonl').exists():
    known = told(where, args.split)
    if len(known.points) and known.points[-1, 1] >= args.steps:
      return known
  warm, (settings, changes) = out / f'warm-{seed}', CONTROLLERS[name]
  c = recipe(args.recipe, seed, given)
  c.stages, c.eval.every = ('sft',), c.sft.steps
  train.run(c, warm)
  c = controlled(recipe(args.recipe, seed, given), settings, args.steps)
  c.stages, c.init_from = ('rl',), str(warm)
  c.rl.update(steps=args.steps, **changes)
  c.eval.every = c.checkpoint.every = args.every
  train.run(c, where)
  return told(where, args.split)


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--recipe', default='curriculum_tiny:5')
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument('--steps', type=int, default=100)
  parser.add_argument('--every', type=int, default=20)
  parser.add_argument('--out', default=str(ROOT / 'runs' / 'controllers'))
  parser.add_argument('--only', default=','.join(CONTROLLERS))
  parser.add_argument('--split', default='heldout')
  parser.add_argument('--set', default='', help='keys of the recipe')
  parser.add_argument('--picture', default='')
  args = parser.parse_args()
  out = pathlib.Path(args.out).absolute() / args.recipe
  runs = {name: [] for name in args.only.split(',')}
  for seed in range(args.seeds):
    for name, found in runs.items():
      found.append(made(args, out, name, seed))
  tokens = {k: [r.points[:, ::2] for r in many] for k, many in runs.items()}
  seconds = {k: by_seconds(many) for k, many in runs.items()}
  print(f'{table(tokens, "tokens")}\n\n{table(seconds, "s")}')
  if args.picture:
    axes = (tokens, 'generated tokens'), (seconds, 'seconds of steps')
    picture(args.picture, args.split, *axes)


if __name__ == '__main__':
  main()
