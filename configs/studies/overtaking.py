"""Whether the policy before RL overtakes the one after it at large k.

  tools/run study --config=configs/studies/overtaking.py \\
    --out=studies/overtaking

https://arxiv.org/abs/2504.13837 finds that RL raises pass@1 and that the base
model solves more problems given enough samples. `hot` samples at temperature
1.3 in training, which keeps the policy wider.

Written before the first run. The base overtakes here if, on the harder split,
pass@256 before RL is above that after it (`rl`) in the mean over seeds by more
than two standard errors of that mean, while pass@1 on held-out problems has
risen. `hot` mends it if its pass@256 is above that of `rl` by more than two
standard errors of the difference, seed by seed.

Result (5 seeds, 32 problems a split): pass@1 on held-out problems rises from
0.456 ± 0.013 to 0.543 ± 0.017. The base does not overtake: pass@256 on the
harder split is 0.931 ± 0.018 before and 0.925 ± 0.025 after, a change of
-0.006 ± 0.021, and pass@16 falls by no more than its errors (0.632 ± 0.034 to
0.580 ± 0.026). `hot` changes nothing (pass@256 0.000 ± 0.014 against `rl`,
pass@1 0.000 ± 0.014), so there is nothing it could mend. 60 steps move the
policy little: the default recipe, trained until pass@1 is 0.98, does lose the
harder split at large k (docs/evaluating.md). 10 runs in one program, about
6 minutes on a quarter of two busy cores.
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
