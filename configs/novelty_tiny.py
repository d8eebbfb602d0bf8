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

128 held-out problems, all different, x 16 samples, by RL steps. All settings
began from the same warm start of a seed (`:none --config.stages=sft`, then
--config.stages=rl --config.init_from=...); +- is half of the 95 % t interval:

  pass@1              0       30      60      90      120     150
  none        seed 0  0.130   0.190   0.183   0.178   0.225   0.240
              seed 1  0.110   0.149   0.136   0.167   0.179   0.184
              seed 2  0.123   0.162   0.141   0.150   0.147   0.144
  volume      seed 0  0.130   0.158   0.169   0.184   0.205   0.189
              seed 1  0.110   0.144   0.136   0.145   0.153   0.159
              seed 2  0.123   0.155   0.157   0.158   0.153   0.169
  neighbours  seed 0  0.130   0.168   0.193   0.185   0.194   0.199
              seed 1  0.110   0.148   0.136   0.156   0.158   0.146
              seed 2  0.123   0.167   0.172   0.159   0.170   0.166
  volume - none              -0.015  +0.001  -0.002  -0.013  -0.017
                             +-0.038 +-0.038 +-0.041 +-0.042 +-0.097
  neighbours - none          -0.006  +0.014  +0.002  -0.009  -0.018
                             +-0.036 +-0.040 +-0.026 +-0.071 +-0.088

  pass@16
  none        seed 0  0.656   0.477   0.406   0.461   0.555   0.477
              seed 1  0.633   0.500   0.445   0.414   0.375   0.406
              seed 2  0.664   0.594   0.461   0.438   0.398   0.438
  volume      seed 0  0.656   0.500   0.578   0.547   0.531   0.516
              seed 1  0.633   0.500   0.539   0.477   0.508   0.438
              seed 2  0.664   0.523   0.508   0.516   0.461   0.500
  neighbours  seed 0  0.656   0.477   0.492   0.523   0.531   0.484
              seed 1  0.633   0.477   0.492   0.523   0.492   0.422
              seed 2  0.664   0.555   0.539   0.477   0.469   0.492
  volume - none              -0.016  +0.104  +0.076  +0.057  +0.044
                             +-0.121 +-0.157 +-0.030 +-0.194 +-0.040
  neighbours - none          -0.021  +0.070  +0.070  +0.055  +0.026
                             +-0.049 +-0.051 +-0.089 +-0.178 +-0.062

The mean number of different correct answers among 16 samples falls from 1.28 to
0.83 (none), 1.06 (volume) and 0.93 (neighbours). The differences at the end are
+0.23 +- 0.26 and +0.11 +- 0.27.

So RL loses pass@16, and the volume keeps more of it at the end (+0.044 +-
0.040). For the neighbours and for pass@1 the runs could not decide. With a
larger weight the policy may write unusual texts, since a bonus does not depend
on correctness.

The two results below are older: there, held-out problems could repeat, and more
of them were easy.

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

A warm start takes 0.4 to 0.5 min of CPU time, and its rl stage 0.4 to 0.7 min,
with compilation, on two busy cores.

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
  c.model.update(head_dim=16, qk_norm=True)
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
