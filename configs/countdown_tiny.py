"""Trains on countdown: combine three numbers to reach a target.

  tools/run --config=configs/countdown_tiny.py \\
    --workdir=runs/countdown --config.seed=0

  problem   6 8 2>1:
  solution  2+6=8 8/8=1#(2+6)/8

Numbers up to 8, targets up to 24, operations + - * /. Each number is used once.
Every correct expression has the reward 1; the steps before it are not checked.
There are about 1,000 distinct problems, an eighth of them held out. The harder
split has numbers up to 10 and targets up to 40.

Sampled pass@1 of 256 held-out problems x 4 samples, greedy in parentheses:

         after sft      after rl       CPU
  seed 0 0.189 (0.270)  0.498 (0.547)  299 s
  seed 1 0.212 (0.293)  0.428 (0.457) stopped after 100 of 250 rl steps

Seed 0 took 7.0 min on one CPU core shared with other work. On its harder split
pass@1 rose from 0.100 to 0.244.

The reward ignores the steps, so RL makes them incorrect: `4+7=11 11-7=6#4+7-4`.
Only the expression improves.

Other problems, pass@1 before and after RL, one seed each: numbers to 10 and
targets to 40, with this recipe 0.19 to 0.34, with DAPO and 64 prompts 0.14 to
0.30. Only + and - (numbers to 20, targets to 60), mean of three seeds: 0.19 to
0.54.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
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
