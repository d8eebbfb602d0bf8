"""Compares pass@k at large k before and after RL.

  tools/run study --config=configs/studies/overtaking.py \\
    --out=studies/overtaking

https://arxiv.org/abs/2504.13837 finds that RL raises pass@1, but that the base
model solves more problems if it has enough samples. `hot` samples at
temperature 1.3 during training, which keeps the entropy higher.

The base model overtakes if pass@256 on the harder split falls from before RL to
after it (`rl`), and pass@1 on held-out problems rises. `hot` prevents this if
its pass@256 is higher than that of `rl`.

Result (5 seeds from one warm start, 32 problems a split; ± is a standard error;
the 95 % interval is 2.78 of them wide on each side): pass@1 on held-out
problems rises from 0.456 ± 0.013 to 0.543 ± 0.017. Whether the base model
overtakes could not be told: pass@256 on the harder split is 0.931 ± 0.018
before and 0.925 ± 0.025 after, a change of -0.006 ± 0.021. Nor could the effect
of `hot` be told (against `rl`: pass@256 0.000 ± 0.014, pass@1 0.000 ± 0.014).
This task cannot show the claim: an answer modulo 7 can be guessed, so pass@256
is near 1 before RL. 60 steps change the policy little. The default recipe,
trained until pass@1 is 0.98, does lose pass@k at large k on the harder split
(docs/evaluating.md). 10 runs in one program take about 6 minutes on a quarter
of two busy cores.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

LARGE_K = 'eval/harder/pass@256'


def get_study():
  return Study(
    recipe=recipe_beside(__file__, 'small.py'),
    settings={'rl': {}, 'hot': {'rl.temperature': 1.3}},
    shown=(
      'eval/heldout/pass@1',
      'eval/heldout/pass@256',
      'eval/harder/pass@1',
      LARGE_K,
    ),
    claims=[
      Claim(
        'The base model overtakes at large k.',
        [
          Criterion('eval/heldout/pass@1', 'rl', more_than=0.0),
          Criterion(LARGE_K, 'rl', less_than=0.0),
        ],
      ),
      Claim(
        'A higher temperature keeps pass@k.',
        [Criterion(LARGE_K, 'hot', 'rl', more_than=0.0)],
      ),
    ],
  )
