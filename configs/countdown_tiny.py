"""Countdown: reach a target from three given numbers, in one compiled step.

  python -m jaxrl_reason.main --config=configs/countdown_tiny.py \\
    --workdir=runs/countdown --config.seed=0

  problem   13 20 16>23:
  solution  20-13=7 7+16=23#20-13+16

Numbers up to 20, targets up to 60, + and -, each number used once; any of the
right expressions is rewarded, and nothing but the expression is. There are
5,640 distinct problems, an eighth of them held out. The harder split has
numbers up to 30 and targets up to 90.

Sampled pass@1 of 256 problems x 4 samples, and greedy in brackets:

         held-out                      harder          CPU    wall
         after sft     after rl        sft     rl
  seed 0 0.197 (0.215) 0.588 (0.602)   0.039   0.145   193 s  5.0 min
  seed 1 0.188 (0.227) 0.489 (0.547)   0.054   0.144   186 s  4.5 min
  seed 2 0.189 (0.293) 0.544 (0.563)   0.043   0.104   216 s  6.9 min

On two CPU cores shared with other work (4 to 8 busy threads); CPU is user and
system seconds of the whole run. Sampled pass@1 rises by 30 to 39 points.

The reward does not look at the steps, and rl makes them wrong and useless as
explanation: `17+17=37 17+17=3#17+2+19`. The expression alone gets better, and
entropy falls to 0.12-0.16 with a third of the groups never solved.

Tried, one seed each: with * and / (numbers to 10, targets to 40) sft stays at
0.19 from step 200 to 400 and 200 rl steps reach 0.34; with * alone (12, 50)
0.14 to 0.30; with numbers to 20, targets to 99 and all operators 0.07 to 0.16.
"""

from jaxrl_reason import config as config_lib


def get_config():
  c = config_lib.default()
  c.stages = ('sft', 'rl')
  c.data.update(name='countdown', prompt_len=12, completion_len=30)
  # 1,011 distinct problems, an eighth of them held out.
  c.data.knobs = dict(max_number=8, max_target=24, ops='+-*/')
  c.data.harder = dict(max_number=10, max_target=40)
  c.model.scan = False  # two layers: a tenth faster than a loop over them
  c.sft.update(steps=300, rows=128, steps_per_dispatch=10)
  c.sft.optimizer.lr = 3e-3
  c.rl.update(
    steps=250,
    prompts=32,
    samples=8,
    algorithm='dr_grpo',
    steps_per_dispatch=10,
  )
  c.rl.optimizer.lr = 5e-4
  return c
