"""Trains a policy to call a calculator, in episodes of several turns.

  tools/run --config=configs/calculator_tiny.py \\
    --workdir=runs/calculator --config.seed=0

  problem   734*286=
  episode   <<734*286=  209924>>  #209924      209924>> is the observation

Nine of ten problems have factors of three digits. A model of 0.3 million
parameters cannot multiply them without the calculator. In the warm start, one
of five worked solutions calls the calculator, independently of the problem. A
call costs 0.05 of the reward.

256 held-out problems x 4 samples, sampled pass@1 (greedy):

              warm start     25 RL steps    50             100
  seed 0      0.140 (0.039)  0.897 (0.930)  0.925 (0.930)  0.916 (0.918)
  seed 1      0.259 (0.023)  0.923 (0.977)  0.952 (1.000)  0.966 (0.988)
  seed 2      0.235 (0.070)  0.950 (0.984)  0.901 (0.934)  0.945 (0.977)
  mean        0.21 +- 0.04                                 0.94 +- 0.01

  without the calculator (--config.rl.turns.env=):
  seed 0      0.027 (0.039)  0.019 (0.027)  0.042 (0.063)  0.021 (0.020)
  seed 1      0.022 (0.023)  0.037 (0.063)  0.017 (0.016)  0.012 (0.008)

+-: standard error of three seeds. A run takes 210 CPU seconds (3.5 min) with
compilation and 29 evaluations, on two cores shared with other work.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.data.update(name='products', prompt_len=8, completion_len=36)
  c.model.update(layers=2, width=128, mlp=256, heads=4, kv_heads=4)
  c.model.update(head_dim=32, qk_norm=True)
  c.sft.update(steps=600, rows=64, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=100, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo')
  c.rl.turns.update(env='calculator', most=3, tokens=14, observation=14)
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=25, problems=256, samples=4, harder=False)
  c.checkpoint.update(every=50)
  c.log_every = 5
  return c
