"""Negative against positive samples (https://arxiv.org/abs/2506.01347).

  tools/run study --config=configs/studies/samples.py \\
    --out=studies/samples

The paper finds that learning from wrong answers alone (NSR) keeps pass@k at
large k where learning from right ones alone (PSR) loses it, and that weighing
right answers by 0.1 is best over all k. All 20 runs are one program.

Written before the first run. Claim 1 holds here if pass@256 on the harder split
under `negative` is above that under `positive` by more than two standard errors
of the difference, seed by seed. Claim 2 holds if `weighted` is above `all` in
pass@256 by more than two standard errors, and not below in pass@1 by as much.

Result (5 seeds, 32 problems a split; differences to `all`, seed by seed):

             held-out pass@1              harder pass@256   entropy, nats
  before     0.456 ± 0.013                0.931 ± 0.018     0.273 ± 0.002
  all        0.543 ± 0.017                0.925 ± 0.025     0.201 ± 0.000
  positive   0.570 ± 0.017 (+0.027 ± 0.017)  0.950 ± 0.016  0.215 ± 0.004
  negative   0.389 ± 0.015 (-0.153 ± 0.027)  0.912 ± 0.023  0.239 ± 0.006
  weighted   0.437 ± 0.017 (-0.106 ± 0.015)  0.912 ± 0.027  0.224 ± 0.007

Neither claim holds. `negative` is not above `positive` in pass@256 (0.912 and
0.950), and it falls below the warm start in pass@1 and, on held-out problems,
at every k up to 64. `weighted` is not above `all` in pass@256 (-0.013 ± 0.023)
and clearly below in pass@1. `negative` does keep the most entropy, as in the
paper; here a small model, warm-started on 30 k solutions, has no prior that the
mass taken from wrong answers could fall back on. 20 runs in one program.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside


def get_study():
  return Study(
    recipe=recipe_beside(__file__, 'small.py'),
    settings={
      'all': {},
      'positive': {'rl.loss.neg_weight': 0.0},
      'negative': {'rl.loss.pos_weight': 0.0},
      'weighted': {'rl.loss.pos_weight': 0.1},
    },
    shown=(
      'eval/heldout/pass@1',
      'eval/harder/pass@1',
      'eval/harder/pass@256',
      'train/entropy',
    ),
  )
