"""Sudoku of 4 x 4 cells with an answer to every move, one program a step.

  python -m jaxrl_reason.main --config=configs/sudoku_turns_tiny.py \\
    --workdir=runs/sudoku --config.seed=0
"""

from jaxrl_reason import config as config_lib


def get_config():
  c = config_lib.default()
  c.data.update(name='sudoku', prompt_len=20, completion_len=60)
  c.model.update(layers=2, width=128, mlp=256, heads=4, kv_heads=4)
  c.model.update(head_dim=32, qk_norm=True)
  c.sft.update(steps=200, rows=64, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=60, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='mt_grpo')
  c.rl.rewards = {}  # the environment's own alone
  c.rl.turns.update(env='sudoku', most=10, tokens=6, observation=1)
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=100, problems=128, samples=4, harder=False)
  c.checkpoint.update(every=20)
  c.log_every = 5
  return c
