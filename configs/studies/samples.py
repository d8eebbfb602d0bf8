"""Compares training on negative and on positive samples.

  tools/run study --config=configs/studies/samples.py \\
    --out=studies/samples

The paper (https://arxiv.org/abs/2506.01347) makes two claims. 1: training on
incorrect answers alone (NSR) keeps pass@k at large k, and training on correct
answers alone (PSR) loses it. 2: a weight of 0.1 for correct answers is best
over all k.

Claim 1 holds if pass@256 on the harder split is higher with `negative` than
with `positive`. Claim 2 holds if pass@256 is higher with `weighted` than with
`all`, and pass@1 is lower by less than a fifth of the gain of `all`.

Result (5 seeds from one warm start, 32 problems a split; differences to `all`,
seed by seed; ± is a standard error; the 95 % interval is 2.78 of them wide on
each side):

             held-out pass@1              harder pass@256   entropy, nats
  before     0.456 ± 0.013                0.931 ± 0.018     0.273 ± 0.002
  all        0.543 ± 0.017                0.925 ± 0.025     0.201 ± 0.000
  positive   0.570 ± 0.017 (+0.027 ± 0.017)  0.950 ± 0.016  0.215 ± 0.004
  negative   0.389 ± 0.015 (-0.153 ± 0.027)  0.912 ± 0.023  0.239 ± 0.006
  weighted   0.437 ± 0.017 (-0.106 ± 0.015)  0.912 ± 0.027  0.224 ± 0.007

Claim 1 could not be told (pass@256 of 0.912 and 0.950). Claim 2 does not hold
here: pass@1 of `weighted` is lower than that of `all`, and whether its pass@256
is higher could not be told (-0.013 ± 0.023). `negative` loses pass@1 against
the warm start. `negative` keeps the most entropy, as in the paper. A possible
reason for the difference: this small model, warm-started on 30 k solutions, has
no pretrained knowledge to which the probability of incorrect answers could
move. All 20 runs are one program.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS, LARGE_K = 'eval/heldout/pass@1', 'eval/harder/pass@256'


def get_study():
  return Study(
    recipe=recipe_beside(__file__, 'small.py'),
    settings={
      'all': {},
      'positive': {'rl.loss.neg_weight': 0.0},
      'negative': {'rl.loss.pos_weight': 0.0},
      'weighted': {'rl.loss.pos_weight': 0.1},
    },
    shown=(PASS, 'eval/harder/pass@1', LARGE_K, 'train/entropy'),
    claims=[
      Claim(
        'Negative samples alone keep pass@k.',
        [Criterion(LARGE_K, 'negative', 'positive', more_than=0.0)],
      ),
      Claim(
        'A weight of 0.1 for positive samples is best over all k.',
        [
          Criterion(LARGE_K, 'weighted', 'all', more_than=0.0),
          Criterion(PASS, 'weighted', 'all', more_than=-0.2, of_gain=True),
        ],
      ),
    ],
  )
