"""Whether the policy before RL overtakes the one after it at large k.

  python -m jaxrl_reason.study --config=configs/studies/overtaking.py \\
    --out=studies/overtaking

https://arxiv.org/abs/2504.13837 finds that RL raises pass@1 and that the base
model solves more problems given enough samples. `hot` samples at temperature
1.3 in training, which keeps the policy wider.

Written before the first run. The base overtakes here if, on the harder split,
pass@256 before RL is above that after it (`rl`) in the mean over seeds by more
than two standard errors of that mean, while pass@1 on held-out problems has
risen. `hot` mends it if its pass@256 is above that of `rl` by more than two
standard errors of the difference, seed by seed.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside


def get_study():
  return Study(
    recipe=recipe_beside(__file__, 'small.py'),
    settings={'rl': {}, 'hot': {'rl.temperature': 1.3}},
    shown=(
      'eval/heldout/pass@1',
      'eval/heldout/pass@256',
      'eval/harder/pass@1',
      'eval/harder/pass@256',
    ),
  )
