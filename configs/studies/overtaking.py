"""Compares pass@k at large k before and after RL.

  tools/run study --config=configs/studies/overtaking.py \\
    --out=studies/overtaking

https://arxiv.org/abs/2504.13837 finds that RL raises pass@1, but that the base
model solves more problems if it has enough samples. `own` imitates its own
correct samples (RFT, online) in as many updates. `high_lr` has five times the
learning rate.

The base model overtakes if pass@1 on held-out problems rises and pass@64 on the
harder problems falls from before RL to after it. The claim is refuted if
pass@64 rises, as https://arxiv.org/abs/2505.24864 (ProRL) finds for long RL.
This was added after the run, as the other side of the same test.

Result (5 seeds, each with a warm start of its own, 256 problems a split; ± is
half of the 95 % t interval; p corrected for 5 criteria). `rl`: the claim holds
in part. pass@1 rises; the study could not decide whether pass@64 falls or rises
(p 0.617 for a rise). `high_lr`: the claim does not hold here, because pass@1
falls too (p 0.006; pass@64 falls, p 0.013). Whether RL keeps more of pass@64
than `own` is undecided (-0.009 ± 0.026, p 0.627).

           held-out pass@1  change           harder pass@64  change
  before   0.209 ± 0.029                     0.466 ± 0.040
  rl       0.284 ± 0.028    +0.075 ± 0.004   0.489 ± 0.048   +0.023 ± 0.056
  own      0.291 ± 0.035    +0.081 ± 0.009   0.498 ± 0.036   +0.032 ± 0.036
  high_lr  0.190 ± 0.027    -0.020 ± 0.008   0.364 ± 0.064   -0.102 ± 0.055

An earlier run with 100 steps and 64 problems had +0.067 ± 0.014 and
+0.019 ± 0.073 for `rl`. The study takes about 37 CPU minutes on two shared
cores of an AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS, LARGE_K = 'eval/heldout/pass@1', 'eval/harder/pass@64'


def get_study():
  c = recipe_beside(__file__, 'functions.py')
  c.rl.steps = 200
  c.eval.problems = 256
  return Study(
    recipe=c,
    settings={
      'rl': {},
      'own': {'rl.algorithm': 'psr'},
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
    ]
    + [
      Claim(
        'RL keeps more of pass@k than imitation of its own correct samples.',
        [Criterion(LARGE_K, 'rl', 'own', more_than=0.0)],
      )
    ],
  )
