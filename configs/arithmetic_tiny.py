"""Trains on chained arithmetic modulo 7, the default recipe.

  tools/run --config=configs/arithmetic_tiny.py \\
    --workdir=runs/arithmetic --config.seed=0

  problem   3*6-2*3*5+1*6%7=      evaluated from left to right
  solution  4 2 6 2 3#4           every intermediate result, then the answer

A model of two layers cannot compute six operations in one forward pass, so it
writes every intermediate result. The supervised stage stops when its loss falls
below 0.15. Sampled accuracy is then a quarter to a third (chance is 0.14). RL
rewards only the final answer.

On two virtual devices, as `tools/run` has on two cores or more:

         sampled pass@1 (greedy), 256 held-out problems x 4
         warm start      after RL        steps  0.85 after RL steps
  seed 0 0.364 (0.578)   0.949 (0.969)   370    75
  seed 1 0.334 (0.750)   0.972 (0.996)   370    75
  seed 2 0.247 (0.391)   0.984 (1.000)   355    100

With sft.stop_loss=0.25, seeds 0 and 1 start RL at 0.276 and 0.202 and reach
0.851 and 0.904. Seed 2 starts at chance (0.163) and stays there.

The run of seed 0 takes 1.7 min on two cores of an AMD EPYC.

The harder split has eight operations. A model trained on six stays at chance.

These alternatives were worse:

- Results that are not reduced modulo a prime. Two incorrect steps often cancel,
  and the completion is rewarded.
- RL from 0.20 with half the prompts. One seed of three collapses to guessing.
- A learning rate of 1e-3. The policy collapses.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.data.update(name='arithmetic', prompt_len=20, completion_len=17)
  c.data.knobs = dict(ops='+-*', modulus=7, min_ops=6, max_ops=6, max_operand=6)
  c.data.harder = dict(min_ops=8, max_ops=8)
  c.model.update(layers=2, width=128, mlp=256, heads=4, kv_heads=4)
  c.model.update(head_dim=32, qk_norm=True)
  c.sft.update(steps=800, rows=64, stop_loss=0.15, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=5e-4)
  c.rl.update(steps=150, prompts=64, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo')
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=25, problems=256, samples=4)
  c.checkpoint.update(every=50)
  c.log_every = 5
  return c
