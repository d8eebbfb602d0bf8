"""Compares DAPO with losses that promise to keep the diversity of answers.

  tools/run study --config=configs/studies/diversity.py \\
    --out=studies/diversity

https://arxiv.org/abs/2508.10751 (`passk`) and https://arxiv.org/abs/2505.15201
(`pkpo`) train on pass@k, here with k = 4 of 8 samples.
https://arxiv.org/abs/2509.24981 (`rover`) evaluates a uniform policy. All three
find a higher pass@k than training on pass@1. The control `entropy` is DAPO with
an entropy bonus of 0.02.

Every loss has the best of three learning rates by pass@1, on two seeds that are
not evaluated; the entropy bonus has that of DAPO. A loss keeps the diversity if
pass@16, and the number of different correct expressions among 16 samples, are
higher than with DAPO.

Result (5 seeds, each with a warm start of its own, 160 steps, 128 problems; ±
is half of the 95 % t interval; p corrected for 8 criteria).

  rate           pass@1         pass@16        distinct       entropy, nats
  before         0.111 ± 0.010  0.611 ± 0.032  1.152 ± 0.099  0.350 ± 0.046
  dapo     3e-4  0.172 ± 0.027  0.441 ± 0.083  0.920 ± 0.162  0.266 ± 0.035
  entropy  3e-4  0.172 ± 0.011  0.467 ± 0.021  1.023 ± 0.035  0.318 ± 0.025
  passk    3e-4  0.148 ± 0.009  0.555 ± 0.031  1.119 ± 0.136  0.311 ± 0.041
  pkpo     3e-4  0.149 ± 0.011  0.581 ± 0.023  1.122 ± 0.085  0.316 ± 0.030
  rover    9e-4  0.141 ± 0.024  0.252 ± 0.039  0.480 ± 0.090

For `pkpo` the claim holds in part: pass@16 is higher than with DAPO by 0.141 ±
0.073 (p 0.018). For `passk` it is undecided (0.114 ± 0.092, p 0.066). Both have
a higher pass@16 than the entropy bonus, which has about their entropy (holds,
0.114 ± 0.027 and 0.087 ± 0.029). The number of expressions is undecided for
both (p 0.119), and pass@1 is lower than with DAPO by 0.023 ± 0.026 (`pkpo`) and
0.024 ± 0.022 (`passk`). For `rover` the claim does not hold here: at its best
rate it loses the most (expressions -0.441 ± 0.213, p 0.018).

With 80 steps and rates tuned by pass@4, DAPO had a rate of 9e-5, and nothing
but a loss of `rover` (pass@16 -0.066 ± 0.020) was decided: `passk` 0.009 ±
0.055, `pkpo` 0.053 ± 0.041. An earlier form had 3e-4 for all, 80 steps, and
repeated held-out problems: 0.127 ± 0.049 and 0.119 ± 0.046. The study takes
about 11 CPU minutes on a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, Tuning, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

LARGE_K, DISTINCT = 'eval/heldout/pass@16', 'eval/heldout/distinct@16'
PASS = 'eval/heldout/pass@1'


def _keeps(name: str):
  return Claim(
    f'{name} keeps more diversity than DAPO.',
    [Criterion(m, name, 'dapo', more_than=0.0) for m in (LARGE_K, DISTINCT)],
  )


def get_study():
  algorithms = ('passk', 'pkpo', 'rover')
  c = recipe_beside(__file__, 'expressions.py')
  c.rl.steps = 160
  return Study(
    recipe=c,
    settings={
      'dapo': {},
      'entropy': {'rl.loss.entropy_coef': 0.02},
      **{name: {'rl.algorithm': name} for name in algorithms},
    },
    shown=(PASS, LARGE_K, DISTINCT, 'train/entropy'),
    tuning=Tuning(
      'rl.optimizer.lr', (0.3, 1, 3), PASS, copies={'entropy': 'dapo'}
    ),
    claims=[
      *map(_keeps, algorithms),
      Claim(
        'Training on pass@k keeps more of it than an entropy bonus.',
        [
          Criterion(LARGE_K, name, 'entropy', more_than=0.0)
          for name in ('passk', 'pkpo')
        ],
      ),
    ],
  )
