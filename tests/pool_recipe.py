"""The tiny recipe with a controller of problems, for tests of processes:
priority on the fused path, GRESO with a step ahead on the host path.
"""

import pathlib

import tiny_recipe

PARITY = pathlib.Path(__file__).with_name('pod_worker.py')


def get_config(path='fused'):
  c = tiny_recipe.get_config()
  c.stages = ('rl',)
  c.data.controller.update(name='priority', window=32)
  c.rl.update(epochs=1, minibatches=1, path=path)
  # Random rewards of the row or of its length, so that statistics differ.
  part = dict(reward='random', kwargs=dict(p=0.5))
  if path == 'host':
    part = dict(reward=f'{PARITY}:parity')
    c.data.controller.name = 'greso'
    c.rl.update(steps_per_dispatch=1, workers=1)
    c.rl.update(staleness=1, old_logp='sampler')
  c.rl.rewards = dict(answer=part | dict(weight=1.0))
  return c
