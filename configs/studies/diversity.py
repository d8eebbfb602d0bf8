"""Compares DAPO with losses that promise to keep the diversity of answers.

  tools/run study --config=configs/studies/diversity.py \\
    --out=studies/diversity

https://arxiv.org/abs/2508.10751 (`passk`) and https://arxiv.org/abs/2505.15201
(`pkpo`) train on pass@k, here with k = 4 of 8 samples.
https://arxiv.org/abs/2509.24981 (`rover`) evaluates a uniform policy. All three
find a higher pass@k than training on pass@1. The control `entropy` is DAPO with
an entropy bonus. Its weight was chosen in one run on another seed, so that
its entropy at the end is about that of `passk` and `pkpo`.

A loss keeps the diversity if pass@16, and the number of different correct
expressions among 16 samples, are higher than with DAPO.

Result (5 seeds, each with a warm start of its own, 128 problems; ± is half of
the 95 % t interval).

           pass@1         pass@16        distinct       entropy, nats
  before   0.177 ± 0.027  0.794 ± 0.023  1.789 ± 0.207  0.350 ± 0.046
  dapo     0.308 ± 0.014  0.672 ± 0.070  1.811 ± 0.131  0.287 ± 0.023
  entropy  0.301 ± 0.036  0.672 ± 0.074  1.841 ± 0.209  0.319 ± 0.019
  passk    0.230 ± 0.020  0.798 ± 0.056  1.897 ± 0.143  0.321 ± 0.037
  pkpo     0.227 ± 0.016  0.791 ± 0.048  1.869 ± 0.228  0.334 ± 0.036
  rover    0.308 ± 0.022  0.653 ± 0.074  1.750 ± 0.178

The claim on training on pass@k holds in part: pass@16 is higher than with DAPO
by 0.127 ± 0.049 (`passk`) and 0.119 ± 0.046 (`pkpo`). The study could not
decide whether the number of expressions is higher. pass@1 is lower by 0.078 ±
0.029 and 0.081 ± 0.025. The entropy bonus has about the entropy of `passk` and
`pkpo`, but the pass@16 of DAPO. For `rover`, the study found no difference to
DAPO. The study takes 8 CPU minutes on a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

LARGE_K, DISTINCT = 'eval/heldout/pass@16', 'eval/heldout/distinct@16'


def _keeps(name: str):
  return Claim(
    f'{name} keeps more diversity than DAPO.',
    [Criterion(m, name, 'dapo', more_than=0.0) for m in (LARGE_K, DISTINCT)],
  )


def get_study():
  algorithms = ('passk', 'pkpo', 'rover')
  return Study(
    recipe=recipe_beside(__file__, 'expressions.py'),
    settings={
      'dapo': {},
      'entropy': {'rl.loss.entropy_coef': 0.02},
      **{name: {'rl.algorithm': name} for name in algorithms},
    },
    shown=('eval/heldout/pass@1', LARGE_K, DISTINCT, 'train/entropy'),
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
