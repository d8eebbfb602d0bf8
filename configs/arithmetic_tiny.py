"""Chained arithmetic modulo 7, worked out step by step (see README)."""

from jaxrl_reason import config as config_lib


def get_config():
  c = config_lib.default()
  c.data.update(name='arithmetic', prompt_len=20, completion_len=17)
  c.data.knobs = dict(ops='+-*', modulus=7, min_ops=6, max_ops=6, max_operand=6)
  c.data.harder = dict(min_ops=8, max_ops=8)
  c.model.update(layers=2, width=128, mlp=256, heads=4, kv_heads=4)
  c.model.update(head_dim=32, qk_norm=True)
  c.sft.update(steps=800, rows=64, stop_loss=0.25, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=5e-4)
  c.rl.update(steps=150, prompts=64, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo')
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=25, problems=256, samples=4)
  c.checkpoint.update(every=50)
  c.log_every = 5
  return c
