"""Compares exact numerics with the default in bfloat16.

  tools/run study --config=configs/studies/rounding.py --out=studies/rounding

In bfloat16 the sampler's log-probs differ from the trainer's by rounding.
`exact` has no such gap; `tis` and `icepop` correct for it by weights
(https://fengyao.notion.site/off-policy-rl, https://arxiv.org/abs/2510.18855).
Every batch has one update, so that the policy lag is 0 and the gap is the only
difference. All settings of a seed begin with the same warm start.

A difference of pass@1 of less than 0.02 counts as none. A run has collapsed if
its pass@1 ends below that of its warm start.

Result (5 seeds, each with a warm start of its own; ± is half of the 95 % t
interval; gaps in nats, the largest of all printed steps and seeds).

           held-out pass@1  reward         entropy        gap: mean  largest
  before   0.453 ± 0.021    0.474 ± 0.045  0.288 ± 0.031
  fast     0.693 ± 0.114    0.699 ± 0.093  0.157 ± 0.018  0.0021     0.36
  exact    0.700 ± 0.106    0.716 ± 0.087  0.153 ± 0.022  0          0
  tis      0.701 ± 0.103    0.704 ± 0.099  0.154 ± 0.024  0.0021     0.59
  icepop   as tis

The study could not decide any claim: `exact` - `fast` is +0.007 ± 0.017 and
`tis` - `fast` +0.008 ± 0.024 pass@1. No run collapsed. All weights were between
0.5 and 1.8, so they reached no bound, and both corrections are the same. The
study takes 9 CPU minutes on a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS = 'eval/heldout/pass@1'


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.model.dtype = 'bfloat16'
  c.rl.steps = 100
  c.eval.update(problems=128, samples=16, harder=False)
  return Study(
    recipe=c,
    settings={
      'fast': {},
      'exact': {'model.numerics': 'exact'},
      'tis': {'rl.loss.correction': 'truncate'},
      'icepop': {
        'rl.loss.correction': 'mask',
        'rl.loss.correction_low': 0.5,
        'rl.loss.correction_high': 5.0,
      },
    },
    shown=(
      PASS,
      'train/reward_mean',
      'train/gap_mean',
      'train/gap_max',
      'train/entropy',
    ),
    claims=[
      *(
        Claim(
          f'{name} reaches a higher pass@1 than the default.',
          [Criterion(PASS, name, 'fast', more_than=0.0)],
        )
        for name in ('exact', 'tis', 'icepop')
      ),
      Claim(
        'The default loses nothing to exact.',
        [Criterion(PASS, 'fast', 'exact', more_than=-0.02)],
      ),
    ],
  )
