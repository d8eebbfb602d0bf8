"""Trains a policy by games against itself: both players of a subtraction game.

  tools/run --config=configs/subtraction_tiny.py \\
    --workdir=runs/subtraction --config.seed=0

  problem   11/4>             11 counters are left, a move takes at most 4
  game      1;  10>  2;  ...  both players are the policy

The warm start has worked games with random moves, so it teaches the rules
only. Share of games that the first player wins from held-out starts, 64
problems x 8 samples, against a random player (against_random/pass@1) and
against the perfect one, with which one mistake loses (pass@1):

                   warm start  RL steps: 100    150    200    250    300
  random   seed 0  0.254       0.750     0.719  0.740  0.795  0.693
           seed 1  0.338       0.648     0.568  0.693  0.775  0.666
           seed 2  0.287       0.721     0.684  0.789  0.836  0.771
  perfect  seed 0  0.057       0.047     0.113  0.041  0.082  0.182
           seed 1  0.088       0.047     0.043  0.062  0.070  0.111
           seed 2  0.061       0.229     0.143  0.047  0.100  0.033

So the policy learns to beat a random player and not to play perfectly. At the
end it chooses the best move in 0.04 to 0.34 of the positions from which no move
takes all counters: it has learnt the last moves alone. A longer run learns the
starts of training and does not generalize from them. With

  --config.rl.steps=500 --config.rl.prompts=32 --config.rl.optimizer.lr=3e-4
  --config.rl.loss.entropy_coef=0.06 --config.rl.turns.most=12

seed 0 wins 0.53 of the games from the 31 starts of training against the perfect
player, and 0.13 from the 5 that are held out (0.88 and 0.81 against the random
one). Share of best moves in the same positions:

                        first move  later moves
  starts of training    0.73        0.81
  held-out starts       0.15        0.50

So the policy has learnt moves of single positions, and not the remainder: a
held-out start is a prompt that no game begins with, and a later move can be
in the same position. These shares are of games against the random player, by
hand, from one seed.

Runs of 300 steps take 1.6 to 1.8 min of CPU time, and the longer one 4 min, on
two cores with a load of 3 to 10 from other work.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.data.update(name='subtraction', prompt_len=5, completion_len=40)
  c.data.knobs = dict(skill=0.0, largest=20, most=4)
  c.model.update(layers=2, width=64, mlp=128, heads=4, kv_heads=4)
  c.model.update(head_dim=16, qk_norm=True)
  c.sft.update(steps=200, rows=64, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=300, prompts=16, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='reinforce', role_decay=0.95, cache_segments=1)
  c.rl.loss.entropy_coef = 0.1
  c.rl.rewards = {}  # only the rewards of the game
  c.rl.turns.update(env='subtraction', most=14, tokens=3, observation=3)
  c.rl.optimizer.update(lr=5e-4, b2=0.99)
  c.eval.update(every=50, problems=64, samples=8, harder=False)
  c.checkpoint.update(every=100)
  c.log_every = 5
  c.rollouts.every = 0  # saves a third of a step's compile time
  return c
