"""Trains on compositions of string functions: a recipe for studies.

An answer is one of thousands of strings, so it cannot be guessed, and pass@k at
large k measures the problems that the policy can solve. After the warm start,
the model writes the intermediate strings with mistakes. RL rewards the final
string. Held-out problems have two or three functions, those of the harder split
four. The argument changes this:

  --config=configs/studies/functions.py:depth=4,prior_loss=0.2

Held-out problems then have two to four functions, harder ones five. The warm
start ends at a loss of 0.2 nats per token. A lower loss is a stronger prior.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe(depth=3, prior_loss=0.35)
def get_config(depth, prior_loss):
  c = config_lib.default()
  c.data.update(name='string_functions', prompt_len=depth + 15)
  c.data.completion_len = 8 * (depth + 1)  # harder problems have one more
  c.data.knobs = dict(min_functions=min(2, depth), max_functions=depth)
  c.data.harder = dict(min_functions=depth + 1, max_functions=depth + 1)
  c.model.update(layers=2, width=64, mlp=128, heads=4, kv_heads=4)
  c.model.update(head_dim=16, qk_norm=True)
  c.sft.update(steps=2000, rows=64, stop_loss=prior_loss, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=100, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo')
  c.rl.optimizer.update(lr=1e-4, b2=0.99)
  c.eval.update(every=1000, problems=64, samples=64, batch=4096)
  c.checkpoint.update(every=50)
  c.log_every = 5
  return c
