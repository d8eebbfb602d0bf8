"""Countdown: reach a target from three given numbers, in one compiled step.

  jaxrl run --config=configs/countdown_tiny.py \\
    --workdir=runs/countdown --config.seed=0

  problem   6 8 2>1:
  solution  2+6=8 8/8=1#(2+6)/8

Numbers up to 8, targets up to 24, + - * /, each number used once; any of the
right expressions is rewarded, and nothing but the expression is. There are
about 1,000 distinct problems, an eighth of them held out. The harder split has
numbers up to 10 and targets up to 40.

Sampled pass@1 of 256 held-out problems x 4 samples, greedy in brackets:

         after sft      after rl       CPU
  seed 0 0.189 (0.270)  0.498 (0.547)  299 s
  seed 1 0.212 (0.293)  0.428 (0.457) after 100 of 250 rl steps, then stopped

On one CPU core shared with other work; seed 0 took 7.0 min so. Its harder split
went from 0.100 to 0.244.

The reward does not look at the steps, and rl makes them wrong and useless as
explanation: `4+7=11 11-7=6#4+7-4`. The expression alone gets better.

Tried, one seed each: numbers to 10, targets to 40 with this recipe 0.19 to
0.34, with DAPO and 64 prompts 0.14 to 0.30; + and - alone (numbers to 20,
targets to 60) 0.19 to 0.54, the mean of three seeds.

Hardware: two CPU cores; of TPUs one chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
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
