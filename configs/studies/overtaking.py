"""Compares pass@k at large k before and after RL.

  tools/run study --config=configs/studies/overtaking.py \\
    --out=studies/overtaking

https://arxiv.org/abs/2504.13837 finds that RL raises pass@1, but that the base
model solves more problems if it has enough samples. `hot` samples at
temperature 1.3 during training, which keeps the entropy higher.

Criteria, written before the first run. The base model overtakes if pass@256 on
the harder split is higher before RL than after it (`rl`), by more than two
standard errors of the mean over seeds, and pass@1 on held-out problems has
risen. `hot` prevents this if its pass@256 is higher than that of `rl` by more
than two standard errors of the difference, seed by seed.

Result (5 seeds, 32 problems a split): pass@1 on held-out problems rises from
0.456 ± 0.013 to 0.543 ± 0.017. The base model does not overtake: pass@256 on
the harder split is 0.931 ± 0.018 before and 0.925 ± 0.025 after, a change of
-0.006 ± 0.021. pass@16 changes from 0.632 ± 0.034 to 0.580 ± 0.026, less than
the sum of the errors. `hot` has no effect (against `rl`: pass@256 0.000 ±
0.014, pass@1 0.000 ± 0.014). 60 steps change the policy little. The default
recipe, trained until pass@1 is 0.98, does lose pass@k at large k on the harder
split (docs/evaluating.md). 10 runs in one program take about 6 minutes with a
quarter of the time of two busy cores.
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
