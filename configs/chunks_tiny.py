"""Trains on chained arithmetic with completions in chunks (Delethink).

  tools/run --config=configs/chunks_tiny.py \\
    --workdir=runs/chunks --config.seed=0

  problem   3*4-2*3+1-4%5=
  solution  12 20 30 41#2        every step with its index

  chunk 0   3*4-2*3+1-4%5=12 20
  chunk 1   3*4-2*3+1-4%5=   20 30
  chunk 2   3*4-2*3+1-4%5=      30 41#
  chunk 3   3*4-2*3+1-4%5=         41#2

A chunk contains the problem and 6 tokens, 3 of them from the previous chunk. So
a step can use only the previous step, and no chunk contains a whole solution.

256 held-out problems x 4 samples, sampled pass@1 (greedy); chance is 0.2:

  seed 0   warm start 0.467 (0.613)   RL steps 25: 0.407 (0.523)
           50: 0.504 (0.605)   75: 0.619 (0.758)   100: 0.770 (0.883)
  seed 1   warm start 0.429 (0.648)   RL steps 25: 0.595 (0.828)
           50: 0.840 (0.980)   75: 0.946 (0.996)   100: 0.923 (0.980)
  seed 2   warm start 0.466 (0.633)   RL steps 25: 0.446 (0.566)
           50: 0.646 (0.766)   75: 0.848 (0.957)   100: 0.924 (0.984)
  mean     warm start 0.45 +- 0.01    RL steps 100: 0.87 +- 0.05

+-: standard error of three seeds. A run takes 7 minutes on two cores shared
with much other work.

Hardware: two CPU cores; or one TPU chip, v5e:1x1 (planned without chunks).
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.data.update(name='arithmetic', prompt_len=14, completion_len=15)
  c.data.knobs = dict(ops='+-*', modulus=5, min_ops=5, max_ops=5, max_operand=4)
  c.data.knobs.numbered = True
  c.model.update(layers=2, width=128, mlp=256, heads=4, kv_heads=4)
  c.model.update(head_dim=32, qk_norm=True)
  c.sft.update(steps=600, rows=64, stop_loss=0.1, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=5e-4)
  c.rl.update(steps=100, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo')
  c.rl.chunks.update(tokens=6, carry=3)
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=25, problems=256, samples=4, harder=False)
  c.checkpoint.update(every=50)
  c.log_every = 5
  return c
