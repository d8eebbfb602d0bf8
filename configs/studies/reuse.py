"""Compares training on few problems, many times, with training on new ones.

  tools/run study --config=configs/studies/reuse.py \\
    --out=studies/reuse

https://arxiv.org/abs/2509.25300 finds that the number of steps decides the
result and not the number of different problems, up to about 25 uses of every
problem. All settings make 80 steps with 32 problems each. `all` never uses a
problem twice. The others draw from the first 128 and the first 32 problems, in
epochs, so every problem is used 20 and 80 times. The learning rate is the best
of four for training of all weights in `adapters.py`, by pass@1 on two tuning
seeds.

A pool suffices if its held-out pass@1 differs from that of `all` by less than a
fifth of the gain of `all`. The control is the reward in training, which is the
pass@1 on the pool. It is above that of `all` if the policy memorizes the pool.

Result (5 seeds, each with a warm start of its own, 256 problems; ± is half of
the 95 % t interval). The margin is 0.034.

           pass@1         gain            minus `all`     reward
  before   0.453 ± 0.020
  all      0.622 ± 0.042  +0.169 ± 0.042                  0.617 ± 0.031
  pool128  0.491 ± 0.043  +0.038 ± 0.039  -0.130 ± 0.025  0.848 ± 0.023
  pool32   0.308 ± 0.049  -0.145 ± 0.033  -0.314 ± 0.045  0.945 ± 0.022

The claim that 20 uses reach the result of new problems does not hold here (p
0.001). The claims that 80 uses reach less, and that the policy memorizes both
pools, hold (p 0.0001). The study takes 4 CPU minutes on a shared AMD EPYC,
without the warm starts and `all`, which were copied from the study of adapters.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS, POOL = 'eval/heldout/pass@1', 'train/reward_mean'
SIZES = 128, 32


def _pool(size: int) -> dict[str, str | int]:
  """Returns the keys of training on the first problems alone."""
  return {'data.controller.name': 'uniform', 'data.controller.window': size}


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.rl.steps = 80
  c.rl.optimizer.lr = 3e-4
  c.eval.update(problems=256, samples=16)  # large k is not measured
  return Study(
    recipe=c,
    settings={'all': {}} | {f'pool{n}': _pool(n) for n in SIZES},
    shown=(PASS, 'eval/harder/pass@1', POOL, 'train/entropy'),
    claims=[
      Claim(
        '128 problems, used 20 times, reach what new ones do.',
        [Criterion(PASS, 'pool128', 'all', within=0.2, of_gain=True)],
      ),
      Claim(
        '32 problems, used 80 times, reach less than new ones.',
        [Criterion(PASS, 'all', 'pool32', more_than=0.0)],
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
