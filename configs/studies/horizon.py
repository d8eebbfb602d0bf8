"""Compares a curriculum over the number of operations with other orders.

  tools/run study --config=configs/studies/horizon.py \\
    --out=studies/horizon

https://arxiv.org/abs/2510.07312 finds that RL learns long chains of steps if it
begins with short chains and lengthens them. RL on the longest chains alone does
not learn them from the same number of tokens. The warm start knows chains of
one to three operations. `ladder` begins with chains of one operation and goes
on when 0.85 of them are solved, up to five. `longest` trains on chains of five
operations alone, `uniform` on all lengths, and `reversed` begins with chains of
five. The settings are compared after 640,000 sampled tokens, because shorter
chains cost fewer tokens.

Result (5 seeds, each with a warm start of its own, 128 problems x 4; ± is half
of the 95 % t interval; p corrected for 3 criteria). All three claims hold.

            chain5 after       ladder minus              chain5 after
            640,000 tokens                               410 steps
  before    0.076 ± 0.042                                0.076 ± 0.042
  ladder    0.699 ± 0.297                                0.868 ± 0.122
  longest   0.195 ± 0.183      0.505 ± 0.278 (p 0.011)   0.294 ± 0.449
  uniform   0.515 ± 0.339      0.185 ± 0.120 (p 0.011)   0.533 ± 0.360
  reversed  0.148 ± 0.022      0.552 ± 0.306 (p 0.011)   0.134 ± 0.028

640,000 tokens are 320 to 345 steps of `ladder`, 240 to 375 of `longest`, 395 to
405 of `uniform` and 245 to 385 of `reversed`. With four seeds of five,
`longest` stays at chance (1/7). It forgets shorter chains: pass@1 of one
operation falls from 0.935 ± 0.155 to 0.335 ± 0.261 after 410 steps, and is
0.938 ± 0.158 with `ladder`.

The number of tokens was chosen by a run of `ladder` with another seed. An
earlier form compared the settings after 300 steps, and was undecided: `ladder`
0.529 ± 0.397, minus `longest` 0.395 ± 0.392. The study takes about 30 CPU
minutes on a shared AMD EPYC.
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
      | {f'data.sources.chain{n}.weight': 0.0 for n in lengths[:-1]},
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
