"""Compares trees of episodes with independent episodes at equal tokens.

  tools/run study --config=configs/studies/episode_trees.py \
    --out=studies/episode_trees

The claims are those of `trees.py`, on the calculator. A problem has

  independent  6 episodes, with DAPO
  flat         6 episodes, with the loss of TreeRL
  turns        8 leaves of four trees that fork before the second turn, after
               the first reply of the calculator
  entropy      8 leaves of four trees that fork once, before the turn whose
               first token has the highest entropy
  grouped      the trees of `turns`, with DAPO: a leaf is a row like any other

An episode with one call has about as many tokens before the reply as after it.
So eight leaves that share the first turn in pairs need as many tokens as six
episodes. Training stops after 15 steps, before the recipe's pass@1 saturates.

Result (5 seeds, each with a warm start of its own, 128 problems x 16; the best
of three learning rates on two seeds that are not evaluated; ± is half of the 95
% t interval; p corrected for 4 criteria). Trees share 0.35 of their tokens, so
a run samples 34,700 tokens with trees, 33,700 with `independent` and 40,400
with `flat`:

               rate  pass@1         minus `independent`  pass@16
  before             0.212 ± 0.064                       0.944 ± 0.054
  independent  3e-4  0.833 ± 0.076                       0.994 ± 0.008
  flat         9e-4  0.869 ± 0.022  +0.036 ± 0.066       0.963 ± 0.008
  turns        9e-4  0.863 ± 0.026  +0.031 ± 0.074       0.964 ± 0.009
  entropy      9e-4  0.866 ± 0.030  +0.033 ± 0.080       0.969 ± 0.015
  grouped      9e-4  0.885 ± 0.028  +0.052 ± 0.081       0.981 ± 0.018

The study could not decide any of its claims: `turns` - `independent` (p 0.474),
`turns` - `flat` (-0.005 ± 0.023, p 0.723), `grouped` - `independent` (p 0.297),
and `entropy` - `turns` (+0.003 ± 0.008, p 0.474). pass@16 is lower with the
loss of TreeRL (`flat` - `independent` -0.031 ± 0.007); no criterion was written
for this, and the learning rates differ. The study takes 19 CPU minutes on a
shared AMD EPYC.
"""

import pathlib
import runpy

from jaxrl_reason.studies.grid import recipe_beside


def get_study():
  c = recipe_beside(__file__, '../calculator_tiny.py')
  c.rl.update(steps=15, samples=6)
  c.eval.update(every=1000, problems=128, samples=16)
  c.checkpoint.every = 1000
  path = pathlib.Path(__file__).with_name('trees.py')
  compared = runpy.run_path(str(path))['compared']
  return compared(c, 'turns', {'rl.tree.turns': (1,)})
