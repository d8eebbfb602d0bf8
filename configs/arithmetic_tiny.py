from jaxrl_reason import config as config_lib


def get_config():
  c = config_lib.default()
  c.stages = ('sft', 'rl')
  c.data.update(name='arithmetic', prompt_len=17, completion_len=13)
  c.data.knobs = dict(modulus=10, min_ops=6, max_ops=6, ops='+-', max_total=9)
  c.data.harder = dict(max_operand=9)
  c.sft.update(steps=40, rows=128, steps_per_dispatch=10)
  c.rl.update(steps=40, algorithm='dr_grpo', steps_per_dispatch=10)
  c.eval.every = 20
  c.checkpoint.every = 20
  return c
