"""Measures the step of a pretrained model with one setting changed at a time.

  .venv/bin/python tools/benchmarks/real_model.py
    [--config=configs/smollm2_135m_words.py]
    [--only=NAME,...] [--steps=4] [-- --config.KEY=VALUE ...]

Every line is a run of `jaxrl_reason.main` in its own process, with one changed
setting of the recipe. The flags after `--` apply to all runs. Figures are
medians over the steps after the first, which compiles:

  rollout, update   seconds
  GiB               peak memory of the process, with evaluation
  gap               |log-prob of the trainer - of the sampler|, nats per token
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

TOP_P = ['rl.temperature=0.7', 'rl.top_p=0.9']
BFLOAT16, INT8 = 'model.dtype=bfloat16', 'model.cache_dtype=int8'
SETTINGS = {
  'as it is': [],
  'prompts apart': ['rl.padding=whole'],
  'packed rows': ['rl.padding=packed:96'],
  'room of 96': ['data.completion_len=96'],
  'slots': ['rl.slots=4'],
  'micro-batches': ['rl.micro_batches=4'],
  'LoRA': ['lora.rank=16'],
  'top-p': TOP_P,
  'bfloat16': [BFLOAT16],
  'bfloat16 top-p': [BFLOAT16, *TOP_P],
  'int8 cache': [INT8],
  'int8 top-p': [INT8, *TOP_P],
}
# Only one problem is evaluated. A stage always evaluates at its start and end.
ALWAYS = [
  'log_every=1',
  'eval.problems=1',
  'eval.samples=1',
  'eval.show=0',
  'eval.harder=false',
]
COLUMNS = {
  'rollout s': 'perf/rollout_s',
  'update s': 'perf/update_s',
  'GiB': 'perf/host_gib',
  'gap mean': 'train/gap_mean',
  'gap max': 'train/gap_max',
}


def arguments() -> argparse.Namespace:
  p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  p.add_argument('--config', default='configs/smollm2_135m_words.py')
  p.add_argument('--only', default=','.join(SETTINGS))
  p.add_argument('--steps', type=int, default=4)
  p.add_argument('more', nargs='*', help='flags of every run, after --')
  return p.parse_args()


def run(a: argparse.Namespace, settings: list[str]) -> dict[str, float]:
  """Runs a recipe and returns medians of its metrics by column."""
  with tempfile.TemporaryDirectory() as workdir:
    command = [sys.executable, '-m', 'jaxrl_reason.main']
    command += [f'--config={a.config}', f'--workdir={workdir}/run']
    changed = [*ALWAYS, f'rl.steps={a.steps}', *settings]
    command += [f'--config.{x}' for x in changed] + a.more
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
      message = ' '.join(done.stderr.split())[-800:]
      raise RuntimeError(
        f'exit {done.returncode} (-9: out of memory): {message}'
      )
    lines = pathlib.Path(workdir, 'run/metrics.jsonl').read_text().splitlines()
  rows = [m for m in map(json.loads, lines) if 'perf/update_s' in m][1:]
  return {
    name: statistics.median(m[key] for m in rows)
    for name, key in COLUMNS.items()
  }


def main():
  a = arguments()
  print(' ' * 16 + ''.join(f'{x:>10}' for x in COLUMNS))
  for name in a.only.split(','):
    medians = run(a, SETTINGS[name])
    cells = (
      f'{x:10.2f}' if x > 0.1 else f'{x:10.1e}' for x in medians.values()
    )
    print(f'{name:16}' + ''.join(cells), flush=True)


if __name__ == '__main__':
  main()
