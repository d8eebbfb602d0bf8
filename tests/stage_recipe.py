"""The tiny recipe as a list of stages: shorter, longer, again from the warm
start, with a changing reference and a temperature that follows an entropy.
"""

import tiny_recipe


def get_config():
  c = tiny_recipe.get_config()
  c.stages = ('sft', 'short', 'long', 'sft', 'again')
  c.data.controller.update(name='priority', window=32)
  c.sft.update(steps=4)
  c.rl.update(steps=4, prompts=4, samples=4, epochs=1, minibatches=1)
  c.rl.rewards.answer.update(reward='random', kwargs=dict(p=0.5))
  c.rl.loss.kl_coef = 0.01
  c.eval.update(every=4, problems=2, samples=1, harder=False)
  rl = dict(reference=dict(every=2, optimizer=True))
  rl |= dict(temperature_control=dict(entropy=0.3))
  # The memory of problems has the same shape for any completion length.
  c.named = dict(
    short=dict(kind='rl', data=dict(completion_len=6), rl=dict(steps=4)),
    long=dict(kind='rl', keep=('optimizer', 'control', 'reference')),
    again=dict(kind='rl', weights='sft', rl=rl),
  )
  return c
