"""When to call a calculator: episodes of several turns, one program a step.

  python -m jaxrl_reason.main --config=configs/calculator_tiny.py \\
    --workdir=runs/calculator --config.seed=0
"""

from jaxrl_reason import config as config_lib


def get_config():
  c = config_lib.default()
  c.data.update(name='products', prompt_len=8, completion_len=36)
  c.model.update(layers=2, width=128, mlp=256, heads=4, kv_heads=4)
  c.model.update(head_dim=32, qk_norm=True)
  c.sft.update(steps=400, rows=64, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=50, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo', cache_segments=1)
  c.rl.turns.update(env='calculator', most=3, tokens=14, observation=14)
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=50, problems=256, samples=4, harder=False)
  c.checkpoint.update(every=50)
  c.log_every = 5
  return c
