"""A recipe of seconds with random rewards, so that groups of random weights
have a variance: two epochs of two minibatches, with a reference.
"""

import tiny_recipe


def get_config():
  c = tiny_recipe.get_config()
  c.stages = ('rl',)
  c.rl.update(steps=4)
  c.rl.optimizer.lr = 1e-3
  coin = dict(reward='random', kwargs=dict(p=0.5), weight=1.0)
  c.rl.rewards = dict(coin=coin)
  c.eval.update(every=100, problems=4, samples=1, harder=False)
  c.checkpoint.every = 2
  return c
