"""Compares controllers from the same warm starts: accuracy at equal numbers of
generated tokens, and at equal seconds.

  .venv/bin/python tools/benchmarks/controllers.py [--recipe=curriculum_tiny:5]
    [--seeds=3] [--steps=100] [--every=20] [--out=runs/controllers]
    [--only=uniform,ladder] [--set=model.width=64,rl.prompts=16]
    [--split=heldout] [--picture=FILE.png]

Every seed has one supervised warm start, from which each controller trains by
RL for the same number of steps. Prints two tables in Markdown with the sampled
accuracy (pass@1) of a split: at fractions of the smallest number of tokens of
any run, and at fractions of the smallest number of seconds. Figures are means
over seeds, with standard errors if there are several seeds.

The seconds of a controller are steps x the lower quartile of its seconds per
step, over all intervals and seeds, to reduce the effect of other work on the
machine. Compilation, evaluations and saves are not included.

Runs are stored in --out with their metrics. A finished run is not repeated, and
an interrupted run is resumed.
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

# Settings of data.controller, and of the rl section.
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
SETTINGS = ('rungs', 'climb', 'review')  # keys that the ladder keeps
PARTS = 4  # columns of a table


def recipe(text: str, seed: int, changes: dict):
  """Returns the config of a recipe, NAME or NAME:ARGUMENT, with changes."""
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
  """Parses the keys and values of --set."""
  pairs = (pair.partition('=') for pair in text.split(',') if pair)
  return {key: ast.literal_eval(value) for key, _, value in pairs}


def controlled(c, settings: dict, steps: int):
  """Sets the controller of a config in place."""
  controller = c.data.controller
  of_ladder = {k: controller[k] for k in SETTINGS if controller[k] is not None}
  for key in controller:
    if key not in ('window', 'refresh', 'memory', 'prior'):
      controller[key] = (
        None if key not in ('name', 'sources') else controller[key]
      )
  # Controllers that use the difficulty of all problems choose among all
  # sources.
  controller.sources = 'free' if len(c.data.sources) else 'weights'
  controller.update(settings)
  if controller.name == 'ladder':
    controller.update(**of_ladder)
  if controller.name in ('easy_to_hard', 'drive'):
    controller.steps = steps
  return c


@dataclasses.dataclass
class Run:
  """The metrics of a run.

  Attributes:
    points: [E, 3], for each evaluation: generated tokens and steps since rl
      began, and pass@1.
    step_s: seconds per step of each interval.
  """

  points: np.ndarray
  step_s: list[float]


def read_run(workdir: pathlib.Path, split: str) -> Run:
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
  """Returns (seconds, pass@1) of the evaluations of a controller's runs."""
  second = np.quantile(np.concatenate([r.step_s for r in many]), 0.25)
  return [r.points[:, 1:] * [second, 1] for r in many]


def table(curves: dict[str, list[np.ndarray]], unit: str) -> str:
  """Formats accuracies at equal points of an axis: means and standard errors.

  Args:
    curves: controller -> for every seed [E, 2]: point and accuracy.
  """
  least = min(c[-1, 0] for many in curves.values() for c in many)
  at = np.linspace(0, least, PARTS + 1)
  lines = [
    '| controller | ' + ' | '.join(f'{x:,.0f} {unit}' for x in at) + ' |',
    '|---' * (2 + PARTS) + '|',
  ]
  for name, many in curves.items():
    accuracy = np.array([np.interp(at, *c.T) for c in many])
    cells = [f'{x:.3f}' for x in accuracy.mean(axis=0)]
    if len(many) > 1:
      errors = accuracy.std(axis=0, ddof=1) / len(many) ** 0.5
      cells = [f'{x} ± {e:.3f}' for x, e in zip(cells, errors)]
    lines.append(f'| {name} | ' + ' | '.join(cells) + ' |')
  return '\n'.join(lines)


def draw(curves: dict[str, list[np.ndarray]], axes, label: str) -> None:
  """Draws means over seeds with their standard errors."""
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


def trained(args, out: pathlib.Path, name: str, seed: int) -> Run:
  """Returns the metrics of one run. Trains the run unless it is finished."""
  folder, keys = out / f'{name}-{seed}', changed(args.set)
  if (folder / 'metrics.jsonl').exists():
    run = read_run(folder, args.split)
    if len(run.points) and run.points[-1, 1] >= args.steps:
      return run
  warm, (settings, changes) = out / f'warm-{seed}', CONTROLLERS[name]
  c = recipe(args.recipe, seed, keys)
  c.stages, c.eval.every = ('sft',), c.sft.steps
  train.run(c, warm)
  c = controlled(recipe(args.recipe, seed, keys), settings, args.steps)
  c.stages, c.init_from = ('rl',), str(warm)
  c.rl.update(steps=args.steps, **changes)
  c.eval.every = c.checkpoint.every = args.every
  train.run(c, folder)
  return read_run(folder, args.split)


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--recipe', default='curriculum_tiny:5')
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument('--steps', type=int, default=100)
  parser.add_argument('--every', type=int, default=20)
  parser.add_argument('--out', default=str(ROOT / 'runs' / 'controllers'))
  parser.add_argument('--only', default=','.join(CONTROLLERS))
  parser.add_argument('--split', default='heldout')
  parser.add_argument('--set', default='', help='changed keys of the recipe')
  parser.add_argument('--picture', default='')
  args = parser.parse_args()
  out = pathlib.Path(args.out).absolute() / args.recipe
  runs = {name: [] for name in args.only.split(',')}
  for seed in range(args.seeds):
    for name, finished in runs.items():
      finished.append(trained(args, out, name, seed))
  tokens = {k: [r.points[:, ::2] for r in many] for k, many in runs.items()}
  seconds = {k: by_seconds(many) for k, many in runs.items()}
  print(f'{table(tokens, "tokens")}\n\n{table(seconds, "s")}')
  if args.picture:
    axes = (tokens, 'generated tokens'), (seconds, 'seconds of steps')
    picture(args.picture, args.split, *axes)


if __name__ == '__main__':
  main()
