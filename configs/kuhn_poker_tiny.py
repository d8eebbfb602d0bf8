"""Trains a policy by games against itself in which each player has a card that
the other player does not see: Kuhn poker.

  tools/run --config=configs/kuhn_poker_tiny.py --workdir=runs/kuhn_poker
  .venv/bin/python tools/kuhn_poker.py runs/kuhn_poker@100 runs/kuhn_poker

  problem   9JK>              the deck
  first     J>  p;  b>  b;    its card, its moves and those of the other player
  second    K>  p>  b;

The warm start has games of random moves, so it teaches the form of moves only.
Then the tool prints, for seed 0 and all 20 decks (chips per game):

                               warm start  RL steps: 200     400   optimal
  against an optimal player    -0.175      -0.094         -0.090    -0.056
  against a random player       0.042       0.036          0.156
  exploitability                0.529       0.214          0.163     0

pass@1 of evaluations is the share of games won, which is not the number of
chips: a policy that bets with every card wins more games.

A run takes 1.1 min of CPU time, on two cores with a load of 8 from other work.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.data.update(name='kuhn_poker', prompt_len=4, completion_len=10)
  c.model.update(layers=2, width=64, mlp=128, heads=4, kv_heads=4)
  c.model.update(head_dim=16, qk_norm=True)
  c.sft.update(steps=100, rows=64, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=400, prompts=16, samples=16, steps_per_dispatch=5)
  c.rl.update(algorithm='reinforce', role_decay=0.95, cache_segments=1)
  c.rl.loss.entropy_coef = 0.2
  c.rl.rewards = {}  # only the rewards of the game
  c.rl.turns.update(env='kuhn_poker', most=3, tokens=2, observation=2)
  c.rl.optimizer.update(lr=1e-3, b2=0.99)
  c.eval.update(every=100, problems=64, samples=8, harder=False)
  c.checkpoint.update(every=100)
  c.log_every = 5
  c.rollouts.every = 0  # saves a third of a step's compile time
  return c
