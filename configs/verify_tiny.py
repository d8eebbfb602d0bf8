"""Trains one policy to solve and then to verify, in chains of two links.

  tools/run --config=configs/verify_tiny.py \\
    --workdir=runs/verify --config.seed=0

  problem   2*3+1-4*2%5=
  chain     1 2 3#1;  ?  y        1 2 3#4;  ?  n

The first link is rewarded if its answer is correct, the second link if its
verdict equals that of the verifier (S2R, RL^V). `;` ends a link and `?`
requests the next link. Each link has only its own reward. If the rewards of
later links were added, a policy that always writes `n` would have the same sum
for an incorrect answer as for a correct one. Its pass@1 then fell from 0.30 to
0.25 in 60 steps (seed 0).

256 held-out problems x 4 samples, sampled pass@1 (greedy) of the first link:

           warm start     20 RL steps    40             80
  seed 0   0.413 (0.453)                                0.755 (0.805)
  seed 1   0.391 (0.594)  0.516 (0.672)  0.735 (0.910)  0.933 (0.996)
  seed 2   0.443 (0.676)  0.567 (0.703)  0.665 (0.809)  0.855 (0.914)
  mean     0.42 +- 0.02                                 0.85 +- 0.05

+-: standard error of three seeds. During training, the share of correct
verdicts rises from a half to 0.78, 0.92 and 0.82. A run takes 1 to 2.3 minutes
on two cores shared with other work.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.data.update(name='checked', prompt_len=12, completion_len=16)
  c.data.knobs = dict(ops='+-*', modulus=5, min_ops=4, max_ops=4, max_operand=4)
  c.model.update(layers=2, width=128, mlp=256, heads=4, kv_heads=4)
  c.model.update(head_dim=32, qk_norm=True)
  c.sft.update(steps=500, rows=64, stop_loss=0.2, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=5e-4)
  c.rl.update(steps=80, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='mt_grpo', cache_segments=1)
  c.rl.loss.segment_gamma = 0.0  # each link gets only its own reward
  c.rl.rewards = {}  # only the rewards of the links
  c.rl.turns.update(env='chain', tokens=10, observation=1, stops=(';',))
  c.rl.turns.links = {
    'solve': {'reward': 'task'},
    'verify': {'ask': '?', 'reward': 'agrees', 'of': 'solve'},
  }
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=20, problems=256, samples=4, harder=False)
  c.checkpoint.update(every=40)
  c.log_every = 5
  return c
