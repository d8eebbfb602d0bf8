"""Compares training on negative and on positive samples.

  tools/run study --config=configs/studies/samples.py \\
    --out=studies/samples

The paper (https://arxiv.org/abs/2506.01347) makes two claims. 1: training on
incorrect answers alone (NSR) keeps pass@k at large k, and training on correct
answers alone (PSR) loses it. 2: a weight of 0.1 for correct answers is best
over all k.

Criteria, written before the first run. Claim 1 holds if pass@256 on the harder
split is higher with `negative` than with `positive`, by more than two standard
errors of the difference, seed by seed. Claim 2 holds if pass@256 is higher with
`weighted` than with `all` by more than two standard errors, and pass@1 is not
lower by more than two standard errors.

Result (5 seeds, 32 problems a split; differences to `all`, seed by seed):

             held-out pass@1              harder pass@256   entropy, nats
  before     0.456 ± 0.013                0.931 ± 0.018     0.273 ± 0.002
  all        0.543 ± 0.017                0.925 ± 0.025     0.201 ± 0.000
  positive   0.570 ± 0.017 (+0.027 ± 0.017)  0.950 ± 0.016  0.215 ± 0.004
  negative   0.389 ± 0.015 (-0.153 ± 0.027)  0.912 ± 0.023  0.239 ± 0.006
  weighted   0.437 ± 0.017 (-0.106 ± 0.015)  0.912 ± 0.027  0.224 ± 0.007

Neither claim holds. pass@256 of `negative` is not higher than that of
`positive` (0.912 and 0.950). Its pass@1 falls below the warm start, and so
does its pass@k on held-out problems for every k up to 64. pass@256 of
`weighted` is not higher than that of `all` (-0.013 ± 0.023), and its pass@1 is
clearly lower. `negative` keeps the most entropy, as in the paper. A possible
reason for the difference is that this small model is not pretrained: it has
seen only 30 k solutions, so there are few other correct answers whose
probability could rise when that of incorrect answers falls. All 20 runs are one
program.
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
