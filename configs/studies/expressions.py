"""Trains on countdown with three numbers: a recipe for studies.

An answer is an expression, so it cannot be guessed, and most problems have
several correct ones. So pass@k and the number of different correct answers can
fall while pass@1 rises. There is no harder split. The argument changes the
depth, the number of solutions and the prior:

  --config=configs/studies/expressions.py:numbers=4,solutions=1,prior_loss=0.4

Problems then have four numbers and a single correct expression, and the warm
start ends at a loss of 0.4 nats per token. `solutions=0` sets no limit.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe(numbers=3, solutions=0, prior_loss=0.0)
def get_config(numbers, solutions, prior_loss):
  c = config_lib.default()
  c.data.update(name='countdown', prompt_len=4 * numbers)
  c.data.completion_len = 10 * numbers
  c.data.knobs = dict(max_number=8, max_target=24, ops='+-*/')
  c.data.knobs.update(min_numbers=numbers, max_numbers=numbers)
  c.data.knobs.update(max_solutions=solutions)
  c.model.update(layers=2, width=48, mlp=96, heads=2, kv_heads=2)
  c.model.update(head_dim=24, qk_norm=True)
  c.sft.update(steps=500, rows=64, stop_loss=prior_loss, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=3e-3)
  c.rl.update(steps=80, prompts=16, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo')
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=1000, problems=128, samples=16, batch=4096, harder=False)
  c.checkpoint.update(every=40)
  c.log_every = 5
  return c
