"""Trains on compositions of string functions: a recipe for studies.

An answer is one of thousands of strings, so it cannot be guessed, and pass@k at
large k measures the problems that the policy can solve. After the warm start,
the model writes the intermediate strings with mistakes. RL rewards the final
string. Held-out problems have two or three functions, those of the harder split
four.
"""

from jaxrl_reason import config as config_lib


def get_config():
  c = config_lib.default()
  c.data.update(name='string_functions', prompt_len=18, completion_len=32)
  c.data.knobs = dict(min_functions=2, max_functions=3)
  c.data.harder = dict(min_functions=4, max_functions=4)
  c.model.update(layers=2, width=64, mlp=128, heads=4, kv_heads=4)
  c.model.update(head_dim=16, qk_norm=True)
  c.sft.update(steps=2000, rows=64, stop_loss=0.35, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=100, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo')
  c.rl.optimizer.update(lr=1e-4, b2=0.99)
  c.eval.update(every=1000, problems=64, samples=64, batch=4096)
  c.checkpoint.update(every=50)
  c.log_every = 5
  return c
