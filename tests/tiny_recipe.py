"""A recipe that runs in seconds, with all three stages, for tests with real
processes.
"""

from jaxrl_reason import config as config_lib


def get_config():
  c = config_lib.default()
  c.stages = ('pretrain', 'sft', 'rl')
  c.data.update(prompt_len=12, completion_len=8)
  c.data.knobs = dict(min_ops=2, max_ops=3, modulus=3, ops='+-')
  c.data.harder = dict(max_ops=4)
  c.model.update(layers=1, width=16, mlp=16, heads=2, kv_heads=2, head_dim=8)
  for stage in (c.pretrain, c.sft):
    stage.update(steps=8, rows=8, steps_per_dispatch=2)
    stage.optimizer.lr = 1e-2
  c.rl.update(steps=16, prompts=4, samples=4, steps_per_dispatch=2)
  c.rl.update(algorithm='grpo', epochs=2, minibatches=2)  # reference, old
  c.eval.update(every=8, problems=8, samples=2)
  c.checkpoint.update(every=4, keep=2)
  c.log_every = 2
  c.rollouts.every = 0  # saves a third of a step's compile time
  return c
