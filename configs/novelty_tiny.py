"""Rewards completions whose hidden states differ from those of the group.

  tools/run --config=configs/novelty_tiny.py:volume --workdir=runs/volume
  tools/run --config=configs/novelty_tiny.py:none --workdir=runs/none

  problem   6 8 2>1:
  solution  2+6=8 8/8=1#(2+6)/8

RL on countdown raises pass@1 and makes the answers less diverse: pass@16 falls
below that of the supervised policy. The argument of the recipe is the bonus
that is added to the reward (docs/hidden_states.md):

  volume      0.5 novelty_volume (RepExp), of the mean state after layer 2 of 2
  neighbours  0.1 novelty_neighbours, of the same state
  none        control: no bonus
  probe       control with a probe of correctness on the state of the last token

Sampled pass@1, pass@16 and the mean number of different correct answers among
16 samples, of 128 held-out problems x 16, after 400 sft steps and after 150 rl
steps:

              seed  pass@1         pass@16        distinct@16
  after sft      0  0.199          0.781          1.88
                 1  0.195          0.844          2.06
                 2  0.205          0.820          2.09
  none           0  0.376          0.648          1.53
                 1  0.332          0.547          1.38
                 2  0.265          0.625          1.51
  volume         0  0.330          0.711          1.91
                 1  0.272          0.672          1.49
                 2  0.243          0.734          1.79
  neighbours     0  0.375          0.703          1.96
                 1  0.284          0.633          1.61
                 2  0.297          0.742          1.91

Both bonuses raise pass@16 by 0.05 to 0.13 and the number of different correct
answers by 0.1 to 0.4 in every seed. RL without a bonus loses 0.21 of pass@16 on
average, RL with a bonus 0.11 to 0.12. The volume lowers pass@1 in every seed
(0.02 to 0.06), and the neighbours lower it in one seed of three. With a larger
weight the policy may write unusual texts, since a bonus does not depend on
correctness.

The AUROC of the probe, on completions before it trains on them, is 0.61, 0.60
and 0.63 by seed, as the mean of the last 50 steps. A probe does not change
training: seed 0 of `probe` has the same evaluations as seed 0 of `none`. So the
rows of `none` for seeds 1 and 2 were taken from runs with a probe.

Steering: a vector of 480 to 592 answers of training of `none`, at layer 0
(`jaxrl steer`, docs/hidden_states.md). Change of pass@1 on 128 held-out
problems x 16, by the strength of the vector:

  strength    3       10      -10
  seed 0     +0.009  +0.003  -0.064
  seed 1     +0.001  -0.016  -0.021
  seed 2     -0.013  -0.125  -0.041

So these vectors did not raise pass@1.

A run takes 3 to 4 minutes on two CPU cores that it shares with other work.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib

# Argument of the recipe -> the bonus and its weight, or None.
BONUSES = {
  'volume': ('novelty_volume', 0.5),
  'neighbours': ('novelty_neighbours', 0.1),
  'none': None,
  'probe': None,
}


@config_lib.recipe(BONUSES)
def get_config(variant: str):
  c = config_lib.default()
  c.data.update(name='countdown', prompt_len=12, completion_len=30)
  c.data.knobs = dict(max_number=8, max_target=24, ops='+-*/')
  c.model.update(layers=2, width=64, mlp=128, heads=4, kv_heads=4)
  c.model.update(head_dim=16, qk_norm=True, scan=False)
  c.sft.update(steps=400, rows=64, steps_per_dispatch=5)
  c.sft.optimizer.lr = 3e-3
  c.rl.update(steps=150, prompts=16, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dr_grpo')
  c.rl.optimizer.lr = 5e-4
  if variant == 'probe':
    c.rl.probe.rate = 1.0
  elif BONUSES[variant] is not None:
    name, weight = BONUSES[variant]
    c.rl.rewards.novelty = dict(reward=name, weight=weight)
    c.rl.views.hidden.token = 'mean'
  c.eval.update(every=150, problems=128, samples=16, harder=False)
  c.checkpoint.every = 150
  c.log_every = 5
  return c
