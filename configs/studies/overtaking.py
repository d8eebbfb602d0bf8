"""Compares pass@k at large k before and after RL.

  tools/run study --config=configs/studies/overtaking.py \\
    --out=studies/overtaking

https://arxiv.org/abs/2504.13837 finds that RL raises pass@1, but that the base
model solves more problems if it has enough samples. `high_lr` has five times
the learning rate.

The base model overtakes if pass@1 on held-out problems rises and pass@64 on the
harder problems falls from before RL to after it.

Result (5 seeds, each with a warm start of its own, 64 problems a split; ± is
half of the 95 % t interval). `rl`: the claim holds in part. pass@1 rises; the
study could not decide whether pass@64 falls. `high_lr`: both are undecided.

           held-out pass@1  change           harder pass@64  change
  before   0.202 ± 0.057                     0.466 ± 0.078
  rl       0.269 ± 0.065    +0.067 ± 0.014   0.484 ± 0.069   +0.019 ± 0.073
  high_lr  0.181 ± 0.083    -0.021 ± 0.046   0.381 ± 0.082   -0.084 ± 0.098

`rl` gains pass@1. pass@64 of `high_lr` is below that of `rl` by 0.103 ± 0.071
(p 0.016). The study takes about 15 minutes on two cores of an AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS, LARGE_K = 'eval/heldout/pass@1', 'eval/harder/pass@64'


def get_study():
  return Study(
    recipe=recipe_beside(__file__, 'functions.py'),
    settings={
      'rl': {},
      'high_lr': {'rl.optimizer.lr': 5e-4},
    },
    shown=(PASS, 'eval/heldout/pass@64', 'eval/harder/pass@1', LARGE_K),
    claims=[
      Claim(
        f'The base model overtakes at large k ({name}).',
        [
          Criterion(PASS, name, more_than=0.0),
          Criterion(LARGE_K, name, less_than=0.0),
        ],
      )
      for name in ('rl', 'high_lr')
    ],
  )
