"""Controllers beside each other, from the same warm starts, at equal steps.

  python tools/benchmarks/controllers.py [--recipe=curriculum_tiny] [--seeds=3]
    [--steps=100] [--out=runs/controllers] [--only=uniform,ladder]

Every seed has one supervised warm start, from which each controller trains with
reinforcement learning for as many steps. Prints a table in Markdown: the
sampled accuracy (pass@1) of every held-out split at the end, tokens generated
and seconds of the rl stage; means over seeds, with standard errors where there
are several.
"""

import argparse
import importlib.util
import json
import math
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from jaxrl_reason.run import train

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Settings of data.controller; on sources, those that go by the difficulty of
# all problems are held to no shares.
CONTROLLERS = {
  'uniform': dict(name='uniform'),
  'priority': dict(name='priority', floor=0.05),
  'band': dict(name='band', low=0.1, high=0.9),
  'greso': dict(name='greso'),
  'learnability': dict(name='learnability'),
  'easy_to_hard': dict(name='easy_to_hard'),
  'ladder': dict(name='ladder'),
}
SETTINGS = ('rungs', 'climb', 'review')  # of the recipe's own controller


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
    if key not in ('window', 'memory', 'prior'):
      own[key] = None if key not in ('name', 'sources') else own[key]
  own.update(sources='free' if len(c.data.sources) else 'weights', **settings)
  if own.name == 'ladder':
    own.update(**kept)
  if own.name == 'easy_to_hard':
    own.steps = steps
  return c


def run(c, workdir: pathlib.Path) -> float:
  """Trains, unless that is done; gives the seconds it took."""
  begun = time.monotonic()
  train.run(c, workdir)
  return time.monotonic() - begun


def measured(workdir: pathlib.Path) -> dict[str, float]:
  """Accuracies at the end, and tokens of all steps."""
  rows = [json.loads(x) for x in (workdir / 'metrics.jsonl').open()]
  tokens = [r['train/tokens'] for r in rows if 'train/tokens' in r]
  steps = max(r['step'] for r in rows)
  last = [r for r in rows if 'eval/heldout/pass@1' in r][-1]
  ends = '/pass@1'
  out = {
    k.removeprefix('eval/').removesuffix(ends): v
    for k, v in last.items()
    if k.endswith(ends)
  }
  timed = [r['perf/step_s'] for r in rows if 'perf/step_s' in r][1:]
  out['k tokens'] = sum(tokens) / len(tokens) * steps / 1000
  out['s a step'] = sorted(timed)[len(timed) // 2] if timed else math.nan
  return out


def cell(values: list[float]) -> str:
  """A mean, and its standard error."""
  mean = sum(values) / len(values)
  if len(values) == 1:
    return f'{mean:.3f}'
  var = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
  return f'{mean:.3f} ± {math.sqrt(var / len(values)):.3f}'


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--recipe', default='curriculum_tiny')
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument('--steps', type=int, default=100)
  parser.add_argument('--out', default=str(ROOT / 'runs' / 'controllers'))
  parser.add_argument('--only', default=','.join(CONTROLLERS))
  args = parser.parse_args()
  out = pathlib.Path(args.out) / args.recipe
  found = {name: [] for name in args.only.split(',')}
  for seed in range(args.seeds):
    warm = out / f'warm-{seed}'
    c = recipe(args.recipe, seed)
    c.stages = ('sft',)
    run(c, warm)
    for name, results in found.items():
      c = controlled(recipe(args.recipe, seed), CONTROLLERS[name], args.steps)
      c.stages, c.init_from = ('rl',), str(warm)
      c.rl.steps = args.steps
      c.eval.every = c.checkpoint.every = args.steps
      run(c, out / f'{name}-{seed}')
      results.append(measured(out / f'{name}-{seed}'))
  columns = list(next(iter(found.values()))[0])
  print('| controller | ' + ' | '.join(columns) + ' |')
  print('|---' * (1 + len(columns)) + '|')
  for name, results in found.items():
    cells = [cell([r[k] for r in results]) for k in columns]
    print(f'| {name} | ' + ' | '.join(cells) + ' |')


if __name__ == '__main__':
  main()
