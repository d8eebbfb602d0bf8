"""Sudoku of 4 x 4 cells with an answer to every move, one program a step.

  python -m jaxrl_reason.main --config=configs/sudoku_turns_tiny.py \\
    --workdir=runs/sudoku --config.seed=0

  problem   31.4 4231 24.. 13.2>
  episode   a3=2; + c3=1; + c4=3; + d3=1; -    `-`: wrong, try again

Two to five free cells, seven moves at most: a wrong move costs one.
"""

from jaxrl_reason import config as config_lib


def get_config():
  c = config_lib.default()
  c.data.update(name='sudoku', prompt_len=20, completion_len=42)
  c.data.knobs = dict(min_holes=2, max_holes=5)
  c.model.update(layers=2, width=128, mlp=256, heads=4, kv_heads=4)
  c.model.update(head_dim=32, qk_norm=True)
  c.sft.update(steps=150, rows=64, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=80, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo', cache_segments=1)
  c.rl.rewards = {}  # the environment's own alone
  c.rl.turns.update(env='sudoku', most=7, tokens=6, observation=1)
  c.rl.optimizer.update(lr=1e-4, b2=0.99)
  c.eval.update(every=25, problems=128, samples=4, harder=False)
  c.checkpoint.update(every=50)
  c.log_every = 5
  c.rollouts.every = 0  # a third of a step's compilation
  return c
