"""Negative against positive samples (https://arxiv.org/abs/2506.01347).

  python -m jaxrl_reason.study --config=configs/studies/samples.py \\
    --out=studies/samples

The paper finds that learning from wrong answers alone (NSR) keeps pass@k at
large k where learning from right ones alone (PSR) loses it, and that weighing
right answers by 0.1 is best over all k. All 20 runs are one program.

Written before the first run. Claim 1 holds here if pass@256 on the harder split
under `negative` is above that under `positive` by more than two standard errors
of the difference, seed by seed. Claim 2 holds if `weighted` is above `all` in
pass@256 by more than two standard errors, and not below in pass@1 by as much.
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
