"""Compares ways to learn from reference solutions beside rewards.

  tools/run study --config=configs/studies/solutions.py \\
    --out=studies/solutions

  problem   3+5-2+4-1=      evaluated from left to right, results from 0 to 20
  solution  8 6 10#9

The warm start is weak: its pass@1 is about a fifth. `rl_plus`
(https://arxiv.org/abs/2508.00222) and `luffy`
(https://arxiv.org/abs/2504.14945) replace one of the eight samples of every
problem by its solution. Their papers report that a policy then learns more than
from rewards alone, or from solutions before rewards.

  rl        100 steps of 32 problems with the verifier, DAPO
  sft_rl    100 updates with 32 solutions each, and then `rl`: as many
            solutions as the next two settings, and twice their updates
  rl_plus   one solution and seven samples of every problem
  luffy     the same, with the token weights of LUFFY

Each setting has the best of three learning rates for RL on two tuning seeds.

Result (5 seeds, each with a warm start of its own, 128 problems x 16; ± is half
of the 95 % t interval; p corrected for 4 criteria).

           lr    pass@1         minus `rl`      minus `sft_rl`   pass@16
  before         0.177 ± 0.024                                   0.873 ± 0.031
  rl       8e-4  0.142 ± 0.057                  -0.135 ± 0.058   0.564 ± 0.213
  sft_rl   2e-4  0.277 ± 0.059  +0.135 ± 0.058                   0.908 ± 0.061
  rl_plus  2e-4  0.208 ± 0.032  +0.066 ± 0.047  -0.069 ± 0.031   0.861 ± 0.071
  luffy    4e-4  0.196 ± 0.030  +0.055 ± 0.032  -0.080 ± 0.046   0.847 ± 0.022

`luffy` reaches more than rewards alone (holds, p 0.017). For `rl_plus` the
study could not decide this (p 0.027, the level is 0.025). The claim that they
reach more than solutions before rewards does not hold here (p 0.007 and 0.012):
`sft_rl` has a pass@1 of 0.235 ± 0.046 after its 100 supervised updates, before
any reward. These updates have the learning rate of the warm start, 1e-3.
`rl_plus` and `sft_rl` have the lowest of the three rates and `rl` has the
highest, so better rates may lie outside. `rl` loses pass@16 at its rate, and
its rates hardly differed on the two tuning seeds (pass@1 0.168, 0.163 and
0.176). The study takes 13 CPU minutes on a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, Tuning, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS = 'eval/heldout/pass@1'
STEPS, PROBLEMS = 100, 32
SETTINGS = {
  'rl': {},
  'sft_rl': {'stages': ('sft', 'more', 'rl')},
  'rl_plus': {'rl.algorithm': 'rl_plus', 'rl.demos': 1},
  'luffy': {'rl.algorithm': 'luffy', 'rl.demos': 1},
}


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.data.knobs = dict(ops='+-', modulus=0, min_ops=4, max_ops=4)
  c.data.knobs.update(max_operand=5, max_total=20)
  c.sft.update(steps=200, stop_loss=0.0)
  more = dict(steps=STEPS, rows=PROBLEMS)
  c.named = {'more': dict(kind='sft', sft=more)}
  c.rl.update(steps=STEPS, prompts=PROBLEMS)
  c.rl.optimizer.lr = 4e-4
  c.eval.update(problems=128, samples=16, harder=False)
  return Study(
    recipe=c,
    settings=SETTINGS,
    first_seed=1,  # seed 0 served to choose the recipe
    shown=(f'start/{PASS}', PASS, 'eval/heldout/pass@16', 'train/entropy'),
    tuning=Tuning('rl.optimizer.lr', (0.5, 1, 2), PASS),
    claims=[
      Claim(
        f'{name} reaches more than {other}.',
        [Criterion(PASS, name, other, more_than=0.0)],
      )
      for name in ('rl_plus', 'luffy')
      for other in ('rl', 'sft_rl')
    ],
  )
