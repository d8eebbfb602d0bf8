"""Compares a curriculum over the number of operations with other orders.

  tools/run study --config=configs/studies/horizon.py \\
    --out=studies/horizon

https://arxiv.org/abs/2510.07312 finds that RL learns long chains of steps if it
begins with short chains and lengthens them. RL on the longest chains alone does
not learn them from the same number of tokens. The warm start knows chains of
one to three operations. `ladder` begins with chains of one operation and goes
on when 0.85 of them are solved, up to five. `longest` trains on chains of five
operations alone, `uniform` on all lengths, and `reversed` begins with chains of
five. All settings take the same number of steps.

Result (5 seeds, each with a warm start of its own, 128 problems; ± is half of
the 95 % t interval). The study could not decide any claim. The mean of the
ladder is highest, but it solves the longest chains only with two seeds (0.88
and 0.87). With the other three it ends at 0.26 to 0.36.

                 chain5          ladder minus             chain4
  before         0.087 ± 0.058                            0.214 ± 0.158
  ladder         0.529 ± 0.397                            0.896 ± 0.100
  longest        0.134 ± 0.013   0.395 ± 0.392 (p 0.073)  0.140 ± 0.012
  uniform        0.398 ± 0.258   0.131 ± 0.285 (p 0.137)  0.884 ± 0.141
  reversed       0.292 ± 0.393   0.237 ± 0.354 (p 0.137)  0.302 ± 0.456

`longest` stays at chance (1/7) with all seeds, and forgets shorter chains:
pass@1 of one operation falls from 0.870 ± 0.217 to 0.379 ± 0.220. The study
takes about 30 CPU minutes on a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

LONGEST = 5
PASS, TOKENS = f'eval/heldout/chain{LONGEST}/pass@1', 640_000
AT = f'budget/{PASS}'
UNIFORM = {
  'data.controller.name': 'uniform',
  'data.controller.sources': 'weights',
  **{f'data.controller.{key}': None for key in ('rungs', 'climb', 'review')},
}


def _better(name: str) -> Claim:
  return Claim(
    f'The ladder solves more of the longest chains than {name}.',
    [Criterion(AT, 'ladder', name, more_than=0.0)],
  )


def get_study():
  c = recipe_beside(__file__, '../curriculum_tiny.py', str(LONGEST))
  c.rl.steps = 410  # `uniform` samples the fewest tokens in a step
  c.eval.update(every=20, problems=128, samples=4)
  c.checkpoint.every = 100
  lengths = range(1, LONGEST + 1)
  return Study(
    recipe=c,
    settings={
      'ladder': {},
      'longest': UNIFORM
      | {f'data.sources.chain{n}.weight': 0.0 for n in lengths[:-1]}
      | {'rl.steps': 270},
      'uniform': UNIFORM,
      'reversed': {
        f'data.sources.chain{n}.difficulty': LONGEST + 1 - n for n in lengths
      },
    },
    tokens=TOKENS,
    shown=(
      AT,
      PASS,
      'eval/heldout/chain4/pass@1',
      'eval/heldout/chain1/pass@1',
    ),
    claims=[_better(name) for name in ('longest', 'uniform', 'reversed')],
  )
