"""Compares training on few problems, many times, with training on new ones.

  tools/run study --config=configs/studies/reuse.py \\
    --out=studies/reuse

https://arxiv.org/abs/2509.25300 finds that the number of steps decides the
result and not the number of different problems, up to about 25 uses of every
problem. All settings make 300 steps with 32 problems each. `all` never uses a
problem twice. The others draw from the first 1,024, 384, 256 and 64 problems,
in epochs, so every problem is used 9, 25, 37 and 150 times. The learning rate
is the best of four for training of all weights in `adapters.py`, by pass@1 on
two tuning seeds.

A pool suffices if its held-out pass@1 differs from that of `all` by less than a
fifth of the gain of `all`. The control is the reward in training, which is the
pass@1 on the pool. It is above that of `all` if the policy memorizes the pool.

Result (5 seeds, each with a warm start of its own, 256 problems; ± is half of
the 95 % t interval). The margin is 0.088.

            pass@1         gain             minus `all`     reward
  before    0.453 ± 0.020
  all       0.893 ± 0.053  +0.440 ± 0.051                   0.903 ± 0.038
  pool1024  0.867 ± 0.047  +0.414 ± 0.043  -0.026 ± 0.011   0.916 ± 0.035
  pool384   0.775 ± 0.089  +0.322 ± 0.085  -0.118 ± 0.044   0.923 ± 0.015
  pool64    0.346 ± 0.026  -0.106 ± 0.015  -0.547 ± 0.065   0.976 ± 0.011

The claim that 9 uses reach the result of new problems holds (p 0.0002). The
study could not decide it for 25 uses: that pool loses 0.118, which is more than
the margin, but the interval contains the margin. The claims that 150 uses reach
less, and that the policy memorizes 64 problems, hold (p 0.0001 and 0.021). The
study takes 16 CPU minutes on a shared AMD EPYC.

256 problems were run later, beside `all`: pass@1 0.687 ± 0.081, minus `all`
-0.206 ± 0.029, reward 0.937 ± 0.008. That they reach less than new ones holds
(p < 0.001, corrected for the two criteria of this run).

An earlier form with 80 steps and smaller pools had the same order: 128
problems, used 20 times, were below new ones by 0.130 ± 0.025, and 32 problems,
used 80 times, by 0.314 ± 0.045.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS, POOL = 'eval/heldout/pass@1', 'train/reward_mean'
SIZES = 1024, 384, 256, 64


def _pool(size: int) -> dict[str, str | int]:
  """Returns the keys of training on the first problems alone."""
  return {'data.controller.name': 'uniform', 'data.controller.window': size}


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.rl.steps = 300
  c.rl.optimizer.lr = 3e-4
  c.eval.update(problems=256, samples=16)  # large k is not measured
  return Study(
    recipe=c,
    settings={'all': {}} | {f'pool{n}': _pool(n) for n in SIZES},
    shown=(PASS, 'eval/harder/pass@1', POOL, 'train/entropy'),
    claims=[
      *(
        Claim(
          f'{n} problems, used {times} times, reach what new ones do.',
          [Criterion(PASS, f'pool{n}', 'all', within=0.2, of_gain=True)],
        )
        for n, times in ((1024, 9), (384, 25))
      ),
      *(
        Claim(
          f'{n} problems, used {times} times, reach less than new ones.',
          [Criterion(PASS, 'all', f'pool{n}', more_than=0.0)],
        )
        for n, times in ((256, 37), (64, 150))
      ),
      *(
        Claim(
          f'The policy memorizes a pool of {n} problems.',
          [Criterion(POOL, f'pool{n}', 'all', more_than=0.0)],
        )
        for n in SIZES
      ),
    ],
  )
