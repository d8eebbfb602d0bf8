"""Trains on chained arithmetic modulo 7: the recipe of all studies.

It is small enough for five seeds of several settings on two CPU cores. After
the warm start, the model writes intermediate results with mistakes. RL rewards
the final result. Evaluations take place only at the start and at the end, with
256 samples for each of 32 problems, on the held-out split (four operations) and
on the harder split (six).
"""

from jaxrl_reason import config as config_lib


def get_config():
  c = config_lib.default()
  c.data.update(name='arithmetic', prompt_len=16, completion_len=13)
  c.data.knobs = dict(ops='+-*', modulus=7, min_ops=4, max_ops=4, max_operand=6)
  c.data.harder = dict(min_ops=6, max_ops=6)
  c.model.update(layers=2, width=48, mlp=96, heads=2, kv_heads=2)
  c.model.update(head_dim=24, qk_norm=True)
  c.sft.update(steps=2000, rows=64, stop_loss=0.15, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=60, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo')
  c.rl.optimizer.update(lr=5e-4, b2=0.99)
  c.eval.update(every=1000, problems=32, samples=256, batch=4096)
  c.checkpoint.update(every=30)
  c.log_every = 5
  return c
