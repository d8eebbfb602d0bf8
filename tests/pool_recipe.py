"""The tiny recipe, its problems chosen by priority, for tests of processes."""

import tiny_recipe


def get_config():
  c = tiny_recipe.get_config()
  c.stages = ('rl',)
  c.data.controller.update(name='priority', window=32)
  # Noise of the row: statistics that differ.
  c.rl.rewards.answer = dict(reward='random', weight=1.0, kwargs=dict(p=0.5))
  c.rl.update(epochs=1, minibatches=1)
  return c
