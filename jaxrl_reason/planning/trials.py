"""Trials of a new recipe: its reward on ten problems, and two steps of each
stage on this machine.
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import jax

from jaxrl_reason import config as config_lib
from jaxrl_reason.verifiers import resolve
from jaxrl_reason.verifiers.pool import VerifierPool
from jaxrl_reason.verifiers.verdict import all_invalid

TRIED = 10  # problems
STEPS = 2  # of each stage
QUIET_S = 30  # between two lines about a trial


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


def measured(recipe: pathlib.Path, say) -> float:
  """Runs two steps of each stage on this machine; returns the seconds of the
  last step.

  Raises:
    ValueError: the run failed; quotes its last line.
  """
  stages = config_lib.load(str(recipe), ()).stages
  few = jax.device_count()  # a row for each device
  with tempfile.TemporaryDirectory(prefix='jaxrl-start-') as folder:
    flags = [f'--config.{s}.steps={STEPS}' for s in stages]
    flags += ['--config.log_every=1', f'--config.checkpoint.every={STEPS}']
    flags += [f'--config.eval.problems={few}', f'--config.eval.batch={few}']
    flags += ['--config.eval.samples=1', '--config.eval.harder=False']
    flags += [f'--config={recipe}', f'--workdir={folder}/run']
    say(f'two steps of {" and ".join(stages)} on this machine, as a trial')
    code, last = _finished(flags, pathlib.Path(folder) / 'log', say)
    if code:
      raise ValueError(f'the trial of {recipe} failed: {last}{_killed(code)}')
    rows = (pathlib.Path(folder) / 'run' / 'metrics.jsonl').read_text()
    rows = [json.loads(line) for line in rows.splitlines()]
  return [r['perf/step_s'] for r in rows if 'perf/step_s' in r][-1]


def _finished(flags: list[str], log: pathlib.Path, say) -> tuple[int, str]:
  """Runs the command `run` to its end, and says where it is from time to time.
  Returns (exit code, last line).

  Args:
    log: file for what the command prints.
  """

  def last() -> str:
    lines = log.read_text(errors='replace').replace('\r', '\n').split('\n')
    return next((line.strip() for line in reversed(lines) if line.strip()), '')

  command = [sys.executable, '-m', 'jaxrl_reason', 'run', *flags]
  begun = time.monotonic()
  with log.open('w') as out:
    trial = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
      while True:
        try:
          return trial.wait(QUIET_S), last()
        except subprocess.TimeoutExpired:
          say(f'  {time.monotonic() - begun:.0f} s: {last():.100}')
    finally:
      trial.kill()


def _killed(code: int) -> str:
  """Returns the likely reason of a process that a signal ended, or ''."""
  if code != -signal.SIGKILL:
    return ''
  return (
    ' (the system killed it, probably because memory was full: set '
    '--config.rl.prompts or --completion_len lower)'
  )
