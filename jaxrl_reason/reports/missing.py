"""Commands that fill a panel without data."""

import shlex

from jaxrl_reason.reports import figures
from jaxrl_reason.reports.workdirs import Run

# The missing data of a panel without figures.
WHY = {
  'pass': 'Shows evaluations of a split before the last stage and after it; '
  'there are no two.',
  'forgetting': 'Shows what two models answered to one suite, and the KL to a '
  '--base; neither is there.',
  'support': 'Shows the problems that were solved before and after; none were '
  'asked twice.',
}


def commands(runs: list[Run]) -> str:
  """Returns the commands that evaluate the first run before and after its last
  stage, and make a report with all panels.
  """
  path = str(runs[0].path) if runs else 'WORKDIR'
  before = _before(runs[0]) if runs else 'BEFORE'
  out = f'evals/{runs[0].name}' if runs else 'evals/both'
  evaluate = (
    'jaxrl',
    'evaluate',
    f'--model={before},{path}',
    f'--base={before}',
    *'--suite=run:heldout --k=16'.split(),
    f'--out={out}',
  )
  report = 'jaxrl', 'report', path, out
  return f'{shlex.join(evaluate)} && {shlex.join(report)}'


def _before(run: Run) -> str:
  """Returns the name of the model at the start of the last stage."""
  step = figures.begin(run, [*run.stages][-1]) if run.stages else 0
  begun = run.config.get('init_from') or run.config.get('model_dir')
  return f'{run.path}@{step}' if step else str(begun or 'BEFORE')
