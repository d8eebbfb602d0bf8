"""Compares a curriculum over the number of operations with other orders.

  tools/run study --config=configs/studies/horizon.py \\
    --out=studies/horizon

https://arxiv.org/abs/2510.07312 finds that RL which begins with short chains of
steps and lengthens them learns long chains that RL on the longest chains alone
does not learn from the same number of tokens. The warm start knows chains of
one to three operations. `ladder` begins with chains of one operation and goes
on when 0.85 of them are solved, up to five. `longest` trains on chains of five
operations alone, `uniform` on all lengths, and `reversed` begins with chains of
five. All settings take the same number of steps.

Result: none yet. The claims were written before the study was run.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

LONGEST = 5
PASS = f'eval/heldout/chain{LONGEST}/pass@1'
UNIFORM = {
  'data.controller.name': 'uniform',
  'data.controller.sources': 'weights',
  **{f'data.controller.{key}': None for key in ('rungs', 'climb', 'review')},
}


def _better(name: str) -> Claim:
  return Claim(
    f'The ladder solves more of the longest chains than {name}.',
    [Criterion(PASS, 'ladder', name, more_than=0.0)],
  )


def get_study():
  c = recipe_beside(__file__, '../curriculum_tiny.py', str(LONGEST))
  c.rl.steps = 300
  c.eval.update(every=1000, problems=128, samples=8)
  c.checkpoint.every = 100
  lengths = range(1, LONGEST + 1)
  return Study(
    recipe=c,
    settings={
      'ladder': {},
      'longest': UNIFORM
      | {f'data.sources.chain{n}.weight': 0.0 for n in lengths[:-1]},
      'uniform': UNIFORM,
      'reversed': {
        f'data.sources.chain{n}.difficulty': LONGEST + 1 - n for n in lengths
      },
    },
    shown=(PASS, 'eval/heldout/chain4/pass@1', 'eval/heldout/chain1/pass@1'),
    claims=[_better(name) for name in ('longest', 'uniform', 'reversed')],
  )
