"""A recipe that runs in seconds, with two epochs of two minibatches and a
reference. Rewards are random, so that groups of a random model have a variance.
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
