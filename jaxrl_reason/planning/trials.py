"""Trials of a new recipe: its reward on ten problems, and two steps of each
stage on this machine.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import jax

from jaxrl_reason import config as config_lib
from jaxrl_reason.verifiers import resolve
from jaxrl_reason.verifiers.pool import VerifierPool
from jaxrl_reason.verifiers.verdict import all_invalid

TRIED = 10  # problems
STEPS = 2  # of each stage


def reward(rl: config_lib.RL, problems) -> str:
  """Returns a table of the reward on ten problems: of the reference solution,
  and of the solution of another problem.

  Raises:
    ValueError: the reward cannot be found, or gives no valid verdict.
  """
  own = rl.rewards['answer']['reward']
  name = problems.reward if own == 'task' else own
  n = min(TRIED, len(problems.train))
  examples = [problems.train[i] for i in range(n)]
  solutions = [e.get('solution') or e['answer'] for e in examples]
  others = [*solutions[1:], solutions[0]]
  cases = [*zip(solutions, examples), *zip(others, examples)]
  resolve.load(name)
  with VerifierPool(name, workers=1, timeout_s=rl.timeout_s) as pool:
    verdicts = pool.map(cases)
  if failed := all_invalid(verdicts, rl.timeout_s):
    raise ValueError(
      f'--reward={name}: {failed}. `example` has the keys '
      f'{", ".join(examples[0])}'
    )
  lines = [
    f'the reward {name} on {n} problems: with the reference solution, and '
    'with that of another problem'
  ]
  for example, right, other in zip(examples, verdicts[:n], verdicts[n:]):
    question = ' '.join(example['prompt'].split())[:48]
    answer = ' '.join(str(example['answer']).split())[-16:]
    marks = [f'{v.score:g}' if v.valid else v.status for v in (right, other)]
    lines.append(f'  {question:48}  {answer:>16}  {marks[0]:>7} {marks[1]:>7}')
  if not any(v.score > 0 for v in verdicts[:n]):
    lines.append(
      '  WARNING: no reference solution gets a reward: is the field of the '
      'answer right?'
    )
  return '\n'.join(lines)


def measured(recipe: pathlib.Path, say) -> str:
  """Runs two steps of each stage on this machine; returns what a step costs.

  Raises:
    ValueError: the run failed; quotes its last line.
  """
  stages = config_lib.load(str(recipe), ()).stages
  with tempfile.TemporaryDirectory(prefix='jaxrl-start-') as folder:
    flags = [f'--config.{s}.steps={STEPS}' for s in stages]
    flags += ['--config.log_every=1', f'--config.checkpoint.every={STEPS}']
    flags += ['--config.eval.problems=8', '--config.eval.samples=1']
    flags += [f'--config={recipe}', f'--workdir={folder}/run']
    say(f'two steps of {" and ".join(stages)} on this machine, as a trial')
    done = subprocess.run(
      [sys.executable, '-m', 'jaxrl_reason', 'run', *flags],
      capture_output=True,
      text=True,
    )
    if done.returncode:
      last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
      raise ValueError(f'the trial of {recipe} failed: {last}')
    rows = (pathlib.Path(folder) / 'run' / 'metrics.jsonl').read_text()
    rows = [json.loads(line) for line in rows.splitlines()]
  steps = [r['perf/step_s'] for r in rows if 'perf/step_s' in r]
  return (
    f'On this machine ({jax.device_count()} x {jax.devices()[0].device_kind}): '
    f'a step of the last stage takes {steps[-1]:.3g} s.'
  )
