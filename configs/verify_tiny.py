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

256 held-out problems x 4 samples, sampled pass@1 of the first link by RL steps,
and the greedy pass@1 at both ends; +- is half of the 95 % t interval:

          0        20       40       60       80       greedy
  seed 0  0.414    0.488    0.519    0.612    0.706    0.449   0.754
  seed 1  0.392    0.521    0.749    0.879    0.941    0.594   0.996
  seed 2  0.478    0.578    0.681    0.775    0.860    0.672   0.914
  mean    0.428    0.529    0.649    0.756    0.836    0.572   0.888
          +-0.111  +-0.113  +-0.294  +-0.334  +-0.297  +-0.281 +-0.306

Share of correct first answers and of correct verdicts of training, in each
quarter of the RL steps:

  seed 0  answers   0.460  0.485  0.535  0.677
          verdicts  0.499  0.523  0.550  0.668
  seed 1  answers   0.498  0.643  0.845  0.907
          verdicts  0.513  0.642  0.843  0.904
  seed 2  answers   0.521  0.592  0.686  0.784
          verdicts  0.519  0.598  0.688  0.784

So at the end the verdicts are not better than always writing `y`, which is
correct for each correct answer. A run takes 0.9 to 1.5 min of CPU time, with
compilation, on two cores with a load of about 16 from other work.

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
