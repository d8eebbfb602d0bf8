"""Trains a policy by games against itself: both players of a subtraction game.

  tools/run --config=configs/subtraction_tiny.py \\
    --workdir=runs/subtraction --config.seed=0

  problem   11/4>             11 counters are left, a move takes at most 4
  game      1;  10>  2;  ...  both players are the policy

The warm start has worked games with random moves, so it teaches the rules
only. The program makes the best moves against the policy in evaluations, and
the first player can win from every start: the score is the share of games
without a mistake. 64 problems (7 starts that training games do not have) x 4
samples, sampled pass@1 (greedy); and the share of games that the first player
wins against the policy itself, at the same step:

              warm start     100 RL steps   200
  seed 0      0.016 (0.000)  0.125 (0.250)  0.133 (0.250)
  first wins  0.50           0.52           0.72

A run takes 2.5 min with compilation and evaluations, on two cores shared with
much other work.

Hardware: two CPU cores; of TPUs one chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.data.update(name='subtraction', prompt_len=5, completion_len=32)
  c.data.knobs = dict(skill=0.0, largest=12, most=9)
  c.model.update(layers=2, width=64, mlp=128, heads=4, kv_heads=4)
  c.model.update(head_dim=16, qk_norm=True)
  c.sft.update(steps=200, rows=64, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=200, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='reinforce', role_decay=0.95, cache_segments=1)
  c.rl.loss.entropy_coef = 0.2
  c.rl.rewards = {}  # only the rewards of the game
  c.rl.turns.update(env='subtraction', most=12, tokens=3, observation=3)
  c.rl.optimizer.update(lr=5e-4, b2=0.99)
  c.eval.update(every=25, problems=64, samples=4, harder=False)
  c.checkpoint.update(every=50)
  c.log_every = 5
  c.rollouts.every = 0  # saves a third of a step's compile time
  return c
